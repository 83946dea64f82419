"""Gradients of activations: elementwise, any rank.

Every function takes arrays of one shape and one type (float32, float64, float16 or bfloat16), strided and misaligned
ones too, and gives an array of that shape and type. 16-bit types are computed in float32 and rounded once. `out=` may
be the same array as an input. The bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import arrays, memory
from ..jit import compile as compiler
from ..jit.launch import LIMIT, Launcher
from ..jit.threads import pool
from ..jit.types import pointer, scalar
from . import kernels

_empty_like, _empty, _ndarray = np.empty_like, memory.pool.empty, np.ndarray


class _Elementwise:
    """Runs one formula over two arrays (and its scalars)."""

    def __init__(self, formula: Callable[..., Any], second: str, scalars: int = 0) -> None:
        self._formula, self._names, self._scalars = formula, ("dy", second), scalars
        self._launcher = Launcher(scalars=scalars, pieces=kernels.pieces)

    def __call__(self, dy: Any, x: Any, out: Any, *scalars: float) -> Any:
        result = out
        if result is None and type(dy) is _ndarray:
            result = _empty_like(dy) if dy.size <= LIMIT else _empty(dy.shape, dy.dtype)
        if self._launcher.call(dy, x, result, *scalars):
            return result
        return self._check_and_run(dy, x, out, scalars)

    def _check_and_run(self, dy: Any, x: Any, out: Any, scalars: tuple[float, ...]) -> Any:
        inputs = {name: arrays.floating(name, a) for name, a in zip(self._names, (dy, x), strict=True)}
        _, (a, b), result, flat = arrays.arrange(inputs, out)
        large = memory.large_output(inputs=2)
        kernel = self._kernel(a.dtype, stream=a.nbytes > large)
        places = [arrays.address(each) for each in (a, b, flat)]
        pool.run(kernel, kernel.pack(a.size, *places, *scalars), kernels.pieces(a.size))
        self._launcher.fill(a.dtype, kernel, large=large, is_large=a.nbytes > large)
        return arrays.give(result, out, dy)

    def _kernel(self, dtype: np.dtype, *, stream: bool) -> compiler.Function:
        """The kernel for a type; `stream` is for arrays too large for the caches."""
        type = arrays.TYPES[dtype]
        params = [scalar(), *[pointer(type)] * 3, *[scalar(type.compute)] * self._scalars]
        return compiler.kernel(kernels.elementwise, *params, formula=self._formula, type=type, stream=stream)


_relu_grad = _Elementwise(kernels.relu_grad, "x")
_leaky_relu_grad = _Elementwise(kernels.leaky_relu_grad, "y", scalars=1)
_sigmoid_grad = _Elementwise(kernels.sigmoid_grad, "y")
_tanh_grad = _Elementwise(kernels.tanh_grad, "y")
_quick_gelu_grad = _Elementwise(kernels.quick_gelu_grad, "x", scalars=1)


def relu_grad(dy: Any, x: Any, *, out: Any = None) -> Any:
    """Gradient of `y = max(x, 0)`: `dx = dy where x > 0, else 0`.

    x may be the forward input or output: both have the same sign where it matters. Where x is 0 (of either sign) or
    NaN, dx is +0, whatever dy is. NaN and infinities of dy pass where x > 0 and nowhere else.
    """
    return _relu_grad(dy, x, out)


def leaky_relu_grad(dy: Any, y: Any, *, alpha: float = 0.01, out: Any = None) -> Any:
    """Gradient of leaky ReLU, from its *output* y: `dx = dy where y > 0, else alpha * dy`.

    Where y is 0 (of either sign) or NaN, dx is alpha * dy; NaN and infinities of dy pass everywhere. This is ONNX
    Runtime's published formula and is kept for every alpha; for alpha < 0 it is not the derivative, for then the sign
    of y does not tell the sign of x.
    """
    return _leaky_relu_grad(dy, y, out, alpha if type(alpha) is float else arrays.number("alpha", alpha))


def sigmoid_grad(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of the sigmoid, from its output y: `dx = dy * y * (1 - y)`.

    y (1 - y) is rounded once. y is not checked to lie in [0, 1]; infinite y gives dy * -inf, NaN gives NaN.
    """
    return _sigmoid_grad(dy, y, out)


