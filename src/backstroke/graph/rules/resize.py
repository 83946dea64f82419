"""Resize: on each axis a product with a matrix of weights; its gradient is the product with that matrix turned over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..tensors import Op, SizesNeededError, Tensor
from .rule import Gradients, Rule


def _resize(op: Op) -> Gradients:
    x, y = op.dims(op.x[0]), op.dims(op.y[0])
    if not x or len(x) != len(y):
        raise SizesNeededError(f"model: {op.node}: the shapes of its input and output are not known")
    axes, scales = _axes_and_scales(op, len(x))
    dx, sizes = op.dy, list(y)
    for axis, scale in zip(axes, scales, strict=True):
        if scale == 1.0 or (scale is None and x[axis] == y[axis]):
            continue
        if not isinstance(x[axis], int) or not isinstance(y[axis], int):
            raise SizesNeededError(
                f"model: {op.node}: axis {axis} goes from {x[axis]} to {y[axis]}; expected known sizes"
            )
        matrix = weights(op, x[axis], y[axis], scale)
        dx = along_axis(op, dx, sizes, axis, matrix)
        sizes[axis] = x[axis]
    return [dx]


def _axes_and_scales(op: Op, rank: int) -> tuple[list[int], list[float | None]]:
    axes = [axis % rank for axis in op.attr.get("axes", range(rank))]
    scales = op.value(2) if op.has(2) else None
    if scales is not None and scales.size:
        return axes, [float(s) for s in scales.reshape(-1)]
    if op.number("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError(f"model: {op.node}: keep_aspect_ratio_policy has no gradient here; freeze below it")
    return axes, [None] * len(axes)


def weights(op: Op, size: int, length: int, scale: float | None) -> np.ndarray:
    """How much each output (row) takes of each input, on one axis."""
    mode = op.number("mode", "nearest")
    if op.number("antialias", 0) and mode != "nearest" and length < size:
        raise UnsupportedError(f"model: {op.node}: antialias has no gradient here; freeze below it")
    at = _coordinates(op, size, length, length / size if scale is None else scale)
    matrix = np.zeros((length, size))
    rows = np.arange(length)
    if mode == "nearest":
        matrix[rows, np.clip(_nearest(op.number("nearest_mode", "round_prefer_floor"), at), 0, size - 1)] = 1
        return matrix
    if mode != "linear":
        raise UnsupportedError(f"model: {op.node}: mode {mode!r} has no gradient here, only nearest and linear")
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    np.add.at(matrix, (rows, low), 1 - (at - low))
    np.add.at(matrix, (rows, np.minimum(low + 1, size - 1)), at - low)
    return matrix


def _coordinates(op: Op, size: int, length: int, scale: float) -> np.ndarray:
    """Where each output lies among the inputs. Runtimes compute it in float32, which decides ties of `nearest`."""
    kind = op.number("coordinate_transformation_mode", "half_pixel")
    out, one = np.arange(length, dtype=np.float32), np.float32(scale)
    if kind == "pytorch_half_pixel" and length == 1:
        return np.zeros(1)
    if kind in ("half_pixel", "pytorch_half_pixel"):
        at = (out + np.float32(0.5)) / one - np.float32(0.5)
    elif kind == "half_pixel_symmetric":
        centre, adjusted = size / 2, length / (scale * size)
        at = centre * (1 - adjusted) + (out + np.float32(0.5)) / one - np.float32(0.5)
    elif kind == "asymmetric":
        at = out / one
    elif kind == "align_corners":
        at = out * np.float32((size - 1) / (length - 1)) if length > 1 else np.zeros(1, np.float32)
    else:
        raise UnsupportedError(f"model: {op.node}: coordinate_transformation_mode {kind!r} has no gradient here")
    return np.asarray(at, np.float64)


def _nearest(mode: str, at: np.ndarray) -> np.ndarray:
    if mode == "floor":
        found = np.floor(at)
    elif mode == "ceil":
        found = np.ceil(at)
    else:
        found = np.ceil(at - 0.5) if mode == "round_prefer_floor" else np.floor(at + 0.5)
    return np.asarray(found, np.int64)


def along_axis(op: Op, dy: Tensor, sizes: Sequence[Any], axis: int, matrix: np.ndarray) -> Tensor:
    """The gradient of `y = matrix x` along one axis of dy, whose sizes are `sizes` as far as they are known."""
    g, (length, size) = op.graph, matrix.shape
    factor = length // size
    after = sizes[axis + 1 :]
    if not all(isinstance(d, int) for d in after):
        raise SizesNeededError(f"model: {op.node}: the sizes of the axes after {axis} are not known: {tuple(sizes)}")
    inner = math.prod(after)
    if factor * size == length and np.array_equal(matrix, np.repeat(np.eye(size), factor, axis=0)):
        folded = g.reduce_sum(g.reshape(dy, [-1, size, factor, inner]), [2])  # each is repeated: a sum
    elif inner == 1:
        folded = g.node("MatMul", g.reshape(dy, [-1, length]), g.constant(matrix, dy.dtype))
    else:
        turned = np.ascontiguousarray(matrix.T)
        folded = g.node("MatMul", g.constant(turned, dy.dtype), g.reshape(dy, [-1, length, inner]))
    known = [*sizes[:axis], size, *after]
    unknown = [i for i, d in enumerate(known) if not isinstance(d, int)]
    if len(unknown) > 1:
        raise SizesNeededError(f"model: {op.node}: more than one size is not known: {tuple(sizes)}")
    return g.reshape(folded, [d if isinstance(d, int) else -1 for d in known])


RULES = {("", "Resize"): Rule(_resize, inputs=(0,))}
