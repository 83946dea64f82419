"""What the project says of itself: names, docstrings, README, tables, the command."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backstroke as bs
from backstroke import cli
from backstroke.registry import OPS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_public_name_is_documented() -> None:
    for name in bs.__all__:
        thing = getattr(bs, name)
        if callable(thing) or inspect.ismodule(thing):
            assert (inspect.getdoc(thing) or "").strip(), name


@pytest.mark.parametrize("module", [m.name for m in pkgutil.walk_packages(bs.__path__, "backstroke.")])
def test_every_module_says_what_it_is(module: str) -> None:
    if module == "backstroke.torch":
        pytest.importorskip("torch")
    if not module.endswith("__main__"):
        assert importlib.import_module(module).__doc__ or module == "backstroke.jit"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_twin_has_the_arguments_of_its_function(op: Any) -> None:
    ours, twin = (list(inspect.signature(f).parameters) for f in (op.function, op.reference))
    assert ours == twin
    assert op.name in bs.__all__
    assert op.name in bs.reference.__all__


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_docstrings_tell_the_corners(op: Any) -> None:
    text = inspect.getdoc(op.function) or ""
    assert "NaN" in text
    assert "infinit" in text or "inf" in text


def test_the_readme_s_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)
    assert np.allclose(space["dx"], bs.leaky_relu_grad(space["dy"], space["x"], alpha=0.1))


def test_the_readme_s_files_and_variables_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for variable in set(re.findall(r"BACKSTROKE_[A-Z_]+", README)):
        assert f'"{variable}"' in sources


def test_runtime_dependencies_are_few() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)
    assert found
    assert re.findall(r'"([a-z-]+)', found.group(1)) == ["numpy", "llvmlite", "ml-dtypes", "platformdirs"]


def test_no_other_language_is_here() -> None:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    assert not [f for f in found if f.endswith((".c", ".cc", ".cpp", ".h", ".hpp", ".pyx", ".rs", ".so"))]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["threads"] == bs.get_num_threads()
    assert cli.main(["info"]) == 0
    assert "target" in capsys.readouterr().out


def test_the_tour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["tour", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["op"] for row in rows} == {op.name for op in OPS}
    assert cli.main(["tour"]) == 0
    assert f"{len(rows)} of {len(rows)} agree" in capsys.readouterr().out
    monkeypatch.setattr(bs.reference, "relu_grad", lambda dy, x: np.ones(np.shape(dy)))
    assert cli.main(["tour"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_import_leaves_the_slow_things_for_later() -> None:
    code = (
        "import sys, backstroke; print([m for m in ('numpy.ma', 'backstroke.jit.trace', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bs.set_num_threads(0), ValueError, "n is 0; expected 1 to"),
        (lambda: bs.set_num_threads(10**9), ValueError, "expected 1 to"),
        (lambda: bs.set_num_threads(1.5), TypeError, "n is a float"),
        (lambda: bs.set_num_threads(True), TypeError, "n is a bool"),
        (lambda: bs.set_memory_limit(-1), ValueError, "size is -1"),
        (lambda: bs.set_memory_limit("1"), TypeError, "size is a str"),
    ],
)
def test_settings_check_their_arguments(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
