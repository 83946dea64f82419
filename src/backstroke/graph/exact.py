"""Forward ops in float64, where ONNX' reference implementation has none, or one that is slow or rounds to float32.

They are written to be read, as the twins are, and stand in for the reference implementation's own when gradients are
checked by finite differences.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ..convolution import reference as convolution
from .convolve import shapes
from .tensors import MICROSOFT

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    """The error function."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (_erf(x) if x.size else x,)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + (_erf(x * math.sqrt(0.5)) if x.size else x))


class Gelu(OpRun):
    """x times the normal distribution's function of x, or its approximation by tanh."""

    def _run(self, x: Any, approximate: Any = None) -> tuple[Any, ...]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (_gelu(x),)


class MicrosoftGelu(OpRun):
    """x times the normal distribution's function of x."""

    op_domain = MICROSOFT

    def _run(self, x: Any, **_: Any) -> tuple[Any, ...]:
        return (_gelu(x),)


class QuickGelu(OpRun):
    """x sigmoid(alpha x)."""

    op_domain = MICROSOFT

    def _run(self, x: Any, alpha: float = 1.702) -> tuple[Any, ...]:
        return (x / (1 + np.exp(-(alpha or 1.702) * x)),)


class Conv(OpRun):
    """The convolution's twin."""

    def _run(self, x: Any, w: Any, b: Any = None, **attributes: Any) -> tuple[Any, ...]:
        _, options = shapes(_given(attributes), x.shape, w.shape)
        return (convolution.conv(x, w, b, **options),)


class ConvTranspose(OpRun):
    """What a convolution's gradient is: every x times w is added where its window lies."""

    def _run(self, x: Any, w: Any, b: Any = None, **attributes: Any) -> tuple[Any, ...]:
        given = _given(attributes)
        rank = x.ndim - 2
        ones = [1] * rank
        strides, dilations = given.get("strides", ones), given.get("dilations", ones)
        extra, pads = given.get("output_padding", [0] * rank), list(given.get("pads", [0] * 2 * rank))
        extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        whole = [(n - 1) * s + e + m for n, s, e, m in zip(x.shape[2:], strides, extents, extra, strict=True)]
        auto, told = given.get("auto_pad", "NOTSET"), given.get("output_shape")
        if auto in ("SAME_UPPER", "SAME_LOWER") or told:
            sizes = told or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
            totals = [max(0, all_ - size) for all_, size in zip(whole, sizes, strict=True)]
            begin = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
            pads = begin + [t - b for t, b in zip(totals, begin, strict=True)]
        group = given.get("group", 1)
        y, front = np.zeros((x.shape[0], w.shape[1] * group, *whole)), (slice(None), slice(None))
        for place in np.ndindex(*w.shape[2:]):
            xs = x.reshape(x.shape[0], group, -1, *x.shape[2:])
            ws = w[front + place].reshape(group, -1, w.shape[1])
            terms = np.einsum("ngi...,gio->ngo...", xs, ws).reshape(x.shape[0], -1, *x.shape[2:])
            at = (
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, dilations, x.shape[2:], strides, strict=True)
            )
            y[front + tuple(at)] += terms
        inside = (slice(b, n - e) for b, e, n in zip(pads[:rank], pads[rank:], whole, strict=True))
        y = y[front + tuple(inside)]
        return (y if b is None else y + b.reshape(-1, *ones),)


class BatchNormalization(OpRun):
    """By running statistics, or (with training_mode) by the batch's own."""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **attributes: Any) -> tuple[Any, ...]:
        given = _given(attributes)
        axes, shape = tuple(i for i in range(x.ndim) if i != 1), [1, -1] + [1] * (x.ndim - 2)
        rest: tuple[Any, ...] = ()
        if given.get("training_mode"):
            own, momentum = (x.mean(axes), x.var(axes)), given.get("momentum", 0.9)
            rest = tuple(r * momentum + o * (1 - momentum) for r, o in zip((mean, variance), own, strict=True))
            mean, variance = own
        normal = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + given.get("epsilon", 1e-5))
        return (normal * scale.reshape(shape) + bias.reshape(shape), *rest)


class Pad(OpRun):
    """Padding, also by less than nothing."""

    def _run(self, x: Any, pads: Any = None, value: Any = None, axes: Any = None, mode: Any = None) -> tuple[Any, ...]:
        where = [int(a) % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
        pairs = [(0, 0)] * x.ndim
        for i, axis in enumerate(where):
            pairs[axis] = (int(pads[i]), int(pads[i + len(where)]))
        more = [(max(a, 0), max(b, 0)) for a, b in pairs]
        if mode in (None, "constant"):
            y = np.pad(x, more, constant_values=0 if value is None else value.item())
        else:
            y = np.pad(x, more, mode=mode)
        return (y[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, y.shape, strict=True))],)


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def softmaxes(opset: int) -> list[type]:
    """Softmax and LogSoftmax as that opset has them: before 13, of a matrix."""

    def log_softmax(node: Any, x: Any) -> Any:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
        shape = x.shape
        if opset < 13:
            x, axis = x.reshape(math.prod(shape[: (1 if axis is None else axis) % x.ndim]), -1), 1
        axis = -1 if axis is None else axis
        x = x - x.max(axis=axis, keepdims=True)
        return (x - np.log(np.exp(x).sum(axis=axis, keepdims=True))).reshape(shape)

    class Softmax(OpRun):
        """exp(x) over its sum."""

        def _run(self, x: Any, **_: Any) -> tuple[Any, ...]:
            return (np.exp(log_softmax(self.onnx_node, x)),)

    class LogSoftmax(OpRun):
        """The logarithm of softmax."""

        def _run(self, x: Any, **_: Any) -> tuple[Any, ...]:
            return (log_softmax(self.onnx_node, x),)

    return [Softmax, LogSoftmax]


MicrosoftGelu.__name__ = "Gelu"
OPS: list[type] = [BatchNormalization, Conv, ConvTranspose, Erf, Gelu, MicrosoftGelu, Pad, QuickGelu]
