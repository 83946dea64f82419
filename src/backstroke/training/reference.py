"""Losses and optimizer steps in float64, by NumPy alone: the definition, and what the kernels are tested against."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..activation.reference import at_least_float64

Loss = tuple[float, np.ndarray]


def cross_entropy(x: Any, labels: Any) -> Loss:
    """The mean of log(sum_j exp(x_j)) - x_label over all positions, classes along axis 1; and its gradient."""
    x, labels = np.moveaxis(at_least_float64(x), 1, -1), np.asarray(labels)
    shifted = x - x.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    chosen = np.arange(x.shape[-1]) == labels[..., None]
    return float(-log_p[chosen].mean()), np.moveaxis((np.exp(log_p) - chosen) / labels.size, -1, 1)


def mse(x: Any, t: Any) -> Loss:
    """The mean of (x - t)^2; and its gradient."""
    d = at_least_float64(x) - at_least_float64(t)
    return float((d * d).mean()), 2 * d / d.size


def l1(x: Any, t: Any) -> Loss:
    """The mean of |x - t|; and its gradient, 0 where they are equal."""
    d = at_least_float64(x) - at_least_float64(t)
    return float(np.abs(d).mean()), np.sign(d) / d.size


def bce_with_logits(x: Any, t: Any) -> Loss:
    """The mean of -t log(s) - (1 - t) log(1 - s) with s = sigmoid(x); and its gradient."""
    x, t = at_least_float64(x), at_least_float64(t)
    loss = t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
    return float(loss.mean()), (np.exp(-np.logaddexp(0, -x)) - t) / x.size


def sgd(
    p: Any, g: Any, velocity: Any, *, lr: float, momentum: float = 0, weight_decay: float = 0, nesterov: bool = False
) -> tuple[np.ndarray, ...]:
    """(p, velocity) after a step."""
    p, g, velocity = (at_least_float64(a) for a in (p, g, velocity))
    g = g + weight_decay * p
    velocity = momentum * velocity + g
    return p - lr * (g + momentum * velocity if nesterov else velocity), velocity


def adamw(
    p: Any, g: Any, mean: Any, square: Any, *,
    lr: float, step: int, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """(p, mean, square) after the step of that number, counted from 1."""
    p, g, mean, square = (at_least_float64(a) for a in (p, g, mean, square))
    mean = betas[0] * mean + (1 - betas[0]) * g
    square = betas[1] * square + (1 - betas[1]) * g * g
    unbiased = mean / (1 - betas[0] ** step), square / (1 - betas[1] ** step)
    return p - lr * (weight_decay * p + unbiased[0] / (np.sqrt(unbiased[1]) + eps)), mean, square
