"""Normalizations. With n(x) = (x - mean) * inv_std and g = dy * scale, all of them are

    dx = inv_std * (g - avg(g) - n(x) * avg(g * n(x)))

where mean, inv_std and avg are over the same elements; with frozen statistics only the first term is there.
n(x) is written where it is used, twice: computing it again is cheaper than keeping it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tensors import MICROSOFT, Op, Tensor, sqrt
from .rule import Gradients, Rule


def _batch_normalization(op: Op) -> Gradients:
    x, dy, g = op.x[0], op.dy, op.graph
    rank = op.rank(x)
    others = [axis for axis in range(rank) if axis != 1]
    training = len(op.y) > 1 and bool(op.number("training_mode", 0))

    def channels(v: Tensor) -> Tensor:
        return g.reshape(v, [1, -1] + [1] * (rank - 2))

    mean, variance = (op.y[1], op.y[2]) if training else (op.x[3], op.x[4])
    inverse = 1.0 / sqrt(variance + op.number("epsilon", 1e-5))
    scaled, at, inv = (channels(v) for v in (op.x[1] * inverse, mean, inverse))
    grads: list[Tensor | None] = [None] * 5
    sum_dy = sum_dyn = None
    if op.wants(2) or (training and op.wants(0)) or op.wants(3):
        sum_dy = g.reduce_sum(dy, others)
    if op.wants(1) or (training and op.wants(0)) or op.wants(4):
        sum_dyn = g.reduce_sum(dy * ((x - at) * inv), others)
    if op.wants(0) and training:
        assert sum_dy is not None
        assert sum_dyn is not None
        count = op.count(x, op.x[1])
        grads[0] = (dy - sum_dy / count - (x - at) * (inv * sum_dyn / count)) * scaled
    elif op.wants(0):
        grads[0] = dy * scaled
    if op.wants(1) and sum_dyn is not None:
        grads[1] = g.reshape(sum_dyn, [-1])
    if op.wants(2) and sum_dy is not None:
        grads[2] = g.reshape(sum_dy, [-1])
    if op.wants(3) and sum_dy is not None:
        grads[3] = -(g.reshape(sum_dy, [-1]) * op.x[1] * inverse)
    if op.wants(4) and sum_dyn is not None:
        grads[4] = g.reshape(sum_dyn, [-1]) * op.x[1] * inverse * inverse * -0.5
    return grads


def _normalized(op: Op, x: Tensor, g: Tensor, mean: Tensor, inverse: Tensor, axes: Sequence[int]) -> Tensor:
    """dx by the formula above."""
    count = op.count(x, mean)
    average = op.graph.reduce_sum(g, axes) / count
    along = op.graph.reduce_sum(g * ((x - mean) * inverse), axes) / count
    return (g - average - (x - mean) * (inverse * along)) * inverse


def _layer_normalization(op: Op) -> Gradients:
    """Mean and inverse deviation are outputs of the forward pass (see prepare.py)."""
    x, dy, mean, inverse = op.x[0], op.dy, op.y[1], op.y[2]
    rank = op.rank(x)
    axes = range(op.number("axis", -1) % rank, rank)
    shape = op.graph.shape(op.x[1])
    dx = _normalized(op, x, dy * op.x[1], mean, inverse, axes) if op.wants(0) else None
    dscale = op.graph.sum_to(dy * ((x - mean) * inverse), shape) if op.wants(1) else None
    dbias = op.graph.sum_to(dy, op.graph.shape(op.x[2])) if op.has(2) and op.wants(2) else None
    return [dx, dscale, dbias]


def _instance_normalization(op: Op) -> Gradients:
    x, dy, g = op.x[0], op.dy, op.graph
    rank = op.rank(x)
    axes, others = range(2, rank), [axis for axis in range(rank) if axis != 1]
    total = g.reduce_sum(x, axes)
    count = op.count(x, total)
    mean = total / count
    inverse = 1.0 / sqrt(g.reduce_sum((x - mean) * (x - mean), axes) / count + op.number("epsilon", 1e-5))
    scale = g.reshape(op.x[1], [1, -1] + [1] * (rank - 2))
    dx = _normalized(op, x, dy * scale, mean, inverse, axes) if op.wants(0) else None
    dscale = g.reshape(g.reduce_sum(dy * ((x - mean) * inverse), others), [-1]) if op.wants(1) else None
    return [dx, dscale, g.reshape(g.reduce_sum(dy, others), [-1]) if op.wants(2) else None]


RULES = {
    ("", "BatchNormalization"): Rule(_batch_normalization, inputs=(0, 1, 2, 3, 4)),
    ("", "LayerNormalization"): Rule(_layer_normalization),
    (MICROSOFT, "LayerNormalization"): Rule(_layer_normalization),
    ("", "InstanceNormalization"): Rule(_instance_normalization),
}
