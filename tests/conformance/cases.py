"""Random cases for the ops of the dialects: a generator per kind of op, and the table that says which op is of which.

Classes of cases in which a system is known to be wrong are left out here; `differences.py` has an example of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from systems import Case

from backstroke.dialects import onednn as our_onednn
from backstroke.dialects import onnxruntime as our_ort
from backstroke.dialects.table import Kernel
from backstroke.geometry import Geometry, tfjs_pool_2d

EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).smallest_subnormal)
UGLY = np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -3e-45, 1, 1, 2, -3, 0.5])
Generator = Callable[[np.random.Generator, Kernel], Case]
Attributes = dict[str, Any]


def draws(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(v) for v in rng.integers(low, high, count)]


def values(rng: np.random.Generator, shape: Sequence[int], *, ugly: bool = True) -> np.ndarray:
    """Normal numbers, small integers (ties, exact sums), or a mixture with NaN, infinities, zeros and denormals."""
    kind = rng.integers(3)
    numbers = rng.normal(size=shape)
    if kind == 1:
        numbers = rng.integers(-3, 4, shape)
    numbers = np.asarray(numbers, np.float32)
    if kind == 2 and ugly:
        odd = rng.random(shape) < rng.choice([0.05, 0.6])
        numbers = np.where(odd, rng.choice(UGLY, shape), numbers)
    return np.asarray(numbers, np.float32)


# ---- elementwise and softmax: two arrays of one shape ----------------------------------------------------------------


def _sizes(dy: np.ndarray, y: np.ndarray, axes: tuple[int, ...], term: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(term).sum(axes, keepdims=True))


def _exp(y: np.ndarray) -> np.ndarray:
    """exp(y), but never less than what ONNX Runtime's has at the very least, 2^-126 / EPS (differences.py)."""
    return np.asarray(np.maximum(np.exp(y) * (1 + np.abs(np.where(y > -100, y, 0))), 2.0**-126 / EPS))


# What the answer is a sum of, in magnitude: the unit in which two right answers may differ.
SCALES: dict[str, Callable[..., np.ndarray]] = {
    "ReluGrad": lambda dy, x, a, axes: np.zeros_like(dy),
    "LeakyReluGrad": lambda dy, y, a, axes: np.abs(dy) * a.get("alpha", 0.01),
    "SigmoidGrad": lambda dy, y, a, axes: np.abs(dy) * (np.abs(y) + y * y),
    "TanhGrad": lambda dy, y, a, axes: np.abs(dy) * (1 + y * y),
    "QuickGeluGrad": lambda dy, x, a, axes: np.abs(dy) * (1 + np.abs(a.get("alpha", 1.702) * x)),
    "SoftmaxGrad": lambda dy, y, a, axes: np.abs(y) * (np.abs(dy) + _sizes(dy, y, axes, dy * y)),
    "LogSoftmaxGrad": lambda dy, y, a, axes: np.abs(dy) + _exp(y) * _sizes(dy, y, axes, dy),
}


def alike(rng: np.random.Generator, kernel: Kernel) -> Case:
    """ONNX Runtime's elementwise and softmax gradients."""
    name = kernel.op.removesuffix("_13")
    soft, coerced = "Softmax" in name, kernel.op in ("SoftmaxGrad", "LogSoftmaxGrad")
    shape = tuple(draws(rng, 1, 7, int(rng.integers(1 + soft, 4))))
    dy, y = values(rng, shape), values(rng, shape)
    attributes: Attributes = {}
    axes: tuple[int, ...] = ()
    if name in ("SoftmaxGrad", "SigmoidGrad", "TanhGrad"):  # what such an output can be, with corners
        y = np.where(np.isfinite(y), np.clip(y, 0, 1), y).astype(np.float32)
    if name == "LogSoftmaxGrad":
        y = np.minimum(y, 0)
        if np.isinf(dy).any():  # exp(-inf) times an infinite sum: theirs is not 0 there (differences.py)
            y = np.where(np.isneginf(y), np.float32(-3), y)
    if rng.integers(4):
        if "alpha" in [a.name for a in kernel.attributes]:
            attributes["alpha"] = float(np.float32(rng.choice([0.0, 0.01, 0.25, 1.0, 1.702, 3.0])))
        if soft:
            attributes["axis"] = int(rng.integers(-len(shape), len(shape)))
    if soft:
        axis = attributes.get("axis", 1 if coerced else -1) % len(shape)
        axes = tuple(range(axis, len(shape))) if coerced else (axis,)
    length = math.prod(shape[a] for a in axes)

    def bound() -> list[Any]:
        with np.errstate(all="ignore"):
            scale = SCALES[name](dy.astype(np.float64), y.astype(np.float64), attributes, axes)
        return [(8 + length) * (EPS * scale + TINY)]

    return Case([dy, y], attributes, [shape], bound)


