"""The dialects against the systems themselves, where those are installed: 200 random cases per op, and their errors.

Classes of cases in which a peer is known to be wrong are left out, and one example of each is pinned below: that it is
still wrong, and what we answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import same_bits

from backstroke.dialects import onednn as our_onednn
from backstroke.dialects import onnxruntime as our_ort
from backstroke.dialects import tfjs as our_tfjs
from backstroke.geometry import Geometry, tfjs_pool_2d
from peers import onednn, ort, tfjs
from peers.child import PeerDiedError, PeerError

CASES = 200
EPS = float(np.finfo(np.float32).eps)
Attributes = dict[str, Any]


@pytest.fixture(autouse=True)
def peer(request: pytest.FixtureRequest) -> None:
    """Skip where the peer that the test's name begins with is absent."""
    name = request.node.name.split("_")[1]
    reason = {"onednn": onednn, "ort": ort, "tfjs": tfjs}[name].available()
    if reason:
        pytest.skip(reason)


def close(ours: np.ndarray, theirs: np.ndarray, bound: float, case: Any) -> None:
    """Equal but for the order of sums of numbers below `bound`."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), case
    off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0)
    assert off <= bound * float(ml_dtypes.finfo(ours.dtype).eps), (case, off)


def draws(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(v) for v in rng.integers(low, high, count)]


# oneDNN


def onednn_window(rng: np.random.Generator, dilated: bool) -> tuple[Attributes, tuple[int, ...], Geometry]:
    """Random attributes without exclude_pad, the shape of the source, and its geometry; no window in padding alone."""
    rank, layout = int(rng.integers(1, 4)), ("NXC", "NCX")[int(rng.integers(2))]
    auto_pad = ("None", "None", "SAME_UPPER", "SAME_LOWER", "VALID")[int(rng.integers(5))]
    kernel, strides = draws(rng, 1, 4, rank), draws(rng, 1, 4, rank)
    dilations = draws(rng, 1, 3, rank) if dilated else [1] * rank
    size = [n + (k - 1) * d for n, k, d in zip(draws(rng, 1, 5, rank), kernel, dilations, strict=True)]
    begin, end = ([int(rng.integers(0, k)) for k in kernel] for _ in range(2))
    pads = tuple(zip(begin, end, strict=True)) if auto_pad == "None" else 0
    geometry = Geometry.of(size, kernel, strides=strides, pads=pads, dilations=dilations, auto_pad=auto_pad)
    attributes: Attributes = {"strides": strides, "pads_begin": begin, "pads_end": end, "kernel": kernel}
    attributes |= {"auto_pad": auto_pad, "data_format": layout} | ({"dilations": dilations} if dilated else {})
    n, channels = draws(rng, 1, 4, 2)
    return attributes, (n, *size, channels) if layout == "NXC" else (n, channels, *size), geometry


def output_shape(shape: tuple[int, ...], size: tuple[int, ...], attributes: Attributes) -> tuple[int, ...]:
    return (shape[0], *size, shape[-1]) if attributes["data_format"] == "NXC" else (*shape[:2], *size)


def test_onednn_averages() -> None:
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        attributes, shape, geometry = onednn_window(rng, dilated=False)
        attributes["exclude_pad"] = bool(rng.integers(2))
        src = rng.integers(-8, 9, shape).astype(np.float32)
        small = output_shape(shape, geometry.output_size, attributes)
        dy = rng.integers(-8, 9, small).astype(np.float32)
        (ours,) = our_onednn.run("AvgPool", [src], attributes)
        close(ours, onednn.run("AvgPool", [src], attributes, small), 8 * 27, (seed, attributes))
        attributes["src_shape"] = list(shape)
        (ours,) = our_onednn.run("AvgPoolBackward", [dy], attributes)
        close(ours, onednn.run("AvgPoolBackward", [dy], attributes, shape), 8 * 27, (seed, attributes))


def test_onednn_maxima() -> None:
    """Small integers: ties everywhere, and sums that are exact."""
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        attributes, shape, geometry = onednn_window(rng, dilated=True)
        src = rng.integers(-3, 4, shape).astype(np.float32)
        small = output_shape(shape, geometry.output_size, attributes)
        (ours,) = our_onednn.run("MaxPool", [src], attributes)
        if np.isinf(ours).any():  # no tap of a dilated window inside the input: theirs is the lowest float
            continue
        close(ours, onednn.run("MaxPool", [src], attributes, small), 0, (seed, attributes))
        dy = rng.integers(-8, 9, small).astype(np.float32)
        (ours,) = our_onednn.run("MaxPoolBackward", [src, dy], attributes)
        close(ours, onednn.run("MaxPoolBackward", [src, dy], attributes, shape), 0, (seed, attributes))


def test_onednn_bfloat16_where_windows_do_not_overlap() -> None:
    """Where they do, oneDNN may round after every window."""
    for seed in range(CASES // 4):
        rng = np.random.default_rng(seed)
        attributes, shape, geometry = onednn_window(rng, dilated=False)
        attributes |= {"strides": attributes["kernel"], "auto_pad": "VALID", "exclude_pad": True}
        attributes["src_shape"] = list(shape)
        size = Geometry.of(geometry.input_size, geometry.kernel).output_size
        dy = rng.normal(size=output_shape(shape, size, attributes)).astype(ml_dtypes.bfloat16)
        try:
            theirs = onednn.run("AvgPoolBackward", [dy], attributes, shape)
        except PeerError as error:
            pytest.skip(f"bfloat16: {error}")
        assert same_bits(our_onednn.run("AvgPoolBackward", [dy], attributes)[0], theirs), (seed, attributes)


ONED: Attributes = {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [2], "data_format": "NCX"}


def wave(*values: float) -> np.ndarray:
    return np.float32(values).reshape(1, 1, -1)


@pytest.mark.parametrize("window", [[math.nan] * 2, [-math.inf] * 2])
def test_onednn_gives_a_window_without_maximum_to_its_first_element(window: list[float]) -> None:
    src, dy, attributes = wave(*window), wave(5), {**ONED, "dilations": [1]}
    assert onednn.run("MaxPool", [src], attributes, (1, 1, 1)).item() == np.finfo(np.float32).min
    assert our_onednn.run("MaxPool", [src], attributes)[0].item() == -math.inf
    assert onednn.run("MaxPoolBackward", [src, dy], attributes, src.shape).ravel().tolist() == [5, 0]
    assert our_onednn.run("MaxPoolBackward", [src, dy], attributes)[0].ravel().tolist() == [0, 0]


def test_onednn_needs_dilations() -> None:
    src, dy = wave(1, 2, 3), wave(5, 6)
    with pytest.raises(PeerError):
        onednn.run("MaxPoolBackward", [src, dy], ONED, src.shape)
    assert our_onednn.run("MaxPoolBackward", [src, dy], ONED)[0].ravel().tolist() == [0, 5, 6]


def test_onednn_takes_src_shape_as_an_attribute_only() -> None:
    dy, shape, attributes = wave(5, 6), np.int32([1, 1, 3]), {**ONED, "exclude_pad": True}
    with pytest.raises(PeerError):
        onednn.run("AvgPoolBackward", [dy, shape], attributes | {"src_shape": [1, 1, 3]}, (1, 1, 3))
    assert our_onednn.run("AvgPoolBackward", [dy, shape], attributes)[0].ravel().tolist() == [2.5, 5.5, 3]


def test_onednn_counts_windows_by_a_division_that_truncates() -> None:
    attributes = {**ONED, "strides": [2], "kernel": [3], "exclude_pad": False, "src_shape": [1, 1, 2]}
    ours = our_onednn.run("AvgPoolBackward", [wave(6)], attributes)[0]
    assert same_bits(ours, onednn.run("AvgPoolBackward", [wave(6)], attributes, (1, 1, 2)))


@pytest.mark.parametrize(
    ("change", "dies"),
    [
        ({"strides": [0]}, True),
        ({"strides": [1, 1]}, None),
        ({"kernel": [2, 2]}, None),
        ({"kernel": [3]}, True),
        ({"pads_begin": [-1]}, True),
        ({"pads_begin": [], "pads_end": []}, True),
        ({"pads_begin": [2], "kernel": [2], "strides": [2]}, True),
        ({"src_shape": [1, 1, 4]}, True),
        ({"src_shape": [1, 2, 3]}, True),
        ({"auto_pad": "SAME"}, False),
        ({"data_format": "NHWC"}, False),
        ({"exclude_pad": None}, False),
        ({"src_shape": None}, True),
    ],
)
def test_onednn_refuses_what_we_refuse(change: Attributes, dies: bool | None) -> None:
    """dies: whether oneDNN ends the process; None: whether it does was seen to depend on memory."""
    dy = wave(5, 6)
    given = {**ONED, "exclude_pad": True, "src_shape": [1, 1, 3], **change}
    attributes = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ValueError):
        our_onednn.run("AvgPoolBackward", [dy], attributes)
    if dies is None:
        return
    with pytest.raises(PeerError) as caught:
        onednn.run("AvgPoolBackward", [dy], attributes, given["src_shape"] or (1, 1, 3))
    assert isinstance(caught.value, PeerDiedError) == dies


# ONNX Runtime


def our_ort_run(op: str, inputs: list[np.ndarray], attributes: Attributes, shape: tuple[int, ...]) -> np.ndarray:
    (dx,) = our_ort.run(op, inputs, attributes, domain="", output_shapes=[shape])
    assert isinstance(dx, np.ndarray)
    return dx


def test_ort_max_pool_grad() -> None:
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        shape = tuple(draws(rng, 1, 5, int(rng.integers(1, 6))))
        small = (shape[0], *draws(rng, 1, 5, len(shape) - 1))
        dy, indices = rng.integers(-9, 10, small).astype(np.float32), rng.integers(0, math.prod(shape), small)
        (theirs,) = ort.run("MaxPoolGrad", [dy, indices], {}, [shape])
        close(our_ort_run("MaxPoolGrad", [dy, indices], {}, shape), theirs, 0, (seed, shape))


def test_ort_average_pool_grad() -> None:
    """One and two axes; three only as a cube whose windows do not overlap, which is all that is right there."""
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        kernel, strides, size = draws(rng, 1, 4, rank), draws(rng, 1, 4, rank), draws(rng, 1, 5, rank)
        size = [n + k for n, k in zip(size, kernel, strict=True)]
        pads, include = [int(rng.integers(0, k)) for k in kernel * 2], int(rng.integers(2))
        if rank == 3:
            kernel, size, pads = kernel[:1] * 3, size[:1] * 3, pads[:1] * 6
            strides = kernel
        pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
        # A ceil window that hangs over the padding is divided differently from release to release.
        ceil = include == 0 and bool(rng.integers(2))
        rounding: Any = "ceil_inside" if ceil else "floor"
        geometry = Geometry.of(size, kernel, strides=strides, pads=pairs, rounding=rounding)
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "count_include_pad": include}
        attributes |= {"ceil_mode": 1} if ceil else {}
        shape = (2, 3, *size)
        dy = rng.normal(size=(2, 3, *geometry.output_size)).astype(np.float32)
        (theirs,) = ort.run("AveragePoolGrad", [dy], attributes, [shape])
        bound = float(np.abs(dy).max()) * math.prod(kernel)
        close(our_ort_run("AveragePoolGrad", [dy], attributes, shape), theirs, bound, (seed, attributes))


def differs(op: str, inputs: list[np.ndarray], attributes: Attributes, shape: tuple[int, ...], dx: list[float]) -> None:
    """ONNX Runtime is wrong, and we answer dx."""
    (theirs,) = ort.run(op, inputs, attributes, [shape])
    assert our_ort_run(op, inputs, attributes, shape).ravel().tolist() == dx
    assert theirs.ravel().tolist() != dx


def test_ort_is_wrong_about_overlap_in_3d() -> None:
    dy = np.float32([8, 16]).reshape(1, 1, 2, 1, 1)
    attributes = {"kernel_shape": [2, 1, 1], "strides": [1, 1, 1]}
    differs("AveragePoolGrad", [dy], attributes, (1, 1, 3, 1, 1), [4, 12, 8])


def test_ort_passes_over_column_major_indices() -> None:
    dy, indices = np.float32([[[[5]]]]), np.array([[[[1]]]])
    attributes = {"kernel_shape": [2, 3], "storage_order": 1}
    differs("MaxPoolGrad", [dy, indices], attributes, (1, 1, 2, 3), [0, 0, 0, 5, 0, 0])


def test_ort_passes_over_auto_pad_and_dilations() -> None:
    same = {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}
    differs("AveragePoolGrad", [wave(6, 6, 6)], same, (1, 1, 3), [5, 8, 5])
    dilated = {"kernel_shape": [2], "dilations": [2]}
    differs("AveragePoolGrad", [wave(6, 4)], dilated, (1, 1, 4), [3, 2, 3, 2])


# TensorFlow.js

TFJS_GEOMETRY = ("filterSize", "strides", "pad", "dimRoundingMode")


def tfjs_both(kernel: str, inputs: dict[str, np.ndarray], attributes: Attributes) -> list[Any]:
    """What we and what they answer; an error is its class."""
    answers: list[Any] = []
    calls: list[Callable[..., Any]] = [our_tfjs.run, tfjs.run]
    for call in calls:
        try:
            answers.append(call(kernel, inputs, attributes))
        except (ValueError, PeerError):
            answers.append(ValueError)
    return answers


def tfjs_inputs(kernel: str, dy: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    return {"dy": dy, "input": x} | ({"output": dy} if "Max" in kernel else {})


def tfjs_attributes(rng: np.random.Generator) -> Attributes:
    def number(low: int, high: int) -> Any:
        return draws(rng, low, high, 2) if rng.integers(3) == 0 else int(rng.integers(low, high))

    pads: list[Any] = ["same", "valid", int(rng.integers(-1, 4)), 0.5, [[1, 1], draws(rng, 0, 3, 2), [0, 2], [3, 3]]]
    attributes = {"filterSize": number(1, 4), "strides": number(1, 4), "pad": pads[int(rng.integers(5))]}
    if rng.integers(8) == 0:
        attributes["strides"] = 1.5
    mode = (None, "floor", "ceil", "round")[int(rng.integers(4))]
    return attributes | ({"dimRoundingMode": mode} if mode else {})


def test_tfjs_max_pool_grad_bit_for_bit() -> None:
    values = np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1, 1, 2, -3, 0.5])
    answered = 0
    for seed in range(2 * CASES):
        rng = np.random.default_rng(seed)
        attributes = tfjs_attributes(rng)
        x = rng.choice(values, (draws(rng, 1, 3, 1)[0], *draws(rng, 1, 7, 2), draws(rng, 1, 3, 1)[0]))
        if rng.integers(6) == 0:
            x = np.nan_to_num(x, posinf=9, neginf=-9).astype((np.int32, np.bool_)[seed % 2])
        try:
            _, (rows, columns) = tfjs_pool_2d(x.shape[1:3], *(attributes.get(n) for n in TFJS_GEOMETRY))
            size = [rows.stop, columns.stop]
        except ValueError:
            size = [1, 1]
        if rng.integers(4) == 0:  # too small or too large
            size = [max(0, n + int(rng.integers(-1, 2))) for n in size]
        dy = rng.choice(np.append(rng.normal(size=8), [math.inf, math.nan, -0.0]), (x.shape[0], *size, x.shape[3]))
        inputs = {"dy": dy.astype(np.float32), "input": x, "output": np.zeros(1, np.float32)}
        ours, theirs = tfjs_both("MaxPoolGrad", inputs, attributes)
        case = (seed, attributes, x.shape, dy.shape, ours, theirs)
        if ours is ValueError or theirs is ValueError:
            assert ours is theirs, case
        else:
            assert same_bits(ours, theirs), case
            answered += 1
    assert answered >= CASES


@pytest.mark.parametrize("kernel", ["AvgPoolGrad", "AvgPool3DGrad", "MaxPool3DGrad"])
def test_tfjs_other_gradients_where_they_are_the_derivative(kernel: str) -> None:
    """No padding (averages), square windows without ties (3-D maxima). Sums of doubles in another order: one ulp."""
    axes = 2 if kernel == "AvgPoolGrad" else 3
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        window, strides = draws(rng, 1, 4, axes), draws(rng, 1, 4, axes)
        window[-1] = window[-2]
        size = [n + k for n, k in zip(draws(rng, 0, 5, axes), window, strict=True)]
        pad: Any = "valid"
        if kernel == "MaxPool3DGrad" and rng.integers(2):
            pad = ("same", 1)[int(rng.integers(2))]
            strides = [min(s, k) for s, k in zip(strides, window, strict=True)]
        pads: Any = pad if isinstance(pad, int) else 0
        geometry = Geometry.of(
            size, window, strides=strides, pads=pads, auto_pad="same_upper" if pad == "same" else "none"
        )
        x = rng.permutation(2 * math.prod(size)).reshape(2, *size, 1).astype(np.float32)
        dy = rng.normal(size=(2, *geometry.output_size, 1)).astype(np.float32)
        attributes = {"filterSize": window, "strides": strides, "pad": pad}
        ours, theirs = tfjs_both(kernel, tfjs_inputs(kernel, dy, x), attributes)
        assert isinstance(ours, np.ndarray), (seed, attributes)
        assert isinstance(theirs, np.ndarray), (seed, attributes)
        np.testing.assert_array_max_ulp(ours, theirs, 1)


def tfjs_differs(
    kernel: str, x: np.ndarray, dy: np.ndarray, attributes: Attributes, answers: tuple[list[float], list[float]]
) -> None:
    """Our answer and theirs, as they are."""
    ours, theirs = tfjs_both(kernel, tfjs_inputs(kernel, dy, x), attributes)
    assert (ours.ravel().tolist(), theirs.ravel().tolist()) == answers


def test_tfjs_averages_divide_by_the_whole_window() -> None:
    x = np.ones((1, 2, 2, 1), np.float32)
    attributes = {"filterSize": 2, "strides": 1, "pad": "same"}
    answers = [0.25, 0.75, 0.75, 2.25], [0.25, 0.5, 0.5, 1]
    tfjs_differs("AvgPoolGrad", x, x, attributes, answers)
    attributes |= {"filterSize": [1, 2, 2]}
    tfjs_differs("AvgPool3DGrad", x.reshape(1, 1, 2, 2, 1), x.reshape(1, 1, 2, 2, 1), attributes, answers)


@pytest.mark.parametrize(
    ("values", "window", "answers"),
    [
        ([5.0, 5, 5], [1, 1, 3], ([7, 0, 0], [0, 0, 7])),  # ties
        ([-math.inf] * 2, [1, 1, 2], ([0, 0], [0, 7])),  # no maximum
    ],
)
def test_tfjs_3d_takes_the_last_maximum(values: list[float], window: list[int], answers: Any) -> None:
    x, dy = np.float32(values).reshape(1, 1, 1, -1, 1), np.float32(7).reshape(1, 1, 1, 1, 1)
    tfjs_differs("MaxPool3DGrad", x, dy, {"filterSize": window, "strides": 1, "pad": "valid"}, answers)


def test_tfjs_3d_mistakes_height_for_width() -> None:
    x, dy = np.float32([1, 2, 3, 4, 5, 6]).reshape(1, 1, 2, 3, 1), np.float32(7).reshape(1, 1, 1, 1, 1)
    attributes = {"filterSize": [1, 2, 3], "strides": 1, "pad": "valid"}
    tfjs_differs("MaxPool3DGrad", x, dy, attributes, ([0, 0, 0, 0, 0, 7], [0, 0, 0, 0, 7, 0]))


def test_tfjs_3d_pads_by_less_than_nothing() -> None:
    x, dy = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8, 1), np.float32([1, 2, 3]).reshape(1, 1, 1, 3, 1)
    attributes = {"filterSize": 1, "strides": [1, 1, 3], "pad": "same"}
    tfjs_differs("MaxPool3DGrad", x, dy, attributes, ([1, 0, 0, 2, 0, 0, 3, 0], [0, 1, 0, 0, 2, 0, 0, 3]))
