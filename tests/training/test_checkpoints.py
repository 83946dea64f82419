"""Checkpoints: resumed training has the bits of an uninterrupted one; files are whole or absent; damage is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from checks import same_bits  # noqa: E402
from training_models import convolutional, images, perceptron, vectors  # noqa: E402

import backstroke as bs  # noqa: E402
from backstroke.training.schedules import Cosine  # noqa: E402

HERE = Path(__file__).parent
OPTIMIZERS = [bs.AdamW(lr=1e-2), bs.SGD(lr=0.05, momentum=0.9, nesterov=True), bs.SGD(lr=0.05)]


class StopError(Exception):
    """Ends a training from within."""


def everything(t: bs.Trainer, folder: Path) -> dict[str, Any]:
    """All that two trainers can differ in."""
    t.save(folder / "look.onnx")
    states = {f"{n}/{k}": a for n, kinds in t._updates.states.items() for k, a in kinds.items()}
    lines = [{name: value for name, value in line.items() if name != "seconds"} for line in t.history]
    model = np.frombuffer((folder / "look.onnx").read_bytes(), np.uint8).astype(np.float32)
    return {"losses": t.losses, "history": lines, "steps": t.steps, "arrays": {**states, **t.parameters, "file": model}}


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["losses"] == b["losses"]
    assert a["history"] == b["history"]
    assert a["steps"] == b["steps"]
    assert a["arrays"].keys() == b["arrays"].keys()
    assert all(same_bits(x, b["arrays"][name]) for name, x in a["arrays"].items())


def fit(t: bs.Trainer, **options: Any) -> None:
    """Batch normalization, dropout, uneven last batches, accumulation, validation, patience: all that has state."""
    (x, y), held = images(50), images(20, seed=3)
    t.fit(x, y, epochs=4, batch_size=8, accumulate=2, validation=held, patience=2, **options)


def make(optimizer: Any) -> bs.Trainer:
    return bs.Trainer(
        convolutional(), loss="cross_entropy", optimizer=optimizer, seed=7, schedule=Cosine(warmup=3), clip_norm=1.0
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_resumed_training_has_the_same_bits(optimizer: Any, tmp_path: Path) -> None:
    whole = make(optimizer)
    fit(whole)
    wanted = everything(whole, tmp_path)
    steps = whole.steps
    assert steps >= 8
    for stop in sorted({1, 3, 4, 5, steps - 1}):  # 4 updates are an epoch

        def save(t: bs.Trainer, stop: int = stop) -> None:
            if t.steps == stop:
                t.save_checkpoint(tmp_path / "c")
                raise StopError

        t = make(optimizer)
        with pytest.raises(StopError):
            fit(t, callback=save)
        again = bs.Trainer.resume(tmp_path / "c")
        assert again.steps == stop
        assert again.unfinished is not None
        fit(again)
        assert_same(everything(again, tmp_path), wanted)


def test_each_epoch_writes_a_checkpoint(tmp_path: Path) -> None:
    (x, y), t = vectors(40), bs.Trainer(perceptron(), loss="cross_entropy")
    t.fit(x, y, epochs=2, checkpoint=tmp_path / "c")
    again = bs.Trainer.resume(tmp_path / "c")
    assert_same(everything(again, tmp_path), everything(t, tmp_path))
    assert again.unfinished is None
    for each in (t, again):
        each.fit(x, y, epochs=1)
    assert_same(everything(again, tmp_path), everything(t, tmp_path))


def test_the_same_state_is_the_same_file(tmp_path: Path) -> None:
    t = bs.Trainer(perceptron(), loss="cross_entropy")
    for name in "ab":
        t.save_checkpoint(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_ctrl_c_ends_after_a_whole_step_and_saves(tmp_path: Path) -> None:
    (x, y), options = vectors(80), {"epochs": 3, "batch_size": 16}
    whole = bs.Trainer(perceptron(), loss="cross_entropy")
    whole.fit(x, y, **options)

    def press(t: bs.Trainer) -> None:
        if t.steps == 7:
            signal.raise_signal(signal.SIGINT)

    t = bs.Trainer(perceptron(), loss="cross_entropy")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        t.fit(x, y, **options, callback=press, checkpoint=tmp_path / "c")
    assert signal.getsignal(signal.SIGINT) is handler
    again = bs.Trainer.resume(tmp_path / "c")
    assert again.steps == 7
    again.fit(x, y, **options)
    assert_same(everything(again, tmp_path), everything(whole, tmp_path))


def test_an_interrupted_fit_goes_on_only_with_its_own_arguments(tmp_path: Path) -> None:
    x, y = vectors(40)

    def save(t: bs.Trainer) -> None:
        t.save_checkpoint(tmp_path / "c")
        raise StopError

    t = bs.Trainer(perceptron(), loss="cross_entropy")
    with pytest.raises(StopError):
        t.fit(x, y, epochs=2, batch_size=8, callback=save)
    again = bs.Trainer.resume(tmp_path / "c")
    for options, words in (
        ({"epochs": 3, "batch_size": 8}, "epochs is 3; expected 2, as in the training that was interrupted"),
        ({"epochs": 2, "batch_size": 9}, "batch_size is 9; expected 8"),
        ({"epochs": 2, "batch_size": 8, "shuffle": False}, "shuffle is False; expected True"),
    ):
        with pytest.raises(ValueError, match=words):
            again.fit(x, y, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samples is 30; expected 40"):
        again.fit(x[:30], y[:30], epochs=2, batch_size=8)
    t.fit(x, y, epochs=1)  # but here, where it failed, nothing is gone on with


def test_damage_is_found(tmp_path: Path) -> None:
    t = bs.Trainer(perceptron(), loss="cross_entropy")
    t.fit(*vectors(40))
    wanted = everything(t, tmp_path)
    t.save_checkpoint(tmp_path / "c")
    data, rng = (tmp_path / "c").read_bytes(), np.random.default_rng(0)
    found = 0
    for _ in range(150):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (tmp_path / "d").write_bytes(damaged)
        try:
            again = bs.Trainer.resume(tmp_path / "d")
        except ValueError:
            found += 1
        else:  # a date, say, of which nothing depends
            assert_same(everything(again, tmp_path), wanted)
    assert found > 100
    for size in (0, 10, len(data) // 2, len(data) - 1):
        (tmp_path / "d").write_bytes(data[:size])
        with pytest.raises(ValueError, match="is not a whole checkpoint"):
            bs.Trainer.resume(tmp_path / "d")
    with pytest.raises(ValueError, match=r"checkpoint: '.*none' cannot be read: No such file"):
        bs.Trainer.resume(tmp_path / "none")


def test_a_killed_run_leaves_a_whole_checkpoint_or_none(tmp_path: Path) -> None:
    code = f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        import backstroke as bs
        from training_models import perceptron, vectors
        t = bs.Trainer(perceptron(width=20_000), loss="cross_entropy")
        print("ready", flush=True)
        while True:
            t.fit(*vectors(8), checkpoint={str(tmp_path / "c")!r})
            print(t.steps, flush=True)
    """
    rng = np.random.default_rng(0)
    for turn in range(4):
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
            for _ in range(turn):
                child.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            child.kill()
            child.wait()
        if turn or (tmp_path / "c").exists():
            assert bs.Trainer.resume(tmp_path / "c").steps >= turn
            os.unlink(tmp_path / "c")


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: Any) -> None:
    t = bs.Trainer(perceptron(), loss="cross_entropy")
    t.save_checkpoint(tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    t.fit(*vectors(40))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        t.save_checkpoint(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]
