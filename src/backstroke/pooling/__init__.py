"""Pooling and its gradients: maxima and averages over windows, 1-D, 2-D and 3-D, channels first or last.

float32, float64, float16 and bfloat16; 16-bit types are summed in float32 and rounded once. Window arguments are those
of `Geometry.of`: kernel, strides (None: the kernel's), dilations, pads, auto_pad, ceil_mode. The bits do not depend on
the number of threads.

The functions of the first half are the public ones. Those of the second take a `Geometry` that may say more than their
arguments can; the dialects use them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import arrays, known
from ..geometry import Counted, Geometry, ceil_rounding, in_layout, integers, spatial_axes
from . import plans

Axes = int | Sequence[int]
Pads = int | Sequence[int] | Sequence[Sequence[int]]


def max_pool(
    x: Any,
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
    """The maximum of each window; with `return_indices`, the pair (maxima, indices of the maxima).

    An index is an int64, flat over the whole of x in its own layout. Of equal maxima the first in scan order wins;
    padding and NaN never do. A window in which nothing is greater than -infinity has no maximum: its value is
    -infinity, its index -1. With `return_indices`, `out` is a pair.
    """
    values = arrays.floating("x", x)
    geometry = _geometry("x", values.shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    return window_max(x, geometry, layout, return_indices=return_indices, out=out)


def max_pool_grad(dy: Any, indices: Any, input_shape: Sequence[int], *, out: Any = None) -> Any:
    """Gradient of max pooling from its indices: each dy is added to the element of dx that its index names.

    `indices` are int64, of dy's shape, flat over the whole of dx. They may repeat, and may name any element of dx, in
    another plane too; one outside [0, dx.size) is a ValueError, before anything is written. That includes the -1 of a
    window without a maximum: `max_pool_grad_from_input` gives such a window's gradient to nobody. NaN and infinities in
    dy reach only the element that is named.
    """
    key = known.key("max_pool_grad", dy, (input_shape,))
    plan = known.find(key)
    if plan is not None:
        result = plan.empty() if out is None else out
        if plan.call(dy, indices, plan.work(), result):
            return result
    gradient, places = arrays.floating("dy", dy), arrays.array("indices", indices)
    shape = integers("input_shape", input_shape, None, 0)
    if places.dtype != np.int64:
        raise TypeError(f"indices: {places.dtype} given, expected int64")
    if places.shape != gradient.shape:
        raise ValueError(f"indices: shape {places.shape} given, expected dy's, {gradient.shape}")
    if math.prod(shape) * gradient.itemsize > 2**62:
        raise ValueError(f"input_shape: {shape} given, which is too large for any memory")
    if out is not None or not gradient.size:
        result = arrays.result(out, shape, gradient.dtype, {"dy": gradient, "indices": places})
    if not gradient.size:
        result[...] = 0
        return arrays.give(result, out, dy)
    plan = plans.scatter(gradient.shape, gradient.dtype, shape) if math.prod(shape) else None
    if out is None:
        result = arrays.result(None, shape, gradient.dtype, {})
    if plan is None or not plan.run(gradient, places, plan.work(), result):
        flat, size = places.reshape(-1), math.prod(shape)
        outside = np.flatnonzero((flat < 0) | (flat >= size))
        position = int(outside[0]) if outside.size else 0
        raise ValueError(f"indices: {flat[position]} at position {position} is out of range [0, {size})")
    known.learn(key, dy, (input_shape,), plan)
    return arrays.give(result, out, dy)


def max_pool_grad_from_input(
    dy: Any,
    x: Any,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    layout: str = "NCX",
    out: Any = None,
) -> Any:
    """Gradient of max pooling from its input: each dy is added where its window's maximum is.

    The first maximum in scan order wins ties (zeros of either sign are equal), a NaN is never the maximum, and a window
    with no maximum (all NaN, -infinity or padding) gives its gradient to nobody. NaN and infinities in dy reach only
    the element that won.
    """
    arguments = (kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    key = known.key("max_pool_grad_from_input", x, arguments)
    plan = known.find(key)
    if plan is not None:
        result = plan.empty() if out is None else out
        if plan.call(dy, x, result):
            return result
    values = arrays.floating("x", x)
    geometry = _geometry("x", values.shape, *arguments)
    result = window_max_grad(dy, x, geometry, layout, out=out)
    if result.size and type(dy) is np.ndarray:
        known.learn(key, x, arguments, plans.max_grad(values.shape, values.dtype, geometry, layout, False))
    return result


def avg_pool(
    x: Any,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    pads: Pads = 0,
    dilations: Axes = 1,
    auto_pad: str = "none",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCX",
    out: Any = None,
) -> Any:
    """The average of each window: over its elements in the input, or with `count_include_pad` in input and pads.

    What hangs over the end padding (ceil_mode) never counts. A window that sees nothing has the average 0. A NaN or an
    infinity spoils the windows that see it.
    """
    values = arrays.floating("x", x)
    geometry = _geometry("x", values.shape, kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    return window_mean(x, geometry, _counted(count_include_pad), layout, out=out)


def avg_pool_grad(
    dy: Any,
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
    out: Any = None,
) -> Any:
    """Gradient of average pooling: each dy, divided by what its window's average divides by, is added to its window.

    Windows are added in scan order. A NaN or an infinity in dy spoils its own window and nothing else; elements that no
    window sees get 0.
    """
    windows = (kernel, strides, pads, dilations, auto_pad, ceil_mode, layout)
    arguments = (input_shape, count_include_pad, windows)
    key = known.key("avg_pool_grad", dy, arguments)
    plan = known.find(key)
    if plan is not None:
        result = plan.empty() if out is None else out
        if plan.call(dy, result):
            return result
    shape = integers("input_shape", input_shape, None, 0)
    geometry, counted = _geometry("input_shape", shape, *windows), _counted(count_include_pad)
    result = window_mean_grad(dy, shape, geometry, counted, layout, out=out)
    if result.size and type(dy) is np.ndarray:
        known.learn(key, dy, arguments, plans.mean_grad(shape, dy.dtype, geometry, counted, layout, False))
    return result


def global_avg_pool_grad(dy: Any, input_shape: Sequence[int], *, layout: str = "NCX", out: Any = None) -> Any:
    """Gradient of global average pooling: every element of a plane gets the plane's dy divided by the plane's size.

    dy has the shape of the input with every spatial size 1. A NaN or an infinity in dy fills its own plane.
    """
    key = known.key("global_avg_pool_grad", dy, (input_shape, layout))
    plan = known.find(key)
    if plan is not None:
        result = plan.empty() if out is None else out
        if plan.call(dy, result):
            return result
    shape = integers("input_shape", input_shape, None, 0)
    sizes = tuple(shape[axis] for axis in spatial_axes(shape, layout, "input_shape"))
    whole = tuple(max(1, size) for size in sizes)
    geometry = Geometry(sizes, (1,) * len(sizes), whole, whole, (1,) * len(sizes), ((0, 0),) * len(sizes))
    result = window_mean_grad(dy, shape, geometry, "kernel", layout, out=out)
    if result.size and type(dy) is np.ndarray:
        arguments = (input_shape, layout)
        known.learn(key, dy, arguments, plans.mean_grad(shape, dy.dtype, geometry, "kernel", layout, False))
    return result


def forget_plans() -> None:
    """Make all plans anew, as when what counts as a large output changes."""
    known.forget()


# ---- by geometry ----------------------------------------------------------------------------------------------------


def window_max(x: Any, geometry: Geometry, layout: str, *, return_indices: bool = False, out: Any = None) -> Any:
    """The maxima of the windows of `geometry`; see `max_pool`."""
    values = arrays.floating("x", x)
    _check_sizes("x", values.shape, layout, geometry.input_size)
    shape = in_layout(values.shape, geometry.output_size, layout)
    inputs, one = {"x": values}, not return_indices
    outs = (out, None) if one else _pair(out)
    y = arrays.result(outs[0], shape, values.dtype, inputs, "out" if one else "out[0]")
    indices = None if one else arrays.result(outs[1], shape, np.dtype(np.int64), {**inputs, "out[0]": y}, "out[1]")
    if y.size:
        plan = plans.maxima(values.shape, values.dtype, geometry, layout, not one)
        plan.run(*(a for a in (values, y, indices) if a is not None))
    maxima = arrays.give(y, outs[0], x)
    return maxima if indices is None else (maxima, arrays.give(indices, outs[1], x))


def window_max_grad(
    dy: Any, x: Any, geometry: Geometry, layout: str, *, out: Any = None, double_sums: bool = False
) -> Any:
    """The gradient of `window_max`; see `max_pool_grad_from_input`. `double_sums` sums in float64 and rounds once."""
    gradient, values = arrays.floating("dy", dy), arrays.floating("x", x)
    if gradient.dtype != values.dtype:
        raise TypeError(f"dy: {gradient.dtype} given, expected x's type, {values.dtype}")
    _check_sizes("x", values.shape, layout, geometry.input_size)
    _check_shape("dy", gradient.shape, in_layout(values.shape, geometry.output_size, layout))
    result = arrays.result(out, values.shape, values.dtype, {"dy": gradient, "x": values}, "out")
    if not gradient.size:
        result[...] = 0
    elif result.size:
        plans.max_grad(values.shape, values.dtype, geometry, layout, double_sums).run(gradient, values, result)
    return arrays.give(result, out, dy)


def window_mean(x: Any, geometry: Geometry, counted: Counted, layout: str, *, out: Any = None) -> Any:
    """The averages of the windows of `geometry`, divided by what `counted` says; see `avg_pool`."""
    values = arrays.floating("x", x)
    _check_sizes("x", values.shape, layout, geometry.input_size)
    shape = in_layout(values.shape, geometry.output_size, layout)
    result = arrays.result(out, shape, values.dtype, {"x": values}, "out")
    if result.size:
        plans.mean(values.shape, values.dtype, geometry, counted, layout).run(values, result)
    return arrays.give(result, out, x)


def window_mean_grad(
    dy: Any,
    input_shape: Sequence[int],
    geometry: Geometry,
    counted: Counted,
    layout: str,
    *,
    out: Any = None,
    double_sums: bool = False,
) -> Any:
    """The gradient of `window_mean`; see `avg_pool_grad`. `double_sums` sums in float64 and rounds once."""
    gradient, shape = arrays.floating("dy", dy), integers("input_shape", input_shape, None, 0)
    _check_sizes("input_shape", shape, layout, geometry.input_size)
    _check_shape("dy", gradient.shape, in_layout(shape, geometry.output_size, layout))
    result = arrays.result(out, shape, gradient.dtype, {"dy": gradient}, "out")
    if not gradient.size:
        result[...] = 0
    elif result.size:
        plans.mean_grad(shape, gradient.dtype, geometry, counted, layout, double_sums).run(gradient, result)
    return arrays.give(result, out, dy)


# ---- checks ---------------------------------------------------------------------------------------------------------


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
    sizes = tuple(shape[axis] for axis in spatial_axes(shape, layout, name))
    try:
        return _known_geometry(sizes, kernel, strides, pads, dilations, auto_pad, ceil_mode)
    except TypeError:  # a list cannot be looked up; or something is wrong, and will be said
        build = _known_geometry.__wrapped__
        return build(sizes, kernel, strides, pads, dilations, auto_pad, ceil_mode)


@functools.lru_cache(maxsize=256, typed=True)
def _known_geometry(
    sizes: tuple[int, ...],
    kernel: Axes,
    strides: Axes | None,
    pads: Pads,
    dilations: Axes,
    auto_pad: str,
    ceil_mode: bool,
) -> Geometry:
    return Geometry.of(
        sizes,
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        rounding=ceil_rounding(ceil_mode),
    )


def _counted(count_include_pad: Any) -> Counted:
    if not isinstance(count_include_pad, (bool, np.bool_)):
        raise TypeError(f"count_include_pad: {count_include_pad!r} given, expected a bool")
    return "padded" if count_include_pad else "valid"


def _check_sizes(name: str, shape: tuple[int, ...], layout: str, sizes: tuple[int, ...]) -> None:
    given = tuple(shape[axis] for axis in spatial_axes(shape, layout, name))
    if given != sizes:
        raise ValueError(f"{name}: spatial size {given} given, expected {sizes}")


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"{name}: shape {shape} given, expected {expected}")


def _pair(out: Any) -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out: {type(out).__name__} given, expected a pair of arrays, as return_indices is set")
    return out
