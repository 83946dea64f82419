"""The examples of docs/training.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("sklearn")

from backstroke import cli

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    space: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(block, space)
    assert space["history"][-1]["val_accuracy"] > 0.9
    said = capsys.readouterr().out
    assert "['head.weight', 'head.bias']" in said
    assert "the loss is" in said


def test_the_commands_know_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