# ---- pooling ---------------------------------------------------------------------------------------------------------


def _linear(dy: np.ndarray, taps: int) -> Callable[[], list[Any]]:
    """The bound of a sum of that many terms, none greater than the greatest dy."""
    finite = np.abs(dy[np.isfinite(dy)]).max(initial=0)
    return lambda: [(taps + 2) * EPS * float(finite) + TINY * taps]


def ort_max_pool_grad(rng: np.random.Generator, kernel: Kernel) -> Case:
    shape = tuple(draws(rng, 1, 5, int(rng.integers(1, 6))))
    small = (shape[0], *draws(rng, 1, 5, len(shape) - 1))
    dy, indices = values(rng, small), rng.integers(0, math.prod(shape), small)
    return Case([dy, indices], {}, [shape], _linear(dy, dy.size))


def ort_average_pool_grad(rng: np.random.Generator, kernel: Kernel) -> Case:
    """One and two axes; three only as a cube whose windows do not overlap, which is all that is right there."""
    rank = int(rng.integers(1, 4))
    window, strides, size = draws(rng, 1, 4, rank), draws(rng, 1, 4, rank), draws(rng, 1, 5, rank)
    size = [n + k for n, k in zip(size, window, strict=True)]
    pads, include = [int(rng.integers(0, k)) for k in window * 2], int(rng.integers(2))
    if rank == 3:
        window, size, pads = window[:1] * 3, size[:1] * 3, pads[:1] * 6
        strides = window
    pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
    # A ceil window that hangs over the padding is divided differently from release to release.
    ceil = include == 0 and bool(rng.integers(2))
    rounding: Any = "ceil_inside" if ceil else "floor"
    geometry = Geometry.of(size, window, strides=strides, pads=pairs, rounding=rounding)
    attributes = {"kernel_shape": window, "strides": strides, "pads": pads, "count_include_pad": include}
    attributes |= {"ceil_mode": 1} if ceil else {}
    dy = values(rng, (2, 3, *geometry.output_size))
    return Case([dy], attributes, [(2, 3, *size)], _linear(dy, math.prod(window)))


def _onednn_window(rng: np.random.Generator, dilated: bool) -> tuple[Attributes, tuple[int, ...], tuple[int, ...], int]:
    """Random attributes without exclude_pad, the shapes of source and destination, the taps of a window."""
    rank, layout = int(rng.integers(1, 4)), ("NXC", "NCX")[int(rng.integers(2))]
    auto_pad = ("None", "None", "SAME_UPPER", "SAME_LOWER", "VALID")[int(rng.integers(5))]
    window, strides = draws(rng, 1, 4, rank), draws(rng, 1, 4, rank)
    dilations = draws(rng, 1, 3, rank) if dilated else [1] * rank
    size = [n + (k - 1) * d for n, k, d in zip(draws(rng, 1, 5, rank), window, dilations, strict=True)]
    begin, end = ([int(rng.integers(0, k)) for k in window] for _ in range(2))
    pads = tuple(zip(begin, end, strict=True)) if auto_pad == "None" else 0
    geometry = Geometry.of(size, window, strides=strides, pads=pads, dilations=dilations, auto_pad=auto_pad)
    attributes: Attributes = {"strides": strides, "pads_begin": begin, "pads_end": end, "kernel": window}
    attributes |= {"auto_pad": auto_pad, "data_format": layout} | ({"dilations": dilations} if dilated else {})
    n, channels = draws(rng, 1, 4, 2)

    def shape(size: Sequence[int]) -> tuple[int, ...]:
        return (n, *size, channels) if layout == "NXC" else (n, channels, *size)

    return attributes, shape(size), shape(geometry.output_size), math.prod(window)


def onednn_average(rng: np.random.Generator, kernel: Kernel) -> Case:
    attributes, shape, small, taps = _onednn_window(rng, dilated=False)
    attributes["exclude_pad"] = bool(rng.integers(2))
    if kernel.op == "AvgPool":
        src = values(rng, shape)
        return Case([src], attributes, [small], _linear(src, taps))
    dy = values(rng, small)
    return Case([dy], attributes | {"src_shape": list(shape)}, [shape], _linear(dy, taps))


