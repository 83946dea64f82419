"""The commands train, demo and bench: what they write and print, their exit codes, Ctrl-C; and where data come from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from training_models import model, perceptron, vectors  # noqa: E402

import backstroke as bs  # noqa: E402
from backstroke import cli  # noqa: E402
from backstroke.training import curves, progress, sources  # noqa: E402
from backstroke.training.data import Port  # noqa: E402

IMAGES = [Port("x", np.dtype(np.float32), (None, 3, 6, 5))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and data, to work in."""
    monkeypatch.chdir(tmp_path)
    onnx.save(perceptron(), tmp_path / "model.onnx")
    (x, y), (xv, yv) = vectors(80), vectors(20, seed=3)
    np.savez(tmp_path / "data.npz", x=x, y=y, xv=xv, yv=yv)
    return tmp_path


def train(*words: str) -> int:
    return cli.main(["train", "model.onnx", "--data", "data.npz", "--out", "tuned.onnx", *words])


def test_train_writes_a_tuned_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert train("--epochs", "9", "--lr", "0.02", "--schedule", "cosine", "--warmup", "0.1", "--plot", "curve.png") == 0
    said = capsys.readouterr()
    assert "wrote tuned.onnx and curve.png" in said.out
    assert "epoch   9  loss" in said.err
    assert "val_accuracy" in said.err
    onnx.checker.check_model("tuned.onnx")
    assert (place / "curve.png").read_bytes().startswith(b"\x89PNG")
    x, y = vectors(20, seed=3)
    losses = [bs.Trainer(name, loss="cross_entropy").evaluate(x, y)["loss"] for name in ("model.onnx", "tuned.onnx")]
    assert losses[1] < losses[0] / 2


def test_train_for_machines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "2", "--optimizer", "sgd", "--trainable", "w2,b2", "--json", "--clip-norm", "1") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines[:2]] == [1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "step", "seconds"} <= lines[0].keys()
    assert lines[2]["out"] == "tuned.onnx"
    assert lines[2]["steps"] == 6
    tuned = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("tuned.onnx").graph.initializer}
    before = {t.name: onnx.numpy_helper.to_array(t) for t in perceptron().graph.initializer}
    assert [name for name, w in tuned.items() if not np.array_equal(w, before[name])] == ["w2", "b2"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--out", "none/tuned.onnx"], 2, "out: 'none/tuned.onnx' cannot be written: there is no folder 'none'"),
        (["--plot", "none/curve.png"], 2, "plot: 'none/curve.png' cannot be written"),
        (["--data", "none.npz"], 2, "data: there is no 'none.npz'; expected an .npz file or a folder of images"),
        (["--data", "model.onnx"], 2, "data: 'model.onnx' is neither an .npz file nor a folder"),
        (["--loss", "mse"], 2, "y has type int64; expected float32"),
        (["--trainable", "last:0"], 2, "trainable is 'last:0'"),
        (["--trainable", "w7"], 2, "trainable names 'w7'"),
        (["--resume", "c"], 2, "give either a model, or --resume"),
        (["--validation", "2"], 2, "validation is 2.0; expected a share between 0 and 1"),
        (["--lr", "-1"], 2, "lr is -1.0"),
        (["--threads", "0"], 2, "n is 0"),
        (["--lr", "1e30", "--epochs", "9"], 1, "the loss is"),
    ],
)
def test_exit_codes(place: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str) -> None:
    assert train(*words) == code
    assert said in capsys.readouterr().err
    assert not (place / "tuned.onnx").exists()


