"""ONNX Runtime's training kernels under their own names: `run("ReluGrad", [dY, X], {})`.

Names, inputs, attributes and defaults are those of its schemas; the numbers are ours (docs/differences.md tells where
they differ). float32 is what ONNX Runtime's CPU kernels take; here every float type is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import activation, arrays, softmax
from .table import Attribute, Kernel, find

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Request:
    """What a call asks for besides inputs and attributes."""

    outputs: int
    output_shapes: Sequence[Sequence[int] | None] | None


def run(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = MICROSOFT,
    outputs: int = 1,
    output_shapes: Sequence[Sequence[int] | None] | None = None,
) -> list[Any]:
    """Run one node and return its outputs.

    `output_shapes` stands for the static shapes that the model would carry, for ops that need one. `outputs` is how
    many outputs the node has.
    """
    kernel = find(_KERNELS, "ONNX Runtime", op, domain)
    if not isinstance(outputs, int) or not 1 <= outputs <= kernel.outputs:
        raise ValueError(f"outputs is {outputs!r}; {op} has 1 to {kernel.outputs}")
    given = kernel.checked_inputs(inputs)
    return kernel.call(given, kernel.checked_attributes(attributes or {}), Request(outputs, output_shapes))


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


_ALPHA, _QUICK = Attribute("alpha", "FLOAT", 0.01), Attribute("alpha", "FLOAT", 1.702)
_AXIS, _OLD_AXIS = Attribute("axis", "INT", -1), Attribute("axis", "INT", 1)
_X, _Y = ("dY", "X"), ("dY", "Y")

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
)

__all__ = ["kernels", "run"]