def onednn_maximum(rng: np.random.Generator, kernel: Kernel) -> Case:
    """Every window has a maximum; where none has, oneDNN answers otherwise (differences.py)."""
    attributes, shape, small, taps = _onednn_window(rng, dilated=True)
    src = values(rng, shape)
    (maxima,) = our_onednn.run("MaxPool", [src], attributes)
    if np.isneginf(maxima).any():
        src = np.where(np.isfinite(src), src, np.float32(7))
        (maxima,) = our_onednn.run("MaxPool", [src], attributes)
        if np.isneginf(maxima).any():  # a dilated window with no tap inside the input
            return onednn_maximum(rng, kernel)
    if kernel.op == "MaxPool":
        return Case([src], attributes, [small], lambda: [0])
    dy = values(rng, small)
    return Case([src, dy], attributes, [shape], _linear(dy, taps))


TFJS_GEOMETRY = ("filterSize", "strides", "pad", "dimRoundingMode")


def _tfjs_attributes(rng: np.random.Generator) -> Attributes:
    def number(low: int, high: int) -> Any:
        return draws(rng, low, high, 2) if rng.integers(3) == 0 else int(rng.integers(low, high))

    pads: list[Any] = ["same", "valid", int(rng.integers(-1, 4)), 0.5, [[1, 1], draws(rng, 0, 3, 2), [0, 2], [3, 3]]]
    attributes = {"filterSize": number(1, 4), "strides": number(1, 4), "pad": pads[int(rng.integers(5))]}
    if rng.integers(8) == 0:
        attributes["strides"] = 1.5
    mode = (None, "floor", "ceil", "round")[int(rng.integers(4))]
    return attributes | ({"dimRoundingMode": mode} if mode else {})


def tfjs_max_pool_grad(rng: np.random.Generator, kernel: Kernel) -> Case:
    """Anything at all, errors too: bit for bit."""
    attributes = _tfjs_attributes(rng)
    x = rng.choice(UGLY, (draws(rng, 1, 3, 1)[0], *draws(rng, 1, 7, 2), draws(rng, 1, 3, 1)[0]))
    if rng.integers(6) == 0:
        x = np.nan_to_num(x, posinf=9, neginf=-9).astype((np.int32, np.bool_)[int(rng.integers(2))])
    try:
        _, (rows, columns) = tfjs_pool_2d(x.shape[1:3], *(attributes.get(n) for n in TFJS_GEOMETRY))
        size = [rows.stop, columns.stop]
    except ValueError:
        size = [1, 1]
    if rng.integers(4) == 0:  # too small or too large
        size = [max(0, n + int(rng.integers(-1, 2))) for n in size]
    dy = rng.choice(np.append(rng.normal(size=8), [math.inf, math.nan, -0.0]), (x.shape[0], *size, x.shape[3]))
    inputs = {"dy": dy.astype(np.float32), "input": x, "output": np.zeros(1, np.float32)}
    return Case(inputs, attributes, [x.shape], lambda: [0])


def tfjs_other(rng: np.random.Generator, kernel: Kernel) -> Case:
    """No padding (averages), square windows without ties (3-D maxima): where theirs is the derivative."""
    axes = 3 if "3D" in kernel.op else 2
    window, strides = draws(rng, 1, 4, axes), draws(rng, 1, 4, axes)
    window[-1] = window[-2]
    size = [n + k for n, k in zip(draws(rng, 0, 5, axes), window, strict=True)]
    pad: Any = "valid"
    if kernel.op == "MaxPool3DGrad" and rng.integers(2):
        pad = ("same", 1)[int(rng.integers(2))]
        strides = [min(s, k) for s, k in zip(strides, window, strict=True)]
    pads: Any = pad if isinstance(pad, int) else 0
    geometry = Geometry.of(size, window, strides=strides, pads=pads, auto_pad="same_upper" if pad == "same" else "none")
    x = rng.permutation(2 * math.prod(size)).reshape(2, *size, 1).astype(np.float32)
    dy = rng.normal(size=(2, *geometry.output_size, 1)).astype(np.float32)
    inputs = {"dy": dy, "input": x} | ({"output": dy} if "Max" in kernel.op else {})
    # Sums of doubles in another order, rounded once; an average is divided before or after.
    return Case(inputs, {"filterSize": window, "strides": strides, "pad": pad}, [x.shape], _linear(dy, 4))


# ---- convolution -----------------------------------------------------------------------------------------------------


def _convolution(
    rng: np.random.Generator, *, grouped_ranks: tuple[int, ...]
) -> tuple[Geometry, int, tuple[int, int, int]]:
    """Windows, group, and (batch, channels in a group, outputs of a group)."""
    rank = int(rng.integers(1, 4))
    window, strides, dilations = draws(rng, 1, 4, rank), draws(rng, 1, 4, rank), draws(rng, 1, 3, rank)
    size = [n + (k - 1) * d for n, k, d in zip(draws(rng, 1, 5, rank), window, dilations, strict=True)]
    pads = [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in window]
    group = int(rng.integers(1, 4)) if rank in grouped_ranks else 1
    n, c, o = draws(rng, 1, 4, 3)
    return Geometry.of(size, window, strides=strides, pads=tuple(pads), dilations=dilations), group, (n, c, o)