def tanh_grad(dy: Any, y: Any, *, out: Any = None) -> Any:
    """Gradient of tanh, from its output y: `dx = dy * (1 - y * y)`.

    1 - y^2 is rounded once, so nothing is lost near y = 1 and y = -1, where it is exactly 0. y is not checked to lie
    in [-1, 1]; infinite y gives dy * -inf, NaN gives NaN.
    """
    return _tanh_grad(dy, y, out)


def quick_gelu_grad(dy: Any, x: Any, *, alpha: float = 1.702, out: Any = None) -> Any:
    """Gradient of `y = x * sigmoid(alpha * x)`: `dx = dy * s * (1 + alpha * x * (1 - s))`, `s = sigmoid(alpha * x)`.

    At x = 0 it is dy / 2. Infinite x gives NaN, as the formula does (inf * 0); finite x never does for finite dy,
    however large, unless alpha * x or 1.5 * alpha overflows. Infinite dy gives an infinity, or NaN where the derivative
    is 0.
    """
    return _quick_gelu_grad(dy, x, out, alpha if type(alpha) is float else arrays.number("alpha", alpha))


class _Mapped:
    """Runs one formula over one array (and its scalars)."""

    def __init__(self, formula: Callable[..., Any], scalars: int = 0) -> None:
        self._formula, self._scalars = formula, scalars

    def __call__(self, x: Any, out: Any, *scalars: float) -> Any:
        _, (a,), result, flat = arrays.arrange({"x": arrays.floating("x", x)}, out)
        type, stream = arrays.TYPES[a.dtype], a.nbytes > memory.large_output(inputs=1)
        params = [scalar(), *[pointer(type)] * 2, *[scalar(type.compute)] * self._scalars]
        kernel = compiler.kernel(kernels.mapped, *params, formula=self._formula, type=type, stream=stream)
        places = [arrays.address(each) for each in (a, flat)]
        pool.run(kernel, kernel.pack(a.size, *places, *scalars), kernels.pieces(a.size))
        return arrays.give(result, out, x)


_relu, _sigmoid, _tanh = _Mapped(kernels.relu), _Mapped(kernels.sigmoid), _Mapped(kernels.tanh)
_leaky_relu, _quick_gelu = _Mapped(kernels.leaky_relu, scalars=1), _Mapped(kernels.quick_gelu, scalars=1)


def relu(x: Any, *, out: Any = None) -> Any:
    """`x where x > 0, else 0`; NaN stays NaN, and -0 becomes +0."""
    return _relu(x, out)


def leaky_relu(x: Any, *, alpha: float = 0.01, out: Any = None) -> Any:
    """`x where x > 0, else alpha * x`; NaN stays NaN."""
    return _leaky_relu(x, out, arrays.number("alpha", alpha))


def sigmoid(x: Any, *, out: Any = None) -> Any:
    """`1 / (1 + exp(-x))`, without overflow; 0 and 1 at the infinities, NaN stays NaN."""
    return _sigmoid(x, out)


def tanh(x: Any, *, out: Any = None) -> Any:
    """The hyperbolic tangent; -1 and 1 at the infinities, NaN stays NaN."""
    return _tanh(x, out)


def quick_gelu(x: Any, *, alpha: float = 1.702, out: Any = None) -> Any:
    """`x * sigmoid(alpha * x)`; at x = -infinity NaN, as the formula has it."""
    return _quick_gelu(x, out, arrays.number("alpha", alpha))


FORWARD = (relu, leaky_relu, sigmoid, tanh, quick_gelu)

__all__ = ["leaky_relu_grad", "quick_gelu_grad", "relu_grad", "sigmoid_grad", "tanh_grad"]
