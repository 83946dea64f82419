"""Convolution and its gradients: 1-D, 2-D and 3-D, channels first or last.

float32, float64, float16 and bfloat16; 16-bit types are summed in float32 and rounded once. Where the CPU multiplies
pairs of bfloat16 (AVX512-BF16), its instruction takes subnormal numbers, those below 1.2e-38, for zeros. x is
[N, C, spatial...] and w [C_out, C / group, spatial...] in layout "NCX"; x is [N, spatial..., C] and
w [spatial..., C / group, C_out] in "NXC".
Arrays may lie in memory in any way. Window arguments are those of `Geometry.of`: strides, pads, dilations, auto_pad.
The bits do not depend on the number of threads.

The functions of the first half are the public ones. Those of the second take `Shapes`, whose windows may say more than
their arguments can; the dialects use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .. import arrays, known
from ..geometry import Geometry, integers
from ..jit.threads import pool
from . import choices, plans
from .shapes import Axes, ConvGrads, Pads, Shapes, shapes_of


def conv(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    strides: Axes = 1,
    pads: Pads = 0,
    dilations: Axes = 1,
    group: int = 1,
    auto_pad: str = "none",
    layout: str = "NCX",
    out: Any = None,
) -> Any:
    """Convolution: `y[m, o] = b[m] + sum(w[m, c, t] * x[c, o * stride - pad + t * dilation])` over c and t.

    Channels are in `group` groups that do not see each other; b, of shape [C_out], may be None. Padding is zeros. What
    is NaN or infinite spoils the sums that it is in. In w it may spoil windows that hang over the padding as well, for
    zero times infinity is NaN.
    """
    arguments = (getattr(w, "shape", None), b is None, strides, pads, dilations, group, auto_pad, layout)
    key = _key("conv", x, arguments)
    call = known.find(key)
    if call is not None:
        y = call.results[0]() if out is None else out
        if call.call(x, w, call.work(), y) if b is None else call.call(x, w, b, call.work(), y):
            return y
    values, weights = arrays.floating("x", x), arrays.floating("w", w)
    shapes = shapes_of(values.shape, weights.shape, strides, pads, dilations, group, auto_pad, layout)
    y = products(x, w, b, shapes, out=out)
    if values.size and weights.size:
        known.learn(key, x, arguments, plans.forward(shapes, values.dtype, b is not None))
    return y


def conv_grad(
    dy: Any,
    x: Any,
    w: Any,
    *,
    strides: Axes = 1,
    pads: Pads = 0,
    dilations: Axes = 1,
    group: int = 1,
    auto_pad: str = "none",
    layout: str = "NCX",
    wrt: str | Sequence[str] = ("x", "w", "b"),
    out: Any = None,
) -> ConvGrads:
    """Gradients of `conv`: `ConvGrads(dx, dw, db)`, each the sum of its partners' products over all windows.

    `wrt` names what is computed, "x", "w" and "b" in any order; the others are None and cost nothing. `out` is an array
    where `wrt` names one, else a tuple in the order of `wrt`; a None in it is made anew. dx is 0 where no window looks.
    What is NaN or infinite in dy, x or w spoils the sums that it is in. What lies outside counts as zeros: in sums at
    the borders zero times infinity may make NaN as well. db sees dy alone.
    """
    arguments = (getattr(w, "shape", None), strides, pads, dilations, group, auto_pad, layout, wrt)
    key = _key("conv_grad", x, arguments)
    found = known.find(key)
    if found is not None and getattr(w, "dtype", None) is x.dtype:
        (call, reads), names, given = found, _names(wrt), {"dy": dy, "x": x, "w": w}
        results = [make() for make in call.results] if out is None else _outs(out, names)
        if call.call(*map(given.__getitem__, reads), call.work(), *results):
            named = dict(zip(names, results, strict=True))
            return ConvGrads(named.get("x"), named.get("w"), named.get("b"))
    values, weights = arrays.floating("x", x), arrays.floating("w", w)
    shapes = shapes_of(values.shape, weights.shape, strides, pads, dilations, group, auto_pad, layout)
    grads = products_grad(dy, x, w, shapes, wrt=wrt, out=out)
    if values.size and weights.size and 0 not in shapes.y:
        known.learn(key, x, arguments, plans.gradients(shapes, values.dtype, _names(wrt)))
    return grads


def plan(
    op: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    strides: Axes = 1,
    pads: Pads = 0,
    dilations: Axes = 1,
    group: int = 1,
    auto_pad: str = "none",
    layout: str = "NCX",
    dtype: Any = "float32",
) -> plans.Plan:
    """How `conv` or `conv_grad` (`op`) would compute arrays of these shapes: which algorithms, and why.

    The answer is made to be printed. Nothing is computed, and there is nothing to say of empty arrays.
    """
    if op not in ("conv", "conv_grad"):
        raise ValueError(f"op: {op!r} given, expected 'conv' or 'conv_grad'")
    kind = _type(dtype)
    x, w = integers("x_shape", x_shape, None, 0), integers("w_shape", w_shape, None, 0)
    shapes = shapes_of(x, w, strides, pads, dilations, group, auto_pad, layout)
    if 0 in shapes.x or 0 in shapes.w:
        raise ValueError(f"x_shape, w_shape: {shapes.x} and {shapes.w} given, expected no empty arrays")
    return plans.explain(shapes, kind)


# ---- by shapes ------------------------------------------------------------------------------------------------------


def products(x: Any, w: Any, b: Any, shapes: Shapes, *, out: Any = None) -> Any:
    """The values of the convolution that `shapes` describes; see `conv`."""
    values, weights = arrays.floating("x", x), arrays.floating("w", w)
    inputs = {"x": values, "w": weights}
    if b is not None:
        inputs["b"] = arrays.floating("b", b)
    _check(inputs, {"x": shapes.x, "w": shapes.w, "b": shapes.b})
    y = arrays.result(out, shapes.y, values.dtype, inputs)
    bias = inputs.get("b")
    if values.size and weights.size:
        plans.forward(shapes, values.dtype, bias is not None).run([*inputs.values()], [y])
    else:  # no sums, or empty ones
        y[...] = 0 if bias is None else _along_channels(bias, shapes)
    return arrays.give(y, out, x)


def products_grad(
    dy: Any, x: Any, w: Any, shapes: Shapes, *, wrt: str | Sequence[str] = ("x", "w", "b"), out: Any = None
) -> ConvGrads:
    """The gradients of `products`; see `conv_grad`. x or w may be None where nothing that `wrt` names needs it."""
    names = _names(wrt)
    gradient = arrays.floating("dy", dy)
    inputs = {"dy": gradient}
    inputs |= {name: arrays.floating(name, a) for name, a in (("x", x), ("w", w)) if a is not None}
    _check(inputs, {"dy": shapes.y, "x": shapes.x, "w": shapes.w})
    outs = _outs(out, names)
    expected = {"x": shapes.x, "w": shapes.w, "b": shapes.b}
    results: dict[str, np.ndarray] = {}
    taken = dict(inputs)
    for position, name in enumerate(names):
        called = f"out[{position}]" if isinstance(out, tuple) else "out"
        results[name] = taken[called] = arrays.result(outs[position], expected[name], gradient.dtype, taken, called)
    _write(inputs, shapes, names, [results[name] for name in names])
    given = {name: arrays.give(results[name], place, dy) for name, place in zip(names, outs, strict=True)}
    return ConvGrads(given.get("x"), given.get("w"), given.get("b"))


def _write(
    inputs: dict[str, np.ndarray], shapes: Shapes, names: tuple[str, ...], results: Sequence[np.ndarray]
) -> None:
    """Write the results that `names` tells. The kernels need not know of empty arrays."""
    dy = inputs["dy"]
    if dy.size and math.prod(shapes.x) and math.prod(shapes.w):
        call, reads = plans.gradients(shapes, dy.dtype, names)
        call.run([inputs[name] for name in reads], results)
        return
    for name, result in zip(names, results, strict=True):
        result[...] = 0
        if name == "b" and dy.size:  # as of a kernel of 1 on one channel
            sizes = shapes.geometry.output_size
            geometry, ones = Geometry.of(sizes, 1, strides=1), (1,) * len(sizes)
            if shapes.layout == "NCX":
                x_shape, w_shape = (dy.shape[0], 1, *sizes), (result.size, 1, *ones)
            else:
                x_shape, w_shape = (dy.shape[0], *sizes, 1), (*ones, 1, result.size)
            call, _ = plans.gradients(Shapes(geometry, 1, shapes.layout, x_shape, w_shape), dy.dtype, ("b",))
            call.run([dy], [result])


def _key(op: str, x: Any, arguments: tuple[Any, ...]) -> known.Key | None:
    """What tells a call from others; how it is computed depends on two settings as well."""
    return known.key(op, x, (arguments, choices.forced(), pool.threads))


def _along_channels(b: np.ndarray, shapes: Shapes) -> np.ndarray:
    return b if shapes.layout == "NXC" else b.reshape(-1, *[1] * shapes.geometry.rank)


# ---- checks ---------------------------------------------------------------------------------------------------------


def _check(inputs: dict[str, np.ndarray], expected: dict[str, tuple[int, ...]]) -> None:
    """All inputs must have the type of the first and the shapes that are expected."""
    (first, head), *_ = inputs.items()
    for name, array in inputs.items():
        if array.dtype != head.dtype:
            raise TypeError(f"{name}: {array.dtype} given, expected {first}'s type, {head.dtype}")
        if array.shape != expected[name]:
            raise ValueError(f"{name}: shape {array.shape} given, expected {expected[name]}")


def _type(dtype: Any) -> np.dtype:
    with suppress(TypeError):
        kind: np.dtype | None = None if dtype is None else np.dtype(dtype)
        if kind is not None and kind in arrays.TYPES:
            return kind
    raise TypeError(f"dtype: {dtype!r} given, expected one of {', '.join(kind.name for kind in arrays.TYPES)}")


def _names(wrt: Any) -> tuple[str, ...]:
    expected = "expected some of 'x', 'w' and 'b', each once"
    if not isinstance(wrt, (str, list, tuple)):
        raise TypeError(f"wrt: {wrt!r} given, {expected}")
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"wrt: {wrt!r} given, {expected}")
    if not names or len(set(names)) < len(names) or not set(names) <= {"x", "w", "b"}:
        raise ValueError(f"wrt: {wrt!r} given, {expected}")
    return names


def _outs(out: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, tuple):
        if len(names) > 1:
            raise TypeError(f"out: {type(out).__name__} given, expected a tuple of {len(names)} arrays, for {names}")
        return (out,)
    if len(out) != len(names):
        raise ValueError(f"out: a tuple of {len(out)} given, expected {len(names)} arrays, for {names}")
    return out


__all__ = ["ConvGrads", "conv", "conv_grad", "plan", "products", "products_grad"]
