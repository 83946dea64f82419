"""Reductions: dy is put back on the axes that are gone, and spread over them."""

from __future__ import annotations

from ..tensors import Op, SizesNeededError, Tensor, exp
from .rule import Gradients, Rule


def _axes(op: Op) -> list[int] | None:
    """The axes; None for all."""
    axes = op.attr.get("axes")
    if axes is None and op.has(1):
        known = op.value(1)
        if known is None:
            raise SizesNeededError(f"model: {op.node}: its axes are computed; expected constants")
        axes = [int(axis) for axis in known.reshape(-1)]
    if axes:
        return [int(axis) for axis in axes]
    return [] if op.number("noop_with_empty_axes", 0) else None


def _kept(op: Op, t: Tensor) -> Tensor:
    """A reduced tensor with the axes that are gone put back, of length 1."""
    if op.number("keepdims", 1):
        return t
    axes = _axes(op)
    if axes is None:
        return op.graph.reshape(t, [1] * op.rank(op.x[0]))
    rank = op.rank(op.x[0])
    return op.graph.unsqueeze(t, sorted(axis % rank for axis in axes)) if axes else t


def _sum(op: Op) -> Gradients:
    return [op.graph.expand(_kept(op, op.dy), op.graph.shape(op.x[0]))]


def _mean(op: Op) -> Gradients:
    x = op.x[0]
    return [op.graph.expand(_kept(op, op.dy) / op.count(x, op.y[0]), op.graph.shape(x))]


def _extreme(op: Op) -> Gradients:
    """Equal extremes share the gradient."""
    x, axes = op.x[0], _axes(op)
    hits = x.equals(_kept(op, op.y[0])).to(x.dtype)
    total = op.graph.reduce_sum(hits, range(op.rank(x)) if axes is None else axes)
    return [hits * (_kept(op, op.dy) / total)]


def _sum_square(op: Op) -> Gradients:
    return [op.x[0] * (_kept(op, op.dy) * 2.0)]


def _l2(op: Op) -> Gradients:
    return [op.x[0] * _kept(op, op.dy / op.y[0])]


def _log_sum_exp(op: Op) -> Gradients:
    return [_kept(op, op.dy) * exp(op.x[0] - _kept(op, op.y[0]))]


RULES = {
    ("", "ReduceSum"): Rule(_sum, inputs=(0,)),
    ("", "ReduceMean"): Rule(_mean, inputs=(0,)),
    ("", "ReduceMax"): Rule(_extreme, inputs=(0,)),
    ("", "ReduceMin"): Rule(_extreme, inputs=(0,)),
    ("", "ReduceSumSquare"): Rule(_sum_square, inputs=(0,)),
    ("", "ReduceL2"): Rule(_l2, inputs=(0,)),
    ("", "ReduceLogSumExp"): Rule(_log_sum_exp, inputs=(0,)),
}
