"""The commands `grad` and `check` of `backstroke`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    grad = commands.add_parser(
        "grad",
        help="derivatives of an ONNX model",
        description="Derivatives of a frozen ONNX model: as arrays, or as an ONNX model of its own (--graph).",
    )
    grad.set_defaults(run=_grad)
    _model_arguments(grad)
    grad.add_argument("--dy", type=Path, metavar="NPZ", help="gradients that come in, by name (default: ones)")
    grad.add_argument("--out", type=Path, metavar="NPZ", help="where the gradients go, by name")
    grad.add_argument("--graph", type=Path, metavar="ONNX", help="write forward and backward as an ONNX model instead")

    check = commands.add_parser(
        "check",
        help="check every gradient of an ONNX model against finite differences",
        description="Check every gradient of an ONNX model against finite differences in float64, along random ways. "
        "The exit code is 1 where one is wrong.",
    )
    check.set_defaults(run=_check)
    _model_arguments(check)
    check.add_argument("--training", action="store_true", help="with the statistics of the batch, as in training")
    check.add_argument("--directions", type=int, default=1, help="for each gradient (default: 1)")
    check.add_argument("--bound", type=float, default=1e-3, help="how large an error, over the norm, may be (1e-3)")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="the .onnx file")
    parser.add_argument("--of", metavar="NAMES", help="outputs, with commas between (default: all)")
    parser.add_argument("--wrt", metavar="NAMES", help="inputs and weights, with commas between (default: all)")
    parser.add_argument("--feeds", type=Path, metavar="NPZ", help="the inputs by name (default: random numbers)")
    parser.add_argument("--batch-size", type=int, default=2, help="symbolic sizes of random inputs (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--json", action="store_true", help="for machines")


def _grad(chosen: argparse.Namespace) -> int:
    from . import Differentiable, gradient_model

    model, of, wrt = _read(chosen)
    if chosen.graph is not None:
        import onnx

        onnx.save(gradient_model(model, of=of, wrt=wrt), chosen.graph)
        _show(chosen, [{"wrote": str(chosen.graph)}], lambda row: f"wrote {row['wrote']}")
        return 0
    feeds = _feeds(chosen, model)
    plan = Differentiable(model, of=of, wrt=wrt)
    outputs = plan.forward(feeds)
    dy = _arrays("--dy", chosen.dy) if chosen.dy is not None else {name: np.ones_like(outputs[name]) for name in of}
    grads = plan.backward(dy)
    if chosen.out is not None:
        with chosen.out.open("wb") as file:
            np.savez(file, **grads)  # type: ignore[arg-type]
    norms = {name: float(np.linalg.norm(gradient.astype(float))) for name, gradient in grads.items()}
    rows = [{"name": name, "shape": list(grads[name].shape), "norm": norm} for name, norm in norms.items()]
    _show(chosen, rows, lambda row: f"{row['name']:44}{_shape(row['shape']):>20}{row['norm']:14.6g}")
    return 0


def _check(chosen: argparse.Namespace) -> int:
    from .check import check_gradients

    model, of, wrt = _read(chosen)
    feeds = _feeds(chosen, model)
    options = {"of": of, "wrt": wrt, "directions": chosen.directions, "seed": chosen.seed, "training": chosen.training}
    found = check_gradients(model, feeds, **options)
    rows = [
        {"name": c.name, "shape": list(c.shape), "norm": c.norm, "error": c.error, "right": c.error <= chosen.bound}
        for c in found
    ]
    _show(
        chosen,
        rows,
        lambda row: (
            f"{row['name']:44}{_shape(row['shape']):>20}{row['norm']:14.6g}{row['error']:12.2e}"
            f"{'' if row['right'] else '   WRONG'}"
        ),
    )
    wrong = sum(not row["right"] for row in rows)
    if not chosen.json:
        print(f"\n{len(rows) - wrong} of {len(rows)} gradients agree with finite differences in float64.")
    return 1 if wrong else 0


def _read(chosen: argparse.Namespace) -> tuple[Any, list[str], list[str]]:
    try:
        from . import load, trainable
        from .model import FLOATS
    except ImportError as error:
        from ..errors import UnsupportedError

        raise UnsupportedError(f"this needs {error.name}: pip install 'backstroke[train]'") from error
    model = load(chosen.model)
    of = chosen.of.split(",") if chosen.of else [n for n in model.outputs if model.types.get(n, FLOATS[0]) in FLOATS]
    if chosen.wrt:
        return model, of, chosen.wrt.split(",")
    return model, of, trainable(model, of, inputs=True)


def _feeds(chosen: argparse.Namespace, model: Any) -> dict[str, np.ndarray]:
    if chosen.feeds is not None:
        return _arrays("--feeds", chosen.feeds)
    rng, feeds = np.random.default_rng(chosen.seed), {}
    for name in model.inputs:
        dims, dtype = model.shapes.get(name), model.types.get(name, np.dtype(np.float32))
        if dims is None:
            raise ValueError(f"the shape of input {name!r} is not told by the model; give --feeds")
        shape = [d if isinstance(d, int) else chosen.batch_size for d in dims]
        feeds[name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
    return feeds


def _arrays(option: str, path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{option}: {str(path)!r} cannot be read as an .npz file: {error}") from error


def _show(chosen: argparse.Namespace, rows: list[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> None:
    if chosen.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        for row in rows:
            print(line(row))


def _shape(sizes: list[int]) -> str:
    return "x".join(map(str, sizes)) or "one"
