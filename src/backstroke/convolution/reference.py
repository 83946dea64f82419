"""Convolution in float64, naive and with NumPy only: the specification, and the oracle that the kernels are tested
against.

A convolution is a sum over the taps of the kernel. At one tap every window sees one input position, and what happens
there is a product of matrices: with X the inputs [C, P] that the windows see through this tap, one column for each
window, and W its weights [M, C],

    Y += W X          dX += W' dY          dW = dY X'

Windows whose tap lies in the padding are left out. Images and groups are axes in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backstroke.geometry import Geometry

from .shapes import Axes, ConvGrads, Pads, Shapes, shapes_of

Array = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]
Tap = tuple[tuple[Any, ...], tuple[slice, ...], tuple[slice, ...]]

# Infinities that cancel and sums that overflow have their IEEE answers, which are the right ones: nothing to warn of.
_ieee = np.errstate(all="ignore")


def conv(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    strides: Axes = 1,
    pads: Pads = 0,
    dilations: Axes = 1,
    group: int = 1,
    auto_pad: str = "none",
    layout: str = "NCX",
    out: Any = None,
) -> Any:
    """Y[m, o] = B[m] + the sum of W[m, c, t] X[c, o * stride - pad + t * dilation] over channels c and taps t."""
    values, weights = _reals(x), _reals(w)
    shapes = shapes_of(values.shape, weights.shape, strides, pads, dilations, group, auto_pad, layout)
    y = forward(values, weights, None if b is None else _reals(b), shapes)
    return _deliver((y,), out)[0]


def conv_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    w: npt.ArrayLike,
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
    """The gradients of `conv` with respect to what `wrt` names. db is the sum of dy over images and positions."""
    values, weights = _reals(x), _reals(w)
    shapes = shapes_of(values.shape, weights.shape, strides, pads, dilations, group, auto_pad, layout)
    found = dict(zip("xwb", gradients(_reals(dy), values, weights, shapes), strict=True))
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    asked = dict(zip(names, _deliver([found[name] for name in names], out), strict=True))
    return ConvGrads(asked.get("x"), asked.get("w"), asked.get("b"))


@_ieee
def forward(x: Reals, w: Reals, b: Reals | None, shapes: Shapes) -> Reals:
    """The values of the convolution that `shapes` describes."""
    group = shapes.group
    values, weights = _images(x, group, shapes.layout), _weights(w, group, shapes.layout)
    y = np.zeros(_grouped(shapes.y, group, shapes.layout))
    for tap, inputs, outputs in _taps(shapes.geometry):
        seen = values[inputs]
        y[outputs] += _unflat(weights[tap] @ _flat(seen), seen)
    if b is not None:
        y += b.reshape(group, -1, *[1] * shapes.geometry.rank)
    return _array(y, shapes.layout)


@_ieee
def gradients(dy: Reals, x: Reals, w: Reals, shapes: Shapes) -> tuple[Reals, Reals, Reals]:
    """(dx, dw, db) of the convolution that `shapes` describes."""
    if dy.shape != shapes.y:
        raise ValueError(f"dy: shape {dy.shape} given, expected {shapes.y}")
    group, layout = shapes.group, shapes.layout
    values, weights, gradient = _images(x, group, layout), _weights(w, group, layout), _images(dy, group, layout)
    dx, dw = np.zeros(values.shape), np.zeros(weights.shape)
    for tap, inputs, outputs in _taps(shapes.geometry):
        seen, given = values[inputs], gradient[outputs]
        dx[inputs] += _unflat(weights[tap].swapaxes(-1, -2) @ _flat(given), given)
        dw[tap] = (_flat(given) @ _flat(seen).swapaxes(-1, -2)).sum(axis=0)
    channel = 1 if layout == "NCX" else dy.ndim - 1
    db = dy.sum(axis=tuple(axis for axis in range(dy.ndim) if axis != channel))
    return _array(dx, layout), _kernel(dw, layout), db


def _taps(geometry: Geometry) -> Iterator[Tap]:
    """(tap, what all windows see through it, the windows that see something) for each tap, as indices.

    The indices of inputs and windows are slices of [N, G, C, spatial...].
    """
    for tap in np.ndindex(geometry.kernel):
        inputs, outputs = [slice(None)] * 3, [slice(None)] * 3
        for axis, t in enumerate(tap):
            stride, offset = geometry.strides[axis], t * geometry.dilations[axis] - geometry.pads[axis][0]
            first = max(0, -(offset // stride))  # the first window whose tap is at 0 or behind
            last = min(geometry.output_size[axis] - 1, (geometry.input_size[axis] - 1 - offset) // stride)
            count = max(0, last - first + 1)
            start = first * stride + offset if count else 0
            inputs.append(slice(start, start + (count - 1) * stride + 1 if count else start, stride))
            outputs.append(slice(first, first + count))
        yield (..., *tap), tuple(inputs), tuple(outputs)


def _grouped(shape: tuple[int, ...], group: int, layout: str) -> tuple[int, ...]:
    n, channels, sizes = (shape[0], shape[1], shape[2:]) if layout == "NCX" else (shape[0], shape[-1], shape[1:-1])
    return (n, group, channels // group, *sizes)


def _images(array: Reals, group: int, layout: str) -> Reals:
    """[N, G, C, spatial...]"""
    first = array if layout == "NCX" else np.moveaxis(array, -1, 1)
    return first.reshape(_grouped(array.shape, group, layout))


def _array(images: Reals, layout: str) -> Reals:
    merged = images.reshape(images.shape[0], images.shape[1] * images.shape[2], *images.shape[3:])
    return merged if layout == "NCX" else np.ascontiguousarray(np.moveaxis(merged, 1, -1))


def _weights(w: Reals, group: int, layout: str) -> Reals:
    """[G, M, C, spatial...], and the taps picked by an index behind an ellipsis."""
    plain = w if layout == "NCX" else np.moveaxis(w, (-1, -2), (0, 1))
    return plain.reshape(group, plain.shape[0] // group, *plain.shape[1:])


def _kernel(weights: Reals, layout: str) -> Reals:
    plain = weights.reshape(weights.shape[0] * weights.shape[1], *weights.shape[2:])
    return plain if layout == "NCX" else np.ascontiguousarray(np.moveaxis(plain, (0, 1), (-1, -2)))


def _flat(images: Reals) -> Reals:
    """The positions as one axis."""
    return images.reshape(*images.shape[:3], int(np.prod(images.shape[3:])))


def _unflat(product: Reals, like: Reals) -> Reals:
    return product.reshape(*product.shape[:3], *like.shape[3:])


def _reals(value: npt.ArrayLike) -> Reals:
    return np.asarray(value).astype(np.float64)


@_ieee
def _deliver(results: Sequence[Reals], out: Any) -> Sequence[Any]:
    if out is None:
        return results
    outs = out if isinstance(out, tuple) else (out,)
    for result, place in zip(results, outs, strict=True):
        place[...] = result
    return outs
