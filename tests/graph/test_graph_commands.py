"""`backstroke grad` and `backstroke check`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnx

import backstroke as bs
from backstroke import cli
from backstroke.graph import check
from tests.graph.models import model, node, normal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [node("Conv", "x w", "c", name="c"), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "y")]
    onnx.save(model(nodes, {"x": ["N", 2, 6, 6]}, {"w": normal(3, 2, 3, 3)}), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_check(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["check", str(path)]) == 0
    assert "2 of 2 gradients agree" in capsys.readouterr().out
    assert cli.main(["check", str(path), "--json", "--wrt", "w", "--batch-size", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "w"
    assert row["error"] < 1e-5
    right = check.Differentiable.backward
    monkeypatch.setattr(
        check.Differentiable, "backward", lambda self, dy: {n: 1.1 * g for n, g in right(self, dy).items()}
    )
    assert cli.main(["check", str(path)]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_grad(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, dy = normal(3, 2, 6, 6), normal(3, 3, 1, 1)
    np.savez(tmp_path / "feeds.npz", x=x)
    np.savez(tmp_path / "dy.npz", y=dy)
    files = ["--feeds", str(tmp_path / "feeds.npz"), "--dy", str(tmp_path / "dy.npz"), "--out", str(tmp_path / "g.npz")]
    assert cli.main(["grad", str(path), "--of", "y", "--wrt", "x,w", *files]) == 0
    assert "3x2x3x3" in capsys.readouterr().out
    expected = bs.grad(path, of="y", wrt=["x", "w"])({"x": x}, dy={"y": dy})
    with np.load(tmp_path / "g.npz") as found:
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_grad_as_a_model(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["grad", str(path), "--graph", str(tmp_path / "gradients.onnx")]) == 0
    assert "wrote" in capsys.readouterr().out
    assert [o.name for o in onnx.load(tmp_path / "gradients.onnx").graph.output] == ["y", "x_grad", "w_grad"]


def test_what_will_not_do_is_said(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(tmp_path / "none.onnx")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["grad", str(path), "--feeds", str(path)]) == 2
    assert "--feeds" in capsys.readouterr().err
    assert cli.main(["grad", str(path), "--wrt", "q"]) == 2
    assert "'q' is not in the model" in capsys.readouterr().err
