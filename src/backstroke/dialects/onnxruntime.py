"""ONNX Runtime's training kernels under their own names: `run("ReluGrad", [dY, X], {})`.

Names, inputs, attributes and defaults are those of its schemas; the numbers are ours (docs/differences.md tells where
they differ). float32 is what ONNX Runtime's CPU kernels take; here every float type is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import activation, arrays, convolution, pooling, softmax
from ..geometry import integers
from .table import Attribute, Kernel, find

MICROSOFT, ONNX = "com.microsoft", ""


@dataclass(frozen=True)
class Request:
    """What a call asks for besides inputs and attributes."""

    wanted: tuple[bool, ...]
    output_shapes: Sequence[Sequence[int] | None] | None


def run(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = MICROSOFT,
    outputs: int | Sequence[str] = 1,
    output_shapes: Sequence[Sequence[int] | None] | None = None,
) -> list[Any]:
    """Run one node and return its outputs.

    `output_shapes` stands for the static shapes that the model would carry, for ops that need one; its first number,
    the batch, may be None or a name. `outputs` is how many outputs the node has, or their names: of one without a name,
    "", nothing is computed, and it comes back as None.
    """
    kernel = find(_KERNELS, "ONNX Runtime", op, domain)
    wanted = _wanted(outputs)
    if not 1 <= len(wanted) <= kernel.outputs or not any(wanted):
        raise ValueError(f"outputs is {outputs!r}; {op} has 1 to {kernel.outputs}, and one at least must be wanted")
    given = kernel.checked_inputs(inputs)
    return kernel.call(given, kernel.checked_attributes(attributes or {}), Request(wanted, output_shapes))


def _wanted(outputs: Any) -> tuple[bool, ...]:
    if isinstance(outputs, (list, tuple)) and all(isinstance(name, str) for name in outputs):
        return tuple(name != "" for name in outputs)
    if isinstance(outputs, bool) or not isinstance(outputs, int):
        raise TypeError(f"outputs is {outputs!r}; expected a number, or a list of names")
    return (True,) * min(outputs, 99)


def kernels() -> tuple[Kernel, ...]:
    """The table: op, domain, version, inputs, attributes with kinds and defaults, types."""
    return _KERNELS


Call = Callable[[list[Any], dict[str, Any], Request], list[Any]]


def _elementwise(function: Callable[..., Any]) -> Call:
    return lambda inputs, attributes, _: [function(*inputs, **attributes)]


def _along_axis(function: Callable[..., Any]) -> Call:
    return lambda inputs, attributes, _: [function(*inputs, axis=attributes["axis"])]


def _coerced(function: Callable[..., Any]) -> Call:
    """Before opset 13 the axes from `axis` on were one: the array was coerced to two dimensions."""

    def call(inputs: list[Any], attributes: dict[str, Any], _: Request) -> list[Any]:
        dy, y = (arrays.floating(name, x) for name, x in zip(("dY", "Y"), inputs, strict=True))
        arrays.check_alike({"dY": dy, "Y": y})
        axis = arrays.axis_of(attributes["axis"], dy.ndim)
        flat = math.prod(dy.shape[:axis]), math.prod(dy.shape[axis:])
        dx = function(dy.reshape(flat), y.reshape(flat)).reshape(dy.shape)
        return [arrays.give(dx, None, inputs[0])]

    return call


def _max_pool_grad(inputs: list[Any], attributes: dict[str, Any], request: Request) -> list[Any]:
    dy = arrays.floating("dY", inputs[0])
    indices = arrays.array("Indices", inputs[1])
    if indices.dtype != np.int64:
        raise TypeError(f"Indices has type {indices.dtype}; expected int64")
    if indices.shape != dy.shape:
        raise ValueError(f"Indices has shape {indices.shape}; expected dY's, {dy.shape}")
    if not dy.ndim:
        raise ValueError("dY has no axes; expected a batch in front")
    # Only the batch is taken from dY: the model's static shape may leave it open.
    shape = (dy.shape[0], *_static_shape(request)[1:])
    order = attributes["storage_order"]
    if order not in (0, 1):
        raise ValueError(f"attribute storage_order is {order}; expected 0 or 1")
    if order:
        indices = _row_major(indices, shape)
    return [arrays.give(pooling.max_pool_grad(dy, indices, shape), None, inputs[0])]


def _row_major(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The indices that storage_order=1 gave: in each plane of dX the first spatial axis runs fastest.

    Those outside dX stay as they are, to be refused by the name they came with.
    """
    plane, size = math.prod(shape[2:]), math.prod(shape)
    if len(shape) < 4 or size == 0:
        return indices
    inside = (indices >= 0) & (indices < size)
    start, place = np.divmod(np.where(inside, indices, 0), plane)
    turned = np.ravel_multi_index(np.unravel_index(place, shape[2:], order="F"), shape[2:])
    return np.where(inside, start * plane + turned, indices)


def _average_pool_grad(inputs: list[Any], attributes: dict[str, Any], request: Request) -> list[Any]:
    dy = arrays.floating("dY", inputs[0])
    kernel, strides = attributes["kernel_shape"], attributes["strides"]
    rank = len(kernel)
    shape = _static_shape(request)
    if shape[0] is None:
        shape = (*dy.shape[:1], *shape[1:])
    if len(shape) != rank + 2:
        raise ValueError(f"output_shapes[0] is {shape}; expected {rank + 2} numbers for kernel_shape {kernel}")
    pairs, auto_pad = _pads(attributes, rank)
    dx = pooling.avg_pool_grad(
        dy,
        shape,
        kernel,
        strides=strides or 1,
        pads=pairs,
        dilations=attributes["dilations"] or 1,
        auto_pad=auto_pad,
        ceil_mode=bool(attributes["ceil_mode"]),
        count_include_pad=bool(attributes["count_include_pad"]),
    )
    return [arrays.give(dx, None, inputs[0])]


