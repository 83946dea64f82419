"""The softmax gradients in float64, by NumPy alone: the definition, and what the kernels are tested against."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..activation.reference import at_least_float64


def _given(result: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None:
        return result
    out[...] = result
    return out


def softmax_grad(dy: Any, y: Any, *, axis: int = -1, out: np.ndarray | None = None) -> np.ndarray:
    """y (dy - sum(y dy))."""
    dy, y = at_least_float64(dy), at_least_float64(y)
    with np.errstate(all="ignore"):
        return _given(y * (dy - np.sum(y * dy, axis=axis, keepdims=True)), out)


def log_softmax_grad(dy: Any, y: Any, *, axis: int = -1, out: np.ndarray | None = None) -> np.ndarray:
    """dy - exp(y) sum(dy), where y are the log-probabilities."""
    dy, y = at_least_float64(dy), at_least_float64(y)
    with np.errstate(all="ignore"):
        return _given(dy - np.exp(y) * np.sum(dy, axis=axis, keepdims=True), out)


def softmax(x: Any, *, axis: int = -1, out: np.ndarray | None = None) -> np.ndarray:
    """exp(x) / sum(exp(x)), with the largest x taken off first."""
    return log_softmax(x, axis=axis, out=out, _last=np.exp)


def log_softmax(x: Any, *, axis: int = -1, out: np.ndarray | None = None, _last: Any = np.asarray) -> np.ndarray:
    """x - log(sum(exp(x))), with the largest x taken off first."""
    x = at_least_float64(x)
    with np.errstate(all="ignore"):
        below = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        return _given(_last(below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True))), out)
