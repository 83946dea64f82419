"""oneDNN's pooling and convolution ops of its Graph API under their own names: `run("AvgPoolBackward", [dd], {...})`.

Names, inputs, attributes and defaults are those of its op schemas; the numbers are ours (docs/differences.md tells
where they differ). What makes oneDNN end the process is a `ValueError`, or a `TypeError` where a type is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import arrays, convolution, pooling
from ..convolution.shapes import Shapes, shapes_with
from ..geometry import Counted, Geometry, integers, spatial_axes
from .table import Attribute, Kernel, find

DOMAIN = "oneDNN"
TYPES = ("float32", "bfloat16", "float16")


def run(op: str, inputs: Sequence[Any], attributes: Mapping[str, Any] | None = None) -> list[Any]:
    """Run one op and return its outputs.

    `AvgPoolBackward`, `ConvolutionBackwardData` and `ConvolutionBackwardWeights` take the shape of their result as
    attribute (`src_shape`, `dst_shape`, `weights_shape`) or as their last input, an int32 or int64 array; the input
    wins. Shapes are in the order of `data_format`, "NXC" unless given, those of weights in the order of
    `weights_format`, "XIO" unless given. `auto_pad` other than "None" overrides the pads; its case does not matter.
    Without `exclude_pad` an average divides by the whole kernel, also where that hangs over the padding. Of equal
    maxima the first wins, NaN never does, and the gradient of a window in which nothing is greater than -infinity goes
    nowhere.
    """
    kernel = find(_KERNELS, "oneDNN", op, DOMAIN)
    return kernel.call(kernel.checked_inputs(inputs), kernel.checked_attributes(attributes or {}))


def kernels() -> tuple[Kernel, ...]:
    """The table: op, domain, version, inputs, attributes with kinds and defaults, types."""
    return _KERNELS


def _avg_pool(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    src = _tensor("src", inputs[0])
    geometry, layout = _windows("src", src.shape, attributes)
    return [arrays.give(pooling.window_mean(src, geometry, _counted(attributes), layout), None, inputs[0])]


def _avg_pool_backward(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    diff_dst = _tensor("diff_dst", inputs[0])
    shape = _shape("src_shape", inputs[1], attributes)
    geometry, layout = _windows("src_shape", shape, attributes)
    _require_fit(diff_dst, shape, geometry, layout)
    diff_src = pooling.window_mean_grad(diff_dst, shape, geometry, _counted(attributes), layout)
    return [arrays.give(diff_src, None, inputs[0])]


def _max_pool(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    src = _tensor("src", inputs[0])
    geometry, layout = _windows("src", src.shape, attributes)
    return [arrays.give(pooling.window_max(src, geometry, layout), None, inputs[0])]


def _max_pool_backward(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    src, diff_dst = _tensor("src", inputs[0]), _tensor("diff_dst", inputs[1])
    _require_one_type(src=src, diff_dst=diff_dst)
    geometry, layout = _windows("src", src.shape, attributes)
    _require_fit(diff_dst, src.shape, geometry, layout)
    return [arrays.give(pooling.window_max_grad(diff_dst, src, geometry, layout), None, inputs[0])]


def _convolution(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    src, weights = _tensor("src", inputs[0]), _tensor("weights", inputs[1])
    bias = None if inputs[2] is None else _tensor("bias", inputs[2])
    _require_one_type(src=src, weights=weights, **({} if bias is None else {"bias": bias}))
    shapes, order = _convolved(("src", src.shape), ("weights", weights.shape), attributes)
    if bias is not None and bias.shape != shapes.b:
        raise ValueError(f"bias has shape {bias.shape}; expected {shapes.b}")
    return [arrays.give(convolution.products(src, weights.transpose(order), bias, shapes), None, inputs[0])]


def _convolution_backward_data(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    diff_dst, weights = _tensor("diff_dst", inputs[0]), _tensor("weights", inputs[1])
    _require_one_type(diff_dst=diff_dst, weights=weights)
    shape = _shape("dst_shape", inputs[2], attributes)
    shapes, order = _convolved(("dst_shape", shape), ("weights", weights.shape), attributes)
    _require_shape(diff_dst, shapes.y)
    grads = convolution.products_grad(diff_dst, None, weights.transpose(order), shapes, wrt="x")
    return [arrays.give(grads.dx, None, inputs[0])]


def _convolution_backward_weights(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    src, diff_dst = _tensor("src", inputs[0]), _tensor("diff_dst", inputs[1])
    _require_one_type(src=src, diff_dst=diff_dst)
    shape = _shape("weights_shape", inputs[2], attributes)
    shapes, order = _convolved(("src", src.shape), ("weights_shape", shape), attributes)
    _require_shape(diff_dst, shapes.y)
    dw = convolution.products_grad(diff_dst, src, None, shapes, wrt="w").dw
    back = sorted(range(len(order)), key=order.__getitem__)
    return [arrays.give(np.ascontiguousarray(dw.transpose(back)), None, inputs[0])]


def _convolved(
    src: tuple[str, tuple[int, ...]], weights: tuple[str, tuple[int, ...]], attributes: dict[str, Any]
) -> tuple[Shapes, tuple[int, ...]]:
    """The convolution that the attributes describe on arrays of these names and shapes.

    -> (its shapes as we have them, the axes of weights in our order).
    """
    (name, shape), (weights_name, given) = src, weights
    weights_format, axes = attributes["weights_format"], len(given)
    if weights_format not in ("XIO", "OIX"):
        raise ValueError(f"attribute weights_format is {weights_format!r}; expected 'XIO' or 'OIX'")
    if axes != len(shape):
        raise ValueError(f"{weights_name} has {axes} axes: {given}; expected {len(shape)}, as many as {shape} has")
    if attributes["groups"] < 1:
        raise ValueError(f"attribute groups is {attributes['groups']}; expected 1 or more")
    kernel = given[2:] if weights_format == "OIX" else given[:-2]
    geometry, layout = _windows(name, shape, {**attributes, "kernel": kernel})
    order = tuple(range(axes))
    if (weights_format == "OIX") != (layout == "NCX"):
        order = (axes - 1, axes - 2, *order[:-2]) if layout == "NCX" else (*order[2:], 1, 0)
    ours = tuple(given[axis] for axis in order)
    return shapes_with(
        geometry, shape, ours, group=attributes["groups"], layout=layout, names=(name, weights_name)
    ), order


def _require_one_type(**tensors: np.ndarray) -> None:
    (first, head), *others = tensors.items()
    for name, tensor in others:
        if tensor.dtype != head.dtype:
            raise TypeError(f"{name} has type {tensor.dtype}, {first} has {head.dtype}; expected one type")


def _require_shape(diff_dst: np.ndarray, expected: tuple[int, ...]) -> None:
    if diff_dst.shape != expected:
        raise ValueError(f"diff_dst has shape {diff_dst.shape}; expected {expected}")


def _tensor(name: str, value: Any) -> np.ndarray:
    result = arrays.floating(name, value)
    if result.dtype.name not in TYPES:
        raise TypeError(f"{name} has type {result.dtype}; expected {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    return result


def _shape(name: str, given: Any, attributes: dict[str, Any]) -> tuple[int, ...]:
    """A shape that may come as an input or as an attribute."""
    if given is None:
        if attributes[name] is None:
            raise ValueError(f"{name} is missing; expected it as an attribute or as the last input")
        return integers(name, attributes[name], None, 0)
    shape = arrays.array(name, given)
    if shape.dtype not in (np.int32, np.int64):
        raise TypeError(f"{name} has type {shape.dtype}; expected int32 or int64")
    if shape.ndim != 1:
        raise ValueError(f"{name} is an array of shape {shape.shape}; expected one axis")
    return integers(name, shape.tolist(), None, 0)


def _counted(attributes: dict[str, Any]) -> Counted:
    return "valid" if attributes["exclude_pad"] else "kernel"


def _windows(name: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> tuple[Geometry, str]:
    """The geometry that the attributes describe on a source of that shape, and the layout."""
    layout, rounding = attributes["data_format"], attributes.get("rounding_type", "floor")
    if layout not in ("NXC", "NCX"):
        raise ValueError(f"attribute data_format is {layout!r}; expected 'NXC' or 'NCX'")
    if rounding not in ("floor", "ceil"):
        raise ValueError(f"attribute rounding_type is {rounding!r}; expected 'floor' or 'ceil'")
    size = [shape[axis] for axis in spatial_axes(shape, layout, name)]
    auto_pad, dilations = attributes["auto_pad"].lower(), attributes.get("dilations")
    sides = []
    for side in ("pads_begin", "pads_end"):
        # Next to auto_pad the pads are not read, and oneDNN lets them be empty.
        pads = integers(side, attributes[side], len(size) if auto_pad == "none" or attributes[side] else None, 0)
        sides.append(pads if auto_pad == "none" else (0,) * len(size))
    arguments: dict[str, Any] = {
        "kernel": integers("kernel", attributes["kernel"], len(size), 1),
        "strides": integers("strides", attributes["strides"], len(size), 1),
        "dilations": integers("dilations", 1 if dilations is None else dilations, len(size), 1),
    }
    if auto_pad in ("none", "valid"):
        auto_pad, sides[1] = "none", _reaching_one_window(size, *sides, **arguments)
    geometry = Geometry.of(
        size, **arguments, pads=tuple(zip(*sides, strict=True)), auto_pad=auto_pad, rounding=rounding
    )
    if attributes.get("exclude_pad"):
        _require_elements(geometry)
    return geometry, layout


def _reaching_one_window(
    size: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """The end pads, longer where the window overhangs the padded input by less than a stride.

    oneDNN counts windows with a division that truncates, so that there one window fits nevertheless.
    """
    lacks = [(k - 1) * d + 1 - n - b - e for n, b, e, k, d in zip(size, begin, end, kernel, dilations, strict=True)]
    return tuple(e + lack if 0 < lack < s else e for e, lack, s in zip(end, lacks, strides, strict=True))


def _require_elements(geometry: Geometry) -> None:
    """Where padding is not counted, oneDNN refuses pads that could hold a whole window: nothing to divide by."""
    for axis, (pads, extent) in enumerate(zip(geometry.pads, geometry.extents, strict=True)):
        last = geometry.start(axis, geometry.output_size[axis] - 1)
        if max(pads) >= extent or last >= geometry.input_size[axis]:
            raise ValueError(
                f"with exclude_pad no window may lie in the padding alone: on spatial axis {axis} pads {pads} were"
                f" given for a window of extent {extent} on an input of {geometry.input_size[axis]}"
            )


def _require_fit(diff_dst: np.ndarray, shape: tuple[int, ...], geometry: Geometry, layout: str) -> None:
    expected = list(shape)
    for axis, size in zip(spatial_axes(shape, layout, "src"), geometry.output_size, strict=True):
        expected[axis] = size
    _require_shape(diff_dst, tuple(expected))


_WINDOW = tuple(Attribute(name, "INTS") for name in ("strides", "pads_begin", "pads_end", "kernel"))
_EXCLUDE = Attribute("exclude_pad", "BOOL")
_AUTO_PAD, _FORMAT = Attribute("auto_pad", "STRING", "None"), Attribute("data_format", "STRING", "NXC")
_SHAPE, _DILATIONS = Attribute("src_shape", "INTS", None), Attribute("dilations", "INTS", None)
_ROUNDING = Attribute("rounding_type", "STRING", "floor")

_AVERAGE = (*_WINDOW, _EXCLUDE, _AUTO_PAD, _FORMAT)
_MAXIMUM = (*_WINDOW, _DILATIONS, _AUTO_PAD, _FORMAT)
_CONVOLUTION = (
    *(Attribute(name, "INTS") for name in ("strides", "pads_begin", "pads_end", "dilations")),
    _AUTO_PAD,
    Attribute("groups", "INT", 1),
    _FORMAT,
    Attribute("weights_format", "STRING", "XIO"),
)
# output_padding is there for who computes the shape of the result; here the shape is given.
_DATA = (*_CONVOLUTION, Attribute("dst_shape", "INTS", None), Attribute("output_padding", "INTS", ()))
_WEIGHTS = (*_CONVOLUTION, Attribute("weights_shape", "INTS", None))

_SRC, _DIFF_DST, _BOTH = ("src",), ("diff_dst", "src_shape"), ("src", "diff_dst")


def _row(op: str, inputs: tuple[str, ...], attributes: tuple[Attribute, ...], call: Any) -> Kernel:
    return Kernel(op, DOMAIN, 1, inputs, attributes, call, TYPES, optional_inputs=1)


_KERNELS = (
    Kernel("AvgPool", DOMAIN, 1, _SRC, (*_AVERAGE, _ROUNDING), _avg_pool, TYPES),
    Kernel("AvgPoolBackward", DOMAIN, 1, _DIFF_DST, (*_AVERAGE, _SHAPE), _avg_pool_backward, TYPES, optional_inputs=1),
    Kernel("MaxPool", DOMAIN, 1, _SRC, (*_MAXIMUM, _ROUNDING), _max_pool, TYPES),
    Kernel("MaxPoolBackward", DOMAIN, 1, _BOTH, _MAXIMUM, _max_pool_backward, TYPES),
    _row("Convolution", ("src", "weights", "bias"), _CONVOLUTION, _convolution),
    _row("ConvolutionBackwardData", ("diff_dst", "weights", "dst_shape"), _DATA, _convolution_backward_data),
    _row("ConvolutionBackwardWeights", (*_BOTH, "weights_shape"), _WEIGHTS, _convolution_backward_weights),
)

__all__ = ["kernels", "run"]
