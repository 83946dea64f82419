"""Pooling in float64, naive and with NumPy only: the specification, and the oracle that the kernels are tested against.

The public functions have the names and arguments of the pooling family; results are float64, indices int64. What
another system asks for and these arguments cannot say goes to the functions below them, which take a `Geometry` and,
for averages, what their divisor counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backstroke.geometry import Counted, Geometry, ceil_rounding, integers, spatial_axes

Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Axes = int | Sequence[int]
Pads = int | Sequence[int] | Sequence[Sequence[int]]

# Infinities that cancel and sums that overflow have their IEEE answers, which are the right ones: nothing to warn of.
_ieee = np.errstate(all="ignore")


def max_pool(
    x: npt.ArrayLike,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    layout: str = "NCX",
    return_indices: bool = False,
    out: Any = None,
) -> Any:
    """The maximum of each window; with return_indices, the pair (maxima, indices of the maxima).

    An index is flat over the whole of x in its own layout. Of equal maxima the first in scan order wins; padding and
    NaN never do. A window in which nothing is greater than -infinity has no maximum: its value is -infinity, its index
    -1. Window arguments as in `Geometry.of`, ceil_mode as in `ceil_rounding`. out: an array, or a pair of them.
    """
    values = _reals("x", x)
    geometry = _geometry("x", values.shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    y, indices = window_max(values, geometry, layout)
    if not return_indices:
        return _deliver(y, out, "out")
    if out is None:
        return y, indices
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out: {type(out).__name__} given, expected a pair of arrays, as return_indices is set")
    _check_out(indices, out[1], "out[1]")
    return _deliver(y, out[0], "out[0]"), _deliver(indices, out[1], "out[1]")


def max_pool_grad(
    dy: npt.ArrayLike, indices: npt.ArrayLike, input_shape: Sequence[int], *, out: Array | None = None
) -> Array:
    """dx, where each dy is added to the element of dx that its index names; dx starts at +0.

    indices: int64, of dy's shape, flat over the whole of dx. They may repeat and may name any element; one outside
    [0, dx.size) is a ValueError. That includes the -1 of a window with no maximum: `max_pool_grad_from_input` takes it.
    """
    gradient, where = _reals("dy", dy), np.asarray(indices)
    shape = integers("input_shape", input_shape, None, 0)
    if where.dtype != np.int64:
        raise TypeError(f"indices: {where.dtype} given, expected int64")
    if where.shape != gradient.shape:
        raise ValueError(f"indices: shape {where.shape} given, expected dy's, {gradient.shape}")
    size = math.prod(shape)
    outside = (where < 0) | (where >= size)
    if outside.any():
        position = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"indices: {where.ravel()[position]} at position {position} is out of range [0, {size})"
            f" for input_shape {shape}"
        )
    return _deliver(_scatter(gradient, where, shape), out, "out")


def max_pool_grad_from_input(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    layout: str = "NCX",
    out: Array | None = None,
) -> Array:
    """dx, where each dy is added to the element of x that is its window's maximum, as `max_pool` finds it.

    The dy of a window with no maximum goes nowhere.
    """
    values = _reals("x", x)
    geometry = _geometry("x", values.shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    return _deliver(window_max_grad(_reals("dy", dy), values, geometry, layout), out, "out")


def avg_pool(
    x: npt.ArrayLike,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCX",
    out: Array | None = None,
) -> Array:
    """The sum of each window's elements, divided by how many there are.

    With count_include_pad the padding is counted too, but not what hangs over its end (ONNX). A window that sees no
    element has average 0.
    """
    values = _reals("x", x)
    geometry = _geometry("x", values.shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    return _deliver(window_mean(values, geometry, _counted(count_include_pad), layout), out, "out")


def avg_pool_grad(
    dy: npt.ArrayLike,
    input_shape: Sequence[int],
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCX",
    out: Array | None = None,
) -> Array:
    """dx, where each dy, divided as `avg_pool` divides its window, is added to every element of the window."""
    shape = integers("input_shape", input_shape, None, 0)
    geometry = _geometry("input_shape", shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    dx = window_mean_grad(_reals("dy", dy), shape, geometry, _counted(count_include_pad), layout)
    return _deliver(dx, out, "out")


def global_avg_pool_grad(
    dy: npt.ArrayLike, input_shape: Sequence[int], *, layout: str = "NCX", out: Array | None = None
) -> Array:
    """dx, where every element of a plane gets the plane's dy divided by the plane's size; dy has spatial size 1."""
    gradient, shape = _reals("dy", dy), integers("input_shape", input_shape, None, 0)
    axes = spatial_axes(shape, layout, "input_shape")
    expected = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    if gradient.shape != expected:
        raise ValueError(f"dy: shape {gradient.shape} given, expected {expected} for input_shape {shape}")
    plane = math.prod(shape[axis] for axis in axes)
    dx = np.broadcast_to(gradient / max(1, plane), shape)  # an empty plane has nothing to divide
    return _deliver(dx.copy(), out, "out")


def window_max(x: Reals, geometry: Geometry, layout: str) -> tuple[Reals, Indices]:
    """The maximum of each window and its flat index in x, -infinity and -1 where there is none. See `max_pool`."""
    values = _by_position(x, layout, "x", geometry.input_size)
    places = _by_position(np.arange(x.size).reshape(x.shape), layout, "x", geometry.input_size)
    y = np.full(geometry.output_size + values.shape[-2:], -np.inf)
    indices = np.full(y.shape, -1, np.int64)
    for o in np.ndindex(geometry.output_size):
        for i in geometry.taps(o):
            greater = values[i] > y[o]
            y[o] = np.where(greater, values[i], y[o])
            indices[o] = np.where(greater, places[i], indices[o])
    return _in_layout(y, layout), _in_layout(indices, layout)


def window_max_grad(dy: Reals, x: Reals, geometry: Geometry, layout: str) -> Reals:
    """dx of `window_max`: each dy is added where its window's maximum was, if it had one."""
    _check_dy(dy, x.shape, geometry, layout)
    _, indices = window_max(x, geometry, layout)
    found = indices >= 0
    return _scatter(dy[found], indices[found], x.shape)