def test_wrong_words_are_code_2(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--loss", "hinge"], ["--epochs", "many"]):
        with pytest.raises(SystemExit) as ended:
            train(*words)
        assert ended.value.code == 2
    capsys.readouterr()


def test_ctrl_c_saves_and_resume_goes_on(place: Path) -> None:
    words = ["--data", "data.npz", "--out", "tuned.onnx", "--batch-size", "2", "--threads", "1"]
    command = [sys.executable, "-m", "backstroke", "train"]
    subprocess.run([*command, "model.onnx", *words, "--epochs", "60", "--json"], check=True, capture_output=True)
    wanted = (place / "tuned.onnx").read_bytes()
    os.unlink("tuned.onnx")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([*command, "model.onnx", *words, "--epochs", "60", "--json"], **pipes)
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait() == 130
        assert "interrupted" in child.stderr.read()
    assert not (place / "tuned.onnx").exists()
    assert bs.Trainer.resume("tuned.onnx.checkpoint").unfinished is not None
    again = subprocess.run([*command, *words, "--resume", "tuned.onnx.checkpoint"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "goes on in epoch" in again.stderr
    assert (place / "tuned.onnx").read_bytes() == wanted


def test_demo_reaches_98_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    assert cli.main(["demo", "--folder", str(tmp_path / "d")]) == 0
    said = capsys.readouterr().out
    assert "plain onnxruntime" in said
    assert sorted(each.name for each in (tmp_path / "d").iterdir()) == ["curve.png", "digits.onnx", "tuned.onnx"]
    (tmp_path / "f").write_text("")
    assert cli.main(["demo", "--folder", str(tmp_path / "f")]) == 2
    assert "cannot be made: File exists" in capsys.readouterr().err


def test_bench(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstroke.training.bench._SECONDS", 0.05)
    assert cli.main(["bench", "model.onnx", "--batch-size", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["milliseconds"]) == {"forward", "loss", "backward", "update"}
    assert found["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert cli.main(["bench"]) == 0
    assert "samples/s" in capsys.readouterr().out


# ---- data ----


def pictures(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            image.new("RGB", (12 + i, 9), colour).save(folder / name / f"{i}.png")
    (folder / "red" / "notes.txt").write_text("no image")


def test_a_folder_of_images(tmp_path: Path) -> None:
    pictures(tmp_path)
    data = sources.load(tmp_path, IMAGES, mean=[0.5, 0, 0], std=[0.5, 1, 1])
    assert data.classes == ["blue", "red"]
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.x.shape == (6, 3, 6, 5)
    assert data.x.dtype == np.float32
    assert (data.x[0] == np.float32([-1, 0, 1])[:, None, None]).all()
    assert (data.x[5] == np.float32([1, 0, 0])[:, None, None]).all()
    grey = sources.load(tmp_path, [Port("x", None, (None, 1, 4, 4))])
    assert grey.x.shape == (6, 1, 4, 4)
    split = data.split(0.34, 0)
    assert split.validation is not None
    assert sorted([*split.y, *split.validation[1]]) == [0, 0, 0, 1, 1, 1]
    assert len(split.y) == len(split.x) == 4


def test_train_on_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    nodes = [
        onnx.helper.make_node("GlobalAveragePool", ["x"], ["g"]), onnx.helper.make_node("Flatten", ["g"], ["f"]),
        onnx.helper.make_node("Gemm", ["f", "w"], ["y"], transB=1),
    ]  # fmt: skip
    weights = {"w": np.zeros((2, 3), np.float32)}
    onnx.save(model(nodes, weights, {"x": ["n", 3, 6, 5]}, {"y": ["n", 2]}), "model.onnx")
    words = ["--out", "t.onnx", "--epochs", "30", "--lr", "0.1", "--json"]
    assert cli.main(["train", "model.onnx", "--data", "data", *words]) == 0
    last = [json.loads(line) for line in capsys.readouterr().out.splitlines()][-2:]
    assert last[0]["accuracy"] == 1
    assert last[1]["classes"] == ["blue", "red"]


@pytest.mark.parametrize(
    ("ports", "options", "words"),
    [
        ([Port("x", None, (None, 8))], {}, "is for a model with one input"),
        ([Port("x", None, (None, 4, 6, 5))], {}, "expected 1 or 3 channels and fixed sizes"),
        ([Port("x", None, (None, 3, None, 5))], {}, "expected 1 or 3 channels and fixed sizes"),
        (IMAGES, {"mean": [0, 0]}, "mean has 2 numbers; expected 1 or 3"),
    ],
)
def test_folders_and_models_that_do_not_go_together(tmp_path: Path, ports: Any, options: Any, words: str) -> None:
    pictures(tmp_path)
    with pytest.raises(ValueError, match=words):
        sources.load(tmp_path, ports, **options)


def test_bad_sources(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images in the folders"):
        sources.load(tmp_path / "empty", IMAGES)
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"1.png' is not an image"):
        sources.load(tmp_path / "bad", IMAGES)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"is neither an \.npz file nor a folder"):
        sources.load(tmp_path / "one.npy", IMAGES)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(ValueError, match="cannot be read as"):
        sources.load(tmp_path / "objects.npz", IMAGES)
    np.savez(tmp_path / "other.npz", a=np.zeros(1), y=np.zeros(1))
    with pytest.raises(ValueError, match=r"has \['a', 'y'\]; expected 'y', and 'x' or 'x'"):
        sources.load(tmp_path / "other.npz", IMAGES)


def test_npz_by_the_names_of_the_inputs(tmp_path: Path) -> None:
    ports = [Port("a", None, None), Port("b", None, None)]
    rows = np.arange(4)
    np.savez(tmp_path / "d.npz", a=rows, b=-rows, y=rows, a_v=rows[:2], b_v=rows[:2], yv=rows[:2])
    data = sources.load(tmp_path / "d.npz", ports)
    assert list(data.x) == ["a", "b"]
    assert data.validation is not None
    assert list(data.validation[0]) == ["a", "b"]
    assert [len(x) for x in data.split(0.5, 0).x.values()] == [2, 2]


# ---- what is shown ----


def test_curves_in_the_terminal() -> None:
    drawn = curves.text([10.0**-i for i in range(50)], title="a line", width=20, height=5)
    assert len(drawn.splitlines()) == 6
    assert drawn.splitlines()[1].split()[0] == "1"
    assert drawn.splitlines()[5].split()[0] == "1e-49"
    assert curves.text([float("nan")], title="t") == "t: nothing to show"
    assert curves.text([1.0]).count("\n") == 10


def test_the_bar_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    t = bs.Trainer(perceptron(), loss="cross_entropy")
    monkeypatch.setattr(progress, "_SHOWN", 0.0)
    t.fit(*vectors(40), epochs=2, progress=True)
    said = capsys.readouterr().err
    assert "epoch   2  loss" in said
    assert "images/s" in said
    t.fit(*vectors(40), progress=False)
    assert not capsys.readouterr().err
