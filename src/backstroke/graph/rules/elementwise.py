"""Elementwise ops: a formula a line.

`UNARY` tells what dy is multiplied by or turned into, from the input x and the output y; which of the two a formula
uses decides which of them is kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..tensors import MICROSOFT, Op, Tensor, exp, log, power, sigmoid, sign, tanh, where
from .rule import Gradients, Rule

_ROOT_2, _BELL = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
Formula = Callable[[Op, Tensor, Tensor, Tensor], Tensor]


def _leaky_relu(op: Op, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    alpha = op.number("alpha", 0.01)
    if alpha > 0:
        return op.microsoft("LeakyReluGrad", dy, y, alpha=alpha)
    return where(x > 0.0, dy, dy * alpha)  # the sign of y does not tell that of x


def _gelu(op: Op, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if op.number("approximate", "none") == "tanh":
        cubic = x * x * 0.044715
        t = tanh(x * (cubic + 1.0) * (2 * _BELL))
        slope = (1.0 - t * t) * (cubic * 3.0 + 1.0) * (2 * _BELL)
        return dy * 0.5 * (t + 1.0 + x * slope)
    return op.microsoft("GeluGrad", dy, x)


def _hard_sigmoid(op: Op, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return where((y > 0.0) & (y < 1.0), dy * op.number("alpha", 0.2), 0.0)


def _hard_swish(op: Op, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    inside = dy * (x * (1 / 3) + 0.5)
    return where(x > 3.0, dy, where(x > -3.0, inside, 0.0))


def _selu(op: Op, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    alpha = op.number("alpha", 1.67326319217681884765625)
    gamma = op.number("gamma", 1.05070102214813232421875)
    return dy * where(x > 0.0, gamma, y + alpha * gamma)


UNARY: dict[str, Formula] = {
    "Abs": lambda op, dy, x, y: dy * sign(x),
    "Elu": lambda op, dy, x, y: where(x > 0.0, dy, dy * op.number("alpha", 1.0) * exp(x)),
    "Erf": lambda op, dy, x, y: dy * exp(-(x * x)) * (2 / math.sqrt(math.pi)),
    "Exp": lambda op, dy, x, y: dy * y,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": lambda op, dy, x, y: dy,
    "LeakyRelu": _leaky_relu,
    "Log": lambda op, dy, x, y: dy / x,
    "Neg": lambda op, dy, x, y: -dy,
    "Reciprocal": lambda op, dy, x, y: -(dy * y * y),
    "Relu": lambda op, dy, x, y: op.microsoft("ReluGrad", dy, y),
    "Selu": _selu,
    "Sigmoid": lambda op, dy, x, y: op.microsoft("SigmoidGrad", dy, y),
    "Softplus": lambda op, dy, x, y: dy * sigmoid(x),
    "Sqrt": lambda op, dy, x, y: dy * 0.5 / y,
    "Tanh": lambda op, dy, x, y: op.microsoft("TanhGrad", dy, y),
}
_MICROSOFT_UNARY: dict[str, Formula] = {
    "Gelu": lambda op, dy, x, y: op.microsoft("GeluGrad", dy, x),
    "QuickGelu": lambda op, dy, x, y: op.microsoft("QuickGeluGrad", dy, x, alpha=op.number("alpha", 1.702)),
}


def _unary(formula: Formula) -> Rule:
    return Rule(lambda op: [formula(op, op.dy, op.x[0], op.y[0])], inputs=(0,))


def _binary(a: Callable[[Op], Tensor], b: Callable[[Op], Tensor]) -> Rule:
    def gradient(op: Op) -> Gradients:
        return [op.unbroadcast(part(op), i) if op.wants(i) else None for i, part in enumerate((a, b))]

    return Rule(gradient)


def _pow_base(op: Op) -> Tensor:
    x, exponent = op.x
    known = op.value(1)
    if known is not None and known.size == 1:
        p = float(known.reshape(()))
        # x^(p - 1) by multiplication where that is what it is
        return op.dy * p if p == 1 else op.dy * (x * p) if p == 2 else op.dy * (power(x, p - 1) * p)
    e = exponent.to(x.dtype)
    return op.dy * where(e.equals(0.0), 0.0, e * power(x, e - 1.0))


def _pow_exponent(op: Op) -> Tensor:
    x, y = op.x[0], op.y[0]
    return op.dy * where(x > 0.0, y * log(where(x > 0.0, x, 1.0)), 0.0)


BINARY: dict[str, Rule] = {
    "Add": _binary(lambda op: op.dy, lambda op: op.dy),
    "Sub": _binary(lambda op: op.dy, lambda op: -op.dy),
    "Mul": _binary(lambda op: op.dy * op.x[1], lambda op: op.dy * op.x[0]),
    "Div": _binary(lambda op: op.dy / op.x[1], lambda op: -(op.dy * op.y[0] / op.x[1])),
    "Pow": _binary(_pow_base, _pow_exponent),
}


def _total(op: Op) -> Gradients:
    return [op.unbroadcast(op.dy, i) if op.wants(i) else None for i in range(len(op.x))]


def _mean(op: Op) -> Gradients:
    share = op.dy * (1 / len(op.x))
    return [op.unbroadcast(share, i) if op.wants(i) else None for i in range(len(op.x))]


def _extreme(op: Op) -> Gradients:
    """Min and Max: of equal inputs, each gets its share."""
    if len(op.x) == 1:
        return [op.dy]
    hits = [x.equals(op.y[0]).to(op.dy.dtype) for x in op.x]
    total = hits[0]
    for hit in hits[1:]:
        total = total + hit
    share = op.dy / total
    return [op.unbroadcast(share * hit, i) if op.wants(i) else None for i, hit in enumerate(hits)]


def _where(op: Op) -> Gradients:
    first = op.unbroadcast(where(op.x[0], op.dy, 0.0), 1) if op.wants(1) else None
    return [None, first, op.unbroadcast(where(op.x[0], 0.0, op.dy), 2) if op.wants(2) else None]


def _clip(op: Op) -> Gradients:
    """The bounds themselves pass the gradient, as torch has it; the bounds get none."""
    dx, x = op.dy, op.x[0]
    if op.has(1):
        dx = where(x < op.x[1], 0.0, dx)
    if op.has(2):
        dx = where(x > op.x[2], 0.0, dx)
    return [dx]


def _cast(op: Op) -> Gradients:
    return [op.dy.to(op.x[0].dtype)]


def _dropout(op: Op) -> Gradients:
    """As at inference; a training pass has a product with its mask instead (see prepare.py)."""
    return [op.dy]


def _prelu(op: Op) -> Gradients:
    x, slope = op.x
    dx = where(x > 0.0, op.dy, op.dy * slope) if op.wants(0) else None
    return [dx, op.unbroadcast(where(x > 0.0, 0.0, op.dy * x), 1) if op.wants(1) else None]


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): _unary(formula) for name, formula in UNARY.items()},
    **{(MICROSOFT, name): _unary(formula) for name, formula in _MICROSOFT_UNARY.items()},
    **{("", name): rule for name, rule in BINARY.items()},
    ("", "Sum"): Rule(_total),
    ("", "Mean"): Rule(_mean),
    ("", "Min"): Rule(_extreme),
    ("", "Max"): Rule(_extreme),
    ("", "Where"): Rule(_where, inputs=(1, 2)),
    ("", "Clip"): Rule(_clip, inputs=(0,)),
    ("", "Cast"): Rule(_cast),
    ("", "Dropout"): Rule(_dropout, inputs=(0,)),
    ("", "PRelu"): Rule(_prelu),
}

__all__ = ["RULES", "UNARY"]