def _products(*pairs: tuple[np.ndarray, np.ndarray, int]) -> Callable[[], list[Any]]:
    """The bounds of sums of that many products."""

    def most(a: np.ndarray) -> float:
        return float(np.abs(a[np.isfinite(a)]).max(initial=0))

    return lambda: [(count + 2) * (EPS * most(a) * most(b) + TINY) for a, b, count in pairs]


def ort_conv_grad(rng: np.random.Generator, kernel: Kernel) -> Case:
    """Groups only in 2-D: elsewhere ONNX Runtime writes past its output."""
    g, group, (n, c, o) = _convolution(rng, grouped_ranks=(2,))
    x_shape, w_shape = (n, c * group, *g.input_size), (o * group, c, *g.kernel)
    x, w, dy = (values(rng, s, ugly=False) for s in (x_shape, w_shape, (n, o * group, *g.output_size)))
    attributes: Attributes = {"strides": list(g.strides), "dilations": list(g.dilations), "group": group}
    attributes |= {"kernel_shape": list(g.kernel), "pads": [p[0] for p in g.pads] + [p[1] for p in g.pads]}
    pixels = n * math.prod(g.output_size)
    ones = np.ones(1, np.float32)
    bounds = _products((dy, w, o * math.prod(g.kernel)), (dy, x, pixels), (dy, ones, pixels))
    return Case([dy, x, w], attributes, [x_shape, w_shape, (o * group,)], bounds)


def onednn_convolution(rng: np.random.Generator, kernel: Kernel) -> Case:
    # Groups are refused in the gradient of the input (differences.py).
    g, group, (n, c, o) = _convolution(rng, grouped_ranks=() if "Data" in kernel.op else (1, 2, 3))
    layout, weights = ("NXC", "NCX")[int(rng.integers(2))], ("XIO", "OIX")[int(rng.integers(2))]

    def shape(channels: int, size: Sequence[int]) -> tuple[int, ...]:
        return (n, *size, channels) if layout == "NXC" else (n, channels, *size)

    x_shape, y_shape = shape(c * group, g.input_size), shape(o * group, g.output_size)
    w_shape = (*g.kernel, c, o * group) if weights == "XIO" else (o * group, c, *g.kernel)
    attributes: Attributes = {"strides": list(g.strides), "dilations": list(g.dilations), "groups": group}
    attributes |= {"pads_begin": [p[0] for p in g.pads], "pads_end": [p[1] for p in g.pads]}
    attributes |= {"data_format": layout, "weights_format": weights}
    x, w, dy = (values(rng, s, ugly=False) for s in (x_shape, w_shape, y_shape))
    taps = math.prod(g.kernel)
    if kernel.op == "Convolution":
        return Case([x, w], attributes, [y_shape], _products((x, w, c * taps)))
    if kernel.op == "ConvolutionBackwardData":
        return Case([dy, w], attributes | {"dst_shape": list(x_shape)}, [x_shape], _products((dy, w, o * taps)))
    attributes["weights_shape"] = list(w_shape)
    return Case([x, dy], attributes, [w_shape], _products((x, dy, n * math.prod(g.output_size))))


def generator(system: str, kernel: Kernel) -> Generator:
    """What makes cases for an op; a `LookupError` where nobody has said yet."""
    if kernel.domain == our_ort.MICROSOFT and kernel.op.removesuffix("_13") in SCALES:
        return alike
    return TABLE[system, kernel.op]


TABLE: dict[tuple[str, str], Generator] = {
    ("ONNX Runtime", "MaxPoolGrad"): ort_max_pool_grad,
    ("ONNX Runtime", "AveragePoolGrad"): ort_average_pool_grad,
    ("ONNX Runtime", "ConvGrad"): ort_conv_grad,
    ("oneDNN", "AvgPool"): onednn_average,
    ("oneDNN", "AvgPoolBackward"): onednn_average,
    ("oneDNN", "MaxPool"): onednn_maximum,
    ("oneDNN", "MaxPoolBackward"): onednn_maximum,
    ("oneDNN", "Convolution"): onednn_convolution,
    ("oneDNN", "ConvolutionBackwardData"): onednn_convolution,
    ("oneDNN", "ConvolutionBackwardWeights"): onednn_convolution,
    ("TensorFlow.js", "MaxPoolGrad"): tfjs_max_pool_grad,
    ("TensorFlow.js", "AvgPoolGrad"): tfjs_other,
    ("TensorFlow.js", "MaxPool3DGrad"): tfjs_other,
    ("TensorFlow.js", "AvgPool3DGrad"): tfjs_other,
}
