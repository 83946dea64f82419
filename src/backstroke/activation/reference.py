"""The activation gradients in float64, by NumPy alone: the definition, and what the kernels are tested against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def at_least_float64(a: Any) -> np.ndarray:
    """The array in float64, or in a wider type where it has one: so the tests can ask for more digits."""
    array = np.asarray(a)
    return array.astype(np.promote_types(array.dtype, np.float64))


def _float64(formula: Callable[..., np.ndarray], out: np.ndarray | None, *arrays: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        result = np.asarray(formula(*(at_least_float64(a) for a in arrays)))
    if out is not None:
        out[...] = result
        return out
    return result


def relu_grad(dy: Any, x: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """dy where x > 0, else 0."""
    return _float64(lambda dy, x: np.where(x > 0, dy, 0.0), out, dy, x)


def leaky_relu_grad(dy: Any, y: Any, *, alpha: float = 0.01, out: np.ndarray | None = None) -> np.ndarray:
    """dy where y > 0, else alpha dy."""
    return _float64(lambda dy, y: np.where(y > 0, dy, alpha * dy), out, dy, y)


def sigmoid_grad(dy: Any, y: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """dy y (1 - y)."""
    return _float64(lambda dy, y: dy * (y * (1 - y)), out, dy, y)


def tanh_grad(dy: Any, y: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """dy (1 - y^2), as a product that loses nothing near y = 1."""
    return _float64(lambda dy, y: dy * ((1 - y) * (1 + y)), out, dy, y)


def quick_gelu_grad(dy: Any, x: Any, *, alpha: float = 1.702, out: np.ndarray | None = None) -> np.ndarray:
    """dy s (1 + alpha x (1 - s)) with s = sigmoid(alpha x)."""

    def formula(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        s = 1 / (1 + np.exp(-(alpha * x)))
        return dy * s * (1 + alpha * x * (1 - s))

    return _float64(formula, out, dy, x)


def relu(x: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """x where x > 0, else 0; NaN where x is NaN."""
    return _float64(lambda x: np.where(x > 0, x, np.where(np.isnan(x), x, 0.0)), out, x)


def leaky_relu(x: Any, *, alpha: float = 0.01, out: np.ndarray | None = None) -> np.ndarray:
    """x where x > 0, else alpha x."""
    return _float64(lambda x: np.where(x > 0, x, alpha * x), out, x)


def sigmoid(x: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return _float64(lambda x: 1 / (1 + np.exp(-x)), out, x)


def tanh(x: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """tanh x."""
    return _float64(np.tanh, out, x)


def quick_gelu(x: Any, *, alpha: float = 1.702, out: np.ndarray | None = None) -> np.ndarray:
    """x sigmoid(alpha x)."""
    return _float64(lambda x: x * (1 / (1 + np.exp(-(alpha * x)))), out, x)
