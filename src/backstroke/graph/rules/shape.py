"""Ops that move elements and compute nothing: a gradient moves them back, and sums where one went to many places."""

from __future__ import annotations

import numpy as np

from ..tensors import Op, SizesNeededError, Tensor
from .resize import along_axis
from .rule import Gradients, Rule


def _reshaped(op: Op) -> Gradients:
    return [op.graph.reshape(op.dy, op.graph.shape(op.x[0]))]


def _transpose(op: Op) -> Gradients:
    order = list(op.attr.get("perm") or reversed(range(op.rank(op.x[0]))))
    return [op.graph.transpose(op.dy, [order.index(axis) for axis in range(len(order))])]


def _size(op: Op, x: Tensor, axis: int) -> Tensor:
    """The length of one axis, as a vector of one number."""
    dims = op.dims(x)
    if dims and isinstance(dims[axis], int):
        return op.graph.integers(dims[axis])
    end = axis + 1 if axis != -1 else np.iinfo(np.int64).max
    return op.graph.node("Slice", op.graph.shape(x), *(op.graph.integers(n) for n in (axis, end, 0)))


def _concat(op: Op) -> Gradients:
    axis = op.attr["axis"]
    grads: list[Tensor | None] = []
    start = op.graph.integers(0)
    for i, x in enumerate(op.x):
        end = start + _size(op, x, axis)
        part = op.graph.node("Slice", op.dy, start, end, op.graph.integers(axis)) if op.wants(i) else None
        grads.append(part)
        start = end
    return grads


def _split(op: Op) -> Gradients:
    g = op.graph
    zero = g.constant(0, op.x[0].dtype)
    parts = [dy if dy is not None else g.expand(zero, g.shape(y)) for y, dy in zip(op.y, op.dys, strict=True)]
    return [g.node("Concat", *parts, axis=op.number("axis", 0))]


def _slice(op: Op) -> Gradients:
    return [op.microsoft("SliceGrad", op.dy, op.graph.shape(op.x[0]), *op.x[1:])]


def _gather(op: Op) -> Gradients:
    axis = op.number("axis", 0)
    return [op.microsoft("GatherGrad", op.graph.shape(op.x[0]), op.x[1], op.dy, axis=axis, dtype=op.dy.dtype)]


def _gather_elements(op: Op) -> Gradients:
    shape = op.graph.shape(op.x[0])
    return [op.microsoft("GatherElementsGrad", op.dy, shape, op.x[1], axis=op.number("axis", 0))]


def _pad(op: Op) -> Gradients:
    """Padding by less than nothing cuts off what was added; what was cut off gets zeros."""
    mode, g = op.number("mode", "constant"), op.graph
    if mode == "constant":
        return [g.node("Pad", op.dy, -op.x[1], g.constant(0, op.dy.dtype), *op.x[3:])]
    pads, dx, shape = op.value(1), op.dy, op.static_shape(op.x[0])
    dims = op.dims(op.x[0])
    if pads is None:
        raise SizesNeededError(f"model: {op.node}: its pads are computed; expected constants")
    axes = op.value(3) if op.has(3) else None
    where = [int(axis) % len(dims) for axis in axes.reshape(-1)] if axes is not None else list(range(len(dims)))
    sizes = list(op.dims(op.y[0]))
    for i, axis in enumerate(where):
        before, after = int(pads[i]), int(pads[i + len(where)])
        if before or after:
            if not isinstance(dims[axis], int):
                raise SizesNeededError(f"model: {op.node}: the size of axis {axis} is not known; shape {shape or dims}")
            dx = along_axis(op, dx, sizes, axis, _copies(dims[axis], before, after, mode))
            sizes[axis] = dims[axis]
    return [dx]


def _copies(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Which input each output is a copy of, as a matrix of outputs by inputs."""
    ways = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}
    sources = np.pad(np.arange(size), (max(before, 0), max(after, 0)), ways[mode])  # type: ignore[call-overload]
    sources = sources[max(-before, 0) : len(sources) - max(-after, 0)]
    return np.asarray(np.equal.outer(sources, np.arange(size)), np.float64)


def _expand(op: Op) -> Gradients:
    return [op.graph.sum_to(op.dy, op.graph.shape(op.x[0]))]


RULES = {
    ("", "Flatten"): Rule(_reshaped),
    ("", "Reshape"): Rule(_reshaped, inputs=(0,)),
    ("", "Squeeze"): Rule(_reshaped, inputs=(0,)),
    ("", "Unsqueeze"): Rule(_reshaped, inputs=(0,)),
    ("", "Transpose"): Rule(_transpose),
    ("", "Concat"): Rule(_concat),
    ("", "Split"): Rule(_split, inputs=(0,), outputs=None),
    ("", "Slice"): Rule(_slice, inputs=(0,)),
    ("", "Gather"): Rule(_gather, inputs=(0,)),
    ("", "GatherElements"): Rule(_gather_elements, inputs=(0,)),
    ("", "Pad"): Rule(_pad, inputs=(0,)),
    ("", "Expand"): Rule(_expand, inputs=(0,)),
}
