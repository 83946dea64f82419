"""Gradients of softmax and log-softmax, from the forward *output*, along any axis.

Arrays of one shape and one type (float32, float64, float16 or bfloat16) in, an array like them out. Sums run in
float32 (float64 for float64) and 16-bit results are rounded once. `out=` may be the same array as an input. The bits do
not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import arrays, memory
from ..jit import compile as compiler
from ..jit.launch import LIMIT, Launcher
from ..jit.target import current
from ..jit.threads import pool
from ..jit.types import pointer, scalar
from . import kernels

_empty_like, _empty, _ndarray = np.empty_like, memory.pool.empty, np.ndarray


class _Softmax:
    """Runs one gradient along an axis."""

    def __init__(self, term: Callable[..., Any], grad: Callable[..., Any]) -> None:
        self._formulas = {"term": term, "grad": grad}
        self._launcher = Launcher(rows=True, pieces=kernels.row_pieces)

    def __call__(self, dy: Any, y: Any, axis: Any, out: Any) -> Any:
        if type(dy) is _ndarray and (axis == -1 or axis == dy.ndim - 1) and type(axis) is int:
            result = out
            if result is None:
                result = _empty_like(dy) if dy.size <= LIMIT else _empty(dy.shape, dy.dtype)
            if self._launcher.call(dy, y, result):
                return result
        return self._check_and_run(dy, y, axis, out)

    def _check_and_run(self, dy: Any, y: Any, axis: Any, out: Any) -> Any:
        inputs = {"dy": arrays.floating("dy", dy), "y": arrays.floating("y", y)}
        along = arrays.axis_of(axis, inputs["dy"].ndim)
        order, (a, b), result, dense = arrays.arrange(inputs, out)
        if a.size:
            along = order.index(along)
            outer, length, inner = math.prod(a.shape[:along]), a.shape[along], math.prod(a.shape[along + 1 :])
            places = [arrays.address(each) for each in (a, b, dense)]
            large = memory.large_output(inputs=2)
            is_large = a.nbytes > large
            if inner == 1:
                kernel = self._kernel(kernels.along_rows, a.dtype, 2, stream=is_large)
                pool.run(kernel, kernel.pack(outer, length, *places), kernels.row_pieces(outer, length))
                self._launcher.fill(a.dtype, kernel, large=large, is_large=is_large)
            else:
                lanes = current().lanes(arrays.TYPES[a.dtype])
                vector, size = lanes * a.itemsize, a.itemsize
                # Rows of whole vectors are all aligned alike.
                stream = is_large and inner % lanes == 0 and places[2] % size == 0
                lead = places[2] % vector // size if stream else 0
                tile = kernels.tile_of(inner + lead, lanes)
                kernel = self._kernel(kernels.across, a.dtype, 3, tile=tile, stream=stream)
                pieces = outer * kernels.tiles(inner + lead, tile * lanes)
                pool.run(kernel, kernel.pack(length, inner, lead, *places), pieces)
        return arrays.give(result, out, dy)

    def _kernel(self, build: Callable[..., None], dtype: np.dtype, sizes: int, **options: int) -> compiler.Function:
        type = arrays.TYPES[dtype]
        params = [*[scalar()] * sizes, *[pointer(type)] * 3]
        return compiler.kernel(build, *params, **self._formulas, type=type, **options)


_softmax_grad = _Softmax(kernels.softmax_term, kernels.softmax_grad)
_log_softmax_grad = _Softmax(kernels.log_softmax_term, kernels.log_softmax_grad)


def softmax_grad(dy: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Gradient of softmax along `axis`, from its output y: `dx = y * (dy - sum(y * dy))`.

    y is not checked to be probabilities. A NaN or an infinity in y or dy spoils its own slice along the axis and no
    other. An axis of length 0 gives an empty array.
    """
    return _softmax_grad(dy, y, axis, out)


def log_softmax_grad(dy: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """Gradient of log-softmax along `axis`, from its output y, the log-probabilities: `dx = dy - exp(y) * sum(dy)`.

    y = -inf (probability 0) gives dx = dy where the sum is finite. A NaN or an infinity in dy spoils its own slice
    along the axis and no other. An axis of length 0 gives an empty array.
    """
    return _log_softmax_grad(dy, y, axis, out)


class _Forward:
    """Runs softmax or its logarithm along an axis."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        self._formula = formula

    def __call__(self, x: Any, axis: Any, out: Any) -> Any:
        inputs = {"x": arrays.floating("x", x)}
        along = arrays.axis_of(axis, inputs["x"].ndim)
        order, (a,), result, dense = arrays.arrange(inputs, out)
        if a.size:
            along = order.index(along)
            outer, length, inner = math.prod(a.shape[:along]), a.shape[along], math.prod(a.shape[along + 1 :])
            type, places = arrays.TYPES[a.dtype], [arrays.address(each) for each in (a, dense)]
            params = [*[scalar()] * 2, *[pointer(type)] * 2]
            if inner == 1:
                stream = a.nbytes > memory.large_output(inputs=1)
                build = kernels.forward_along_rows
                kernel = compiler.kernel(build, *params, formula=self._formula, type=type, stream=stream)
                pool.run(kernel, kernel.pack(outer, length, *places), kernels.row_pieces(outer, length))
            else:
                kernel = compiler.kernel(kernels.forward_across, *params, formula=self._formula, type=type)
                pool.run(
                    kernel, kernel.pack(length, inner, *places), outer * kernels.tiles(inner, current().lanes(type))
                )
        return arrays.give(result, out, x)


_softmax, _log_softmax = _Forward(kernels.softmax), _Forward(kernels.log_softmax)


def softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
    """`exp(x) / sum(exp(x))` along `axis`, without overflow.

    A NaN or +infinity spoils its own slice along the axis, as do -infinities alone; -infinity among numbers gives 0.
    """
    return _softmax(x, axis, out)


def log_softmax(x: Any, *, axis: int = -1, out: Any = None) -> Any:
    """`x - log(sum(exp(x)))` along `axis`, without overflow; NaN and infinities as in `softmax`."""
    return _log_softmax(x, axis, out)


FORWARD = (softmax, log_softmax)

__all__ = ["log_softmax_grad", "softmax_grad"]
