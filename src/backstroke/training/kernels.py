"""Losses with their gradients, and the steps of the optimizers: formulas, and the nests that run them.

The vector is `lanes` neighbouring elements; only cross_entropy looks at neighbours, along the classes of a row, or down
the classes of `lanes` positions side by side. A piece is a stretch of elements, rows or positions; it writes its own
elements and its own partial sums, in float64, which Python adds exactly. So one pass gives the loss, the metric and
the gradient, one pass updates a parameter and the optimizer's state, and the threads share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.types import Type, f64

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value

CHUNK = 16384
UNROLL = 4
STRIP = 4  # vectors of positions in a piece, where the classes do not lie side by side


def pieces(size: int) -> int:
    """How many pieces `size` elements are cut into."""
    return -(-size // CHUNK)


def rows_of_a_piece(classes: Any) -> Any:
    """How many rows of so many classes a piece has."""
    return CHUNK // classes + 1


# ---- losses of one element: (loss, derivative, metric) from the model's output x and the target t ----


def mse(x: Any, t: Any) -> tuple[Any, Any, Any]:
    from ..jit.functions import where

    d = x - t
    return d * d, 2 * d, where(d < 0, -d, d)


def l1(x: Any, t: Any) -> tuple[Any, Any, Any]:
    from ..jit.functions import where

    d = x - t
    sign = where(d > 0, d * 0 + 1, where(d < 0, d * 0 - 1, d))  # 0 at 0, NaN at NaN
    return where(d < 0, -d, d), sign, d * d


def bce_with_logits(x: Any, t: Any) -> tuple[Any, Any, Any]:
    from ..jit.functions import exp, log_1p, where

    # With u = exp(-|x|): log(1 + exp(x)) = max(x, 0) + log(1 + u), sigmoid(x) = (1 or u) / (1 + u). Nothing overflows.
    u = exp(where(x > 0, -x, x))
    right = where((x > 0) ^ (t > 0.5), u * 0, u * 0 + 1)
    return where(x > 0, x, 0.0) - x * t + log_1p(u), where(x > 0, 1.0, u) / (1 + u) - t, right


def elementwise_loss(
    k: Trace, piece: Value, size: Value, x: Pointer, t: Pointer, dx: Pointer, sums: Pointer, scale: Value, *,
    formula: Callable[..., tuple[Any, Any, Any]], type: Type,
) -> None:  # fmt: skip
    first, lanes = piece * CHUNK, k.target.lanes(type)
    totals = [k.var(0.0, f64, lanes) for _ in range(2)]
    for at in k.vectors(first, k.least(first + CHUNK, size), lanes=lanes):
        loss, derivative, metric = formula(x[at], t[at])
        dx.store(at, derivative * scale)
        for total, term in zip(totals, (loss, metric), strict=True):
            total += k.to(f64, _present(k, at, term, 0.0))
    for i, total in enumerate(totals):
        sums[piece * 2 + i] = k.sum(total)


# ---- cross entropy: log(sum_j exp(x_j)) - x_label; its derivative is softmax(x) - [j = label] ----


def cross_entropy_along_rows(
    k: Trace, piece: Value, rows: Value, classes: Value, x: Pointer, labels: Pointer, dx: Pointer, sums: Pointer,
    scale: Value, *, type: Type,
) -> None:  # fmt: skip
    from ..jit.functions import exp, log

    lanes, height = k.target.lanes(type), rows_of_a_piece(classes)
    losses, hits = (k.var(0.0, f64) for _ in range(2))
    first = piece * height
    for row in k.range(first, k.least(first + height, rows)):
        scores, gradients = x.at(row * classes), dx.at(row * classes)
        tops, total = k.var(-float("inf"), type.compute, lanes), k.var(0.0, f64, lanes)
        for at in k.vectors(classes, lanes=lanes):
            tops.set(k.most(_present(k, at, scores[at], -float("inf")), tops))
        top = -k.smallest(-tops)
        for at in k.vectors(classes, lanes=lanes):
            total += k.to(f64, _present(k, at, exp(scores[at] - top), 0.0))
        whole = k.to(type.compute, k.sum(total))
        for at in k.vectors(classes, lanes=lanes):
            gradients.store(at, exp(scores[at] - top) / whole * scale)
        label = labels[row]
        mine = scores[label]
        gradients[label] = (exp(mine - top) / whole - 1) * scale
        losses += k.to(f64, log(whole) + (top - mine))
        hits += k.to(f64, k.where(mine == top, mine * 0 + 1, whole * 0))
    sums[piece * 2], sums[piece * 2 + 1] = losses.read(), hits.read()


def cross_entropy_across(
    k: Trace, piece: Value, classes: Value, inner: Value, x: Pointer, labels: Pointer, dx: Pointer, sums: Pointer,
    scale: Value, *, type: Type,
) -> None:  # fmt: skip
    from ..jit.functions import exp, log

    lanes = k.target.lanes(type)
    width = STRIP * lanes
    side = (inner + (width - 1)) // width
    column, sample = piece % side * width, piece // side
    losses, hits = (k.var(0.0, f64, lanes) for _ in range(2))
    x, dx, labels = x.at(sample * classes * inner), dx.at(sample * classes * inner), labels.at(sample * inner)
    for at in k.vectors(column, k.least(column + width, inner), lanes=lanes):
        label = labels[at]
        top, total = k.var(-float("inf"), type.compute, lanes), k.var(0.0, f64, lanes)
        mine = k.var(0.0, type.compute, lanes)
        for j in k.range(classes):
            score = x.at(j * inner)[at]
            top.set(k.most(score, top))
            mine.set(k.where(label == j, score, mine))
        for j in k.range(classes):
            total += k.to(f64, exp(x.at(j * inner)[at] - top))
        whole = k.to(type.compute, total)
        for j in k.range(classes):
            share = exp(x.at(j * inner)[at] - top) / whole
            dx.at(j * inner).store(at, k.where(label == j, share - 1, share) * scale)
        losses += k.to(f64, _present(k, at, log(whole) + (top - mine), 0.0))
        hit = k.where(mine == top, mine * 0 + 1, whole * 0)
        hits += k.to(f64, _present(k, at, hit, 0.0))
    sums[piece * 2], sums[piece * 2 + 1] = k.sum(losses), k.sum(hits)


def _present(k: Trace, at: Lanes, x: Value, otherwise: float) -> Value:
    """`x`, and `otherwise` in lanes that are not there."""
    return x if at.mask is None else k.where(at.mask, x, otherwise)


# ---- optimizers: (the new parameter, its new states) from parameter, gradient, states and the step's numbers ----


def sgd(p: Any, g: Any, scale: Any, lr: Any, decay: Any) -> tuple[Any, ...]:
    return (p - lr * (scale * g + decay * p),)


def sgd_momentum(p: Any, g: Any, velocity: Any, scale: Any, lr: Any, decay: Any, momentum: Any) -> tuple[Any, ...]:
    velocity = momentum * velocity + (scale * g + decay * p)
    return p - lr * velocity, velocity


def sgd_nesterov(p: Any, g: Any, velocity: Any, scale: Any, lr: Any, decay: Any, momentum: Any) -> tuple[Any, ...]:
    g = scale * g + decay * p
    velocity = momentum * velocity + g
    return p - lr * (g + momentum * velocity), velocity


def adamw(
    p: Any, g: Any, mean: Any, square: Any,
    scale: Any, step: Any, keep: Any, new1: Any, beta2: Any, new2: Any, root: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """keep = 1 - lr weight_decay, new = 1 - beta, step = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t)."""
    from ..jit.functions import sqrt

    g = scale * g
    mean = mean + new1 * (g - mean)
    square = beta2 * square + new2 * (g * g)
    return p * keep - step * mean / (sqrt(square) * root + eps), mean, square


def update(
    k: Trace, piece: Value, table: Pointer, *numbers: Value,
    rule: Callable[..., tuple[Any, ...]], states: int, type: Type,
) -> None:  # fmt: skip
    """A row of the table says of each piece how many elements it has, and where gradient, parameter and states lie."""
    count, g, p, *kept = _row(k, piece, table, states, type)
    for at in k.vectors(count, lanes=k.target.lanes(type), unroll=UNROLL):
        new = rule(p[at], g[at], *(state[at] for state in kept), *numbers)
        for place, value in zip((p, *kept), new, strict=True):
            place.store(at, value)


def sum_of_squares(k: Trace, piece: Value, table: Pointer, sums: Pointer, *, states: int, type: Type) -> None:
    """Of the gradients in the same table."""
    count, x, *_ = _row(k, piece, table, states, type)
    lanes = k.target.lanes(type)
    strands = [k.var(0.0, f64, lanes) for _ in range(UNROLL)]
    for turn, at in enumerate(k.vectors(count, lanes=lanes, unroll=UNROLL)):
        value = k.to(f64, x[at])
        strand = strands[turn % UNROLL]
        strand += value * value
    total, *others = (strand.read() for strand in strands)
    for other in others:
        total = total + other
    sums[piece] = k.sum(total)


def _row(k: Trace, piece: Value, table: Pointer, states: int, type: Type) -> tuple[Any, ...]:
    count, *places = (table[piece * (3 + states) + i] for i in range(3 + states))
    return count, *(k.dereference(place, type) for place in places)
