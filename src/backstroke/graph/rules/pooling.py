"""Pooling, and the softmaxes."""

from __future__ import annotations

from ..tensors import MICROSOFT, OWN, Op
from .linear import explicit_pads
from .rule import Gradients, Rule


def _max_pool(op: Op) -> Gradients:
    """By the indices of the maxima, where the forward pass gives them (see prepare.py); else by its input."""
    if len(op.y) < 2 or not op.y[1].name:
        attributes = explicit_pads(op, dict(op.attr), op.attr["kernel_shape"])
        return [op.graph.node("MaxPoolGradFromInput", op.dy, op.x[0], domain=OWN, **attributes)]
    return [op.graph.node("MaxPoolGrad", op.dy, op.y[1], like=op.x[0], **op.attr)]


def _average_pool(op: Op) -> Gradients:
    attributes = explicit_pads(op, dict(op.attr), op.attr["kernel_shape"])
    return [op.graph.node("AveragePoolGrad", op.dy, like=op.x[0], **attributes)]


def _global_average_pool(op: Op) -> Gradients:
    x = op.x[0]
    return [op.graph.expand(op.dy / op.count(x, op.y[0]), op.graph.shape(x))]


def _global_max_pool(op: Op) -> Gradients:
    """Equal maxima share the gradient."""
    x = op.x[0]
    hits = x.equals(op.y[0]).to(x.dtype)
    spatial = range(2, op.rank(x))
    return [hits * (op.dy / op.graph.reduce_sum(hits, spatial))]


def _softmax(op: Op) -> Gradients:
    old = op.opset < 13
    name = ("LogSoftmaxGrad" if op.node.op == "LogSoftmax" else "SoftmaxGrad") + ("" if old else "_13")
    return [op.graph.node(name, op.dy, op.y[0], domain=MICROSOFT, axis=op.number("axis", 1 if old else -1))]


RULES = {
    ("", "MaxPool"): Rule(_max_pool),
    ("", "AveragePool"): Rule(_average_pool),
    ("", "GlobalAveragePool"): Rule(_global_average_pool),
    ("", "GlobalMaxPool"): Rule(_global_max_pool),
    ("", "Softmax"): Rule(_softmax),
    ("", "LogSoftmax"): Rule(_softmax),
}
