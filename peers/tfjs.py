"""TensorFlow.js itself: its CPU backend under Node, installed by npm and bundled with esbuild: `python -m peers.tfjs`.

The folder is TFJS_PEER_DIR, or one in `.venv-peers`, where `make conformance` installs it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backstroke import reference
from backstroke.registry import window_geometry

from . import Calls
from .child import ROOT, Child, PeerError, decode, encode

SOURCE = Path(__file__).parent / "tfjs_child"
BUNDLE = "bundle.cjs"


def run(kernel: str, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
    """The kernel's result; `PeerError` with TensorFlow.js' message where it throws."""
    encoded = {name: encode(x) for name, x in inputs.items()}
    return decode(_child().call({"kernel": kernel, "inputs": encoded, "attributes": dict(attributes)}))


class TensorFlowJs:
    """Its CPU backend, on one thread, for it has no more; timed from here, with a line of JSON there and one back."""

    name = "tensorflow.js"

    def __init__(self) -> None:
        if why := available():
            raise ImportError(why)

    def version(self) -> str:
        return version()

    def threads(self, count: int) -> None:
        """It has one."""

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        spoken = in_its_words(problem, arguments)
        if spoken is None:
            return None
        inputs, attributes = spoken
        encoded = {name: encode(x) for name, x in inputs.items()}
        try:
            _child().call({"kernel": "MaxPoolGrad", "inputs": encoded, "attributes": attributes, "prepare": True})
        except PeerError:
            return None
        return lambda: _child().call({"again": True}), None


def in_its_words(problem: Any, arguments: list[Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Inputs and attributes of MaxPoolGrad for a problem, where it has one."""
    options, rank = problem.options, len(problem.shape)
    if (problem.op, options.get("layout"), rank, problem.dtype) != ("max_pool_grad_from_input", "NXC", 4, "float32"):
        return None
    windows = window_geometry(problem.shape, **options)
    if windows.dilations != (1, 1) or options.get("ceil_mode"):
        return None
    dy, x, _ = arguments
    y = reference.max_pool(x, **options).astype(np.float32)
    pad = "same" if options.get("auto_pad") == "same_upper" else [[0, 0], *map(list, windows.pads), [0, 0]]
    attributes = {"filterSize": list(windows.kernel), "strides": list(windows.strides), "pad": pad}
    return {"dy": dy, "input": x, "output": y}, attributes


def available() -> str:
    """'' where it can be used, otherwise why not."""
    if shutil.which("node") is None:
        return "node is not installed"
    return "" if _current(_folder()) else "TensorFlow.js is not installed: python -m peers.tfjs"


def version() -> str:
    """The version of the CPU backend that is installed."""
    package = _folder() / "node_modules" / "@tensorflow" / "tfjs-backend-cpu" / "package.json"
    return str(json.loads(package.read_text())["version"])


def install() -> str:
    """Install it, unless it is there; -> '' or why that cannot be."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    folder = _folder()
    try:
        if not _current(folder):
            _install(folder)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or ""
        return f"TensorFlow.js could not be installed: {error} {said[-300:]}"
    return ""


def _folder() -> Path:
    given = os.environ.get("TFJS_PEER_DIR")
    return Path(given) if given else ROOT / ".venv-peers" / "tfjs"


def _current(folder: Path) -> bool:
    names = [path.name for path in SOURCE.iterdir()]
    same = all((folder / n).exists() and (folder / n).read_bytes() == (SOURCE / n).read_bytes() for n in names)
    return same and (folder / BUNDLE).exists()


def _install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUNDLE).unlink(missing_ok=True)
    for path in SOURCE.iterdir():
        shutil.copy(path, folder)
    esbuild = ["node", "node_modules/esbuild/bin/esbuild", "entry.js", "--bundle", f"--outfile={BUNDLE}"]
    for command in (
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        [*esbuild, "--platform=node", "--main-fields=module,main", "--format=cjs", "--log-level=error"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=300)


@functools.cache
def _child() -> Child:
    return Child(["node", str(_folder() / BUNDLE)])


if __name__ == "__main__":
    sys.exit(install() or 0)