@_ieee
def window_mean(x: Reals, geometry: Geometry, counted: Counted, layout: str) -> Reals:
    """The sum of each window's elements, divided by the divisor that `Geometry.divisors` gives for `counted`."""
    values = _by_position(x, layout, "x", geometry.input_size)
    divisors = geometry.divisors(counted)
    y = np.zeros(geometry.output_size + values.shape[-2:])
    for o in np.ndindex(geometry.output_size):
        for i in geometry.taps(o):
            y[o] += values[i]
        y[o] /= _divisor(divisors, o)
    return _in_layout(y, layout)


@_ieee
def window_mean_grad(
    dy: Reals, input_shape: tuple[int, ...], geometry: Geometry, counted: Counted, layout: str
) -> Reals:
    """dx of `window_mean`: each dy, divided by its window's divisor, is added to every element of the window."""
    _check_dy(dy, input_shape, geometry, layout)
    gradient = _by_position(dy, layout, "dy", geometry.output_size)
    divisors = geometry.divisors(counted)
    dx = np.zeros(geometry.input_size + gradient.shape[-2:])
    for o in np.ndindex(geometry.output_size):
        share = gradient[o] / _divisor(divisors, o)
        for i in geometry.taps(o):
            dx[i] += share
    return _in_layout(dx, layout)


@_ieee
def _scatter(dy: Reals, indices: Indices, shape: tuple[int, ...]) -> Reals:
    """Zeros of that shape, to which each dy has been added at its flat index, in dy's order."""
    dx = np.zeros(shape)
    np.add.at(dx.reshape(-1), indices.reshape(-1), dy.reshape(-1))
    return dx


def _divisor(divisors: tuple[npt.NDArray[np.int64], ...], position: tuple[int, ...]) -> int:
    return math.prod(int(axis[p]) for axis, p in zip(divisors, position, strict=True))


def _geometry(
    name: str,
    shape: tuple[int, ...],
    kernel: Axes,
    strides: Axes | None,
    pads: Pads,
    dilations: Axes,
    auto_pad: str,
    ceil_mode: bool,
    layout: str,
) -> Geometry:
    return Geometry.of(
        [shape[axis] for axis in spatial_axes(shape, layout, name)],
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        rounding=ceil_rounding(ceil_mode),
    )


def _counted(count_include_pad: bool) -> Counted:
    if not isinstance(count_include_pad, (bool, np.bool_)):
        raise TypeError(f"count_include_pad: {count_include_pad!r} given, expected a bool")
    return "padded" if count_include_pad else "valid"


def _reals(name: str, value: npt.ArrayLike) -> Reals:
    array = np.asarray(value)
    if array.dtype.kind in "cOSUMm":
        raise TypeError(f"{name}: {array.dtype} given, expected real numbers")
    return array.astype(np.float64)


def _by_position(array: Array, layout: str, name: str, size: tuple[int, ...]) -> Array:
    """A view with the spatial axes in front, so that a position's tuple picks its N x C values."""
    axes = spatial_axes(array.shape, layout, name)
    given = tuple(array.shape[axis] for axis in axes)
    if given != size:
        raise ValueError(f"{name}: spatial size {given} given, expected {size}")
    return np.moveaxis(array, tuple(axes), tuple(range(len(axes))))


def _in_layout(by_position: npt.NDArray[Any], layout: str) -> Array:
    axes = spatial_axes(by_position.shape, layout, "result")
    return np.ascontiguousarray(np.moveaxis(by_position, tuple(range(len(axes))), tuple(axes)))


def _check_dy(dy: Reals, input_shape: tuple[int, ...], geometry: Geometry, layout: str) -> None:
    sizes = iter(geometry.output_size)
    axes = spatial_axes(input_shape, layout, "input_shape")
    expected = tuple(next(sizes) if axis in axes else size for axis, size in enumerate(input_shape))
    if dy.shape != expected:
        raise ValueError(f"dy: shape {dy.shape} given, expected {expected} for {geometry}")


def _check_out(result: Array, out: Any, name: str) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{name}: {type(out).__name__} given, expected a NumPy array")
    if out.shape != result.shape:
        raise ValueError(f"{name}: shape {out.shape} given, expected {result.shape}")
    if (out.dtype.kind in "biu") != (result.dtype.kind in "biu"):
        raise TypeError(f"{name}: {out.dtype} given, expected to hold {result.dtype}")


@_ieee
def _deliver(result: Array, out: Array | None, name: str) -> Array:
    if out is None:
        return result
    _check_out(result, out, name)
    out[...] = result
    return out