def _conv_grad(inputs: list[Any], attributes: dict[str, Any], request: Request) -> list[Any]:
    _, x, w = (arrays.floating(name, a) for name, a in zip(("dY", "X", "W"), inputs, strict=True))
    rank, kernel = x.ndim - 2, attributes["kernel_shape"]
    if kernel and kernel != w.shape[2:]:
        raise ValueError(f"attribute kernel_shape is {kernel}; expected the size of W of shape {w.shape}")
    pairs, auto_pad = _pads(attributes, rank)
    if attributes["pads"] and auto_pad != "none":
        raise ValueError(f"attributes pads and auto_pad are both given: {attributes['pads']}, {attributes['auto_pad']}")
    grads = convolution.conv_grad(
        inputs[0],
        x,
        w,
        strides=attributes["strides"] or 1,
        pads=pairs,
        dilations=attributes["dilations"] or 1,
        group=attributes["group"],
        auto_pad=auto_pad,
        wrt=tuple(name for name, wanted in zip("xwb", request.wanted, strict=False) if wanted),
    )
    return list(grads[: len(request.wanted)])


def _pads(attributes: dict[str, Any], rank: int) -> tuple[Any, str]:
    """The pads as pairs, and auto_pad as we spell it."""
    pads, auto_pad = attributes["pads"], _AUTO_PADS.get(attributes["auto_pad"])
    if pads and len(pads) != 2 * rank:
        raise ValueError(f"attribute pads is {pads}; expected {2 * rank} numbers, the begins before the ends")
    if auto_pad is None:
        raise ValueError(f"attribute auto_pad is {attributes['auto_pad']!r}; expected one of {', '.join(_AUTO_PADS)}")
    return tuple(zip(pads[:rank], pads[rank:], strict=True)) if pads else 0, auto_pad


def _static_shape(request: Request) -> tuple[Any, ...]:
    """The shape of the one output; its batch is None where the model leaves it open."""
    shapes = request.output_shapes
    if shapes is None or len(shapes) != 1 or not shapes[0]:
        raise ValueError(f"output_shapes is {shapes!r}; expected a list of one shape, that of the forward op's input")
    batch, *others = shapes[0]
    free = batch is None or isinstance(batch, str)
    first = (None,) if free else integers("output_shapes[0][0]", batch, 1, 0)
    return (*first, *integers("output_shapes[0][1:]", others, None, 0))


_AUTO_PADS = {"NOTSET": "none", "SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}
_ALPHA, _QUICK = Attribute("alpha", "FLOAT", 0.01), Attribute("alpha", "FLOAT", 1.702)
_AXIS, _OLD_AXIS = Attribute("axis", "INT", -1), Attribute("axis", "INT", 1)
_X, _Y = ("dY", "X"), ("dY", "Y")
# The gradient builder copies all of the forward node's attributes; those that ONNX Runtime passes over count here.
# An empty list is the default: ones, or zeros for the pads.
_WINDOW = (
    Attribute("strides", "INTS", ()),
    Attribute("pads", "INTS", ()),
    Attribute("auto_pad", "STRING", "NOTSET"),
    Attribute("dilations", "INTS", ()),
)
_POOL = (*_WINDOW, Attribute("ceil_mode", "INT", 0))
_CONV = (Attribute("kernel_shape", "INTS", ()), *_WINDOW, Attribute("group", "INT", 1))
_MAX_POOL = (Attribute("kernel_shape", "INTS", ()), *_POOL, Attribute("storage_order", "INT", 0))
_AVERAGE_POOL = (Attribute("kernel_shape", "INTS"), *_POOL, Attribute("count_include_pad", "INT", 0))

_KERNELS = (
    Kernel("ReluGrad", MICROSOFT, 1, _X, (), _elementwise(activation.relu_grad)),
    Kernel("LeakyReluGrad", MICROSOFT, 1, _Y, (_ALPHA,), _elementwise(activation.leaky_relu_grad), open=True),
    Kernel("SigmoidGrad", MICROSOFT, 1, _Y, (), _elementwise(activation.sigmoid_grad), open=True),
    Kernel("TanhGrad", MICROSOFT, 1, _Y, (), _elementwise(activation.tanh_grad), open=True),
    Kernel("QuickGeluGrad", MICROSOFT, 1, _X, (_QUICK,), _elementwise(activation.quick_gelu_grad), open=True),
    Kernel("SoftmaxGrad", MICROSOFT, 1, _Y, (_OLD_AXIS,), _coerced(softmax.softmax_grad)),
    Kernel("SoftmaxGrad_13", MICROSOFT, 1, _Y, (_AXIS,), _along_axis(softmax.softmax_grad)),
    Kernel("LogSoftmaxGrad", MICROSOFT, 1, _X, (_OLD_AXIS,), _coerced(softmax.log_softmax_grad)),
    Kernel("LogSoftmaxGrad_13", MICROSOFT, 1, _X, (_AXIS,), _along_axis(softmax.log_softmax_grad)),
    Kernel("MaxPoolGrad", ONNX, 9, ("dY", "Indices"), _MAX_POOL, _max_pool_grad, open=True),
    Kernel("AveragePoolGrad", ONNX, 9, ("dY",), _AVERAGE_POOL, _average_pool_grad, open=True),
    Kernel("ConvGrad", MICROSOFT, 1, ("dY", "X", "W"), _CONV, _conv_grad, outputs=3, open=True),
)

__all__ = ["kernels", "run"]
