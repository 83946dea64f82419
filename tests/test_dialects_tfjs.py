"""The TensorFlow.js dialect against what its CPU backend answers, bit for bit; its checks and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from checks import data, same_bits

from backstroke.dialects import tfjs
from backstroke.geometry import tfjs_pool_2d

Case = dict[str, Any]
UPSTREAM: list[Case] = data("tfjs_maxpool_grad_cases.json")["cases"]
EDGE: list[Case] = data("tfjs_maxpool_grad_edge_cases.json")
KERNELS = {
    "maxPoolGrad": "MaxPoolGrad",
    "avgPoolGrad": "AvgPoolGrad",
    "maxPool3dGrad": "MaxPool3DGrad",
    "avgPool3dGrad": "AvgPool3DGrad",
}
# Where TensorFlow.js is not the derivative, or breaks ties in 3-D the other way round: what we answer.
DIFFERENT = {
    "avg2d_04": None,  # theirs divides by the whole window; the answer is checked on its own below
    "t3_ties": [7, 0, 0],  # first maximum; theirs is the last, in 3-D only
    "t3_rect_hw": [0, 0, 0, 0, 0, 7],  # theirs mistakes height for width in the window's index
    "t3_rect_hw2": [0, 0, 0, 0, 0, 7],
    "t3_ninf_all": [0, 0],  # nothing is greater than -infinity; theirs gives it to the last in 3-D, to nobody in 2-D
    "avg_same": [0.25, 0.75, 0.75, 2.25],  # theirs divides by the whole window
}


def single(values: list[Any]) -> np.ndarray:
    """Numbers of a recorded case, where NaN and the infinities are strings."""
    return np.array([float(v) for v in values], np.float32)


def attributes_of(case: Case) -> Case:
    given = {"filterSize": case["filter"], "strides": case["strides"], "dimRoundingMode": case.get("dimRoundingMode")}
    return given | {name: case[name] for name in ("pad",) if name in case}


def lifted(array: np.ndarray, rank: int) -> np.ndarray:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def dilated(x: np.ndarray, dy: np.ndarray, case: Case) -> np.ndarray:
    """A dilated tf.pool: each phase of the rows and columns is a pooling of its own, with padding 'valid'."""
    dx, step = np.zeros_like(x), case["dilation"]
    for row, column in np.ndindex(step, step):
        phase = (slice(None), slice(row, None, step), slice(column, None, step))
        kernel = "MaxPoolGrad" if case["pool"] == "max" else "AvgPoolGrad"
        attributes = attributes_of(case) | {"pad": "valid"}
        dx[phase] = tfjs.run(kernel, {"dy": dy[phase], "input": x[phase]}, attributes)
    return dx


def upstream(case: Case) -> np.ndarray:
    rank = 5 if "3d" in case["op"] else 4
    x, dy = (lifted(single(case[n]).reshape(case[f"{n}_shape"]), rank) for n in ("x", "dy"))
    if case["op"] == "poolGrad":
        return dilated(x, dy, case).reshape(case["dx_shape"])
    dx: np.ndarray = tfjs.run(KERNELS[case["op"]], {"dy": dy, "input": x}, attributes_of(case))
    return dx.reshape(case["dx_shape"])


def edge(case: Case) -> np.ndarray:
    """What an edge case asks for: the kernel, or by `tf.grad`, which checks, lifts rank 3 and forgets the rounding."""
    x = np.array([float(v) for v in case["x"]]).reshape(case["x_shape"]).astype(case.get("dtype", "float32"))
    attributes, rank = attributes_of(case), 5 if "3d" in case["op"] else 4
    if case.get("via") == "grad":
        pad, mode = case["pad"], attributes.pop("dimRoundingMode")
        if x.ndim not in (3, 4) or (mode and (isinstance(pad, str) or not np.all(np.mod(pad, 1) == 0))):
            raise ValueError("refused by the op maxPool")
        x = lifted(x, 4)
        forward, _ = tfjs_pool_2d(x.shape[1:3], case["filter"], case["strides"], pad, mode)
        if tuple(case["dy_shape"][-3:-1]) != forward.output_size:
            raise ValueError("refused by tf.grad")
    dy_shape = case.get("dy_shape")
    if dy_shape is None and rank == 4:
        size = tfjs_pool_2d(x.shape[1:3], *(attributes.get(n) for n in ("filterSize", "strides", "pad")))[0].output_size
        dy_shape = (x.shape[0], *size, x.shape[3])
    elif dy_shape is None:
        dy_shape = (1,) * 4 + (len(case["dy"]),) if len(case["dy"]) == 1 else (1, 1, 1, len(case["dy"]), 1)
    dy = single(case["dy"]).reshape(dy_shape)
    inputs = {"dy": lifted(dy, rank) if x.ndim == rank else dy, "input": x}
    dx: np.ndarray = tfjs.run(KERNELS[case["op"]], inputs, attributes)
    return dx.reshape(case["cpu"].get("dx_shape", case["x_shape"]))


@pytest.mark.parametrize("case", UPSTREAM, ids=lambda c: c["id"])
def test_upstream(case: Case) -> None:
    assert same_bits(upstream(case), single(case["dx"]).reshape(case["dx_shape"])) == (case["id"] not in DIFFERENT)


@pytest.mark.parametrize("case", EDGE, ids=lambda c: c["id"])
def test_edge(case: Case) -> None:
    if "error" in case["cpu"]:
        with pytest.raises(ValueError):
            edge(case)
        return
    theirs = single(case["cpu"]["dx"])
    ours = edge(case).ravel()
    if case["id"] in DIFFERENT:
        assert not same_bits(ours, theirs)
        theirs = single(DIFFERENT[case["id"]] or [])
    assert same_bits(ours, theirs)


def test_every_recorded_case_is_there() -> None:
    assert len(UPSTREAM) == 45
    assert len(EDGE) == 84
    assert set(DIFFERENT) <= {case["id"] for case in UPSTREAM + EDGE}


def test_the_average_divides_by_the_elements_inside() -> None:
    case = next(c for c in UPSTREAM if c["id"] == "avg2d_04")
    dy = np.array(case["dy"], np.float64).reshape(4, 2)
    expected = np.zeros((3, 3))
    for i, j in np.ndindex(4, 2):  # window 3, stride 1, padding 1 above, 2 below, 0 left, 1 right
        window = np.s_[max(0, i - 1) : i + 2, j : j + 3]
        expected[window] += dy[i, j] / expected[window].size
    assert same_bits(upstream(case), expected.astype(np.float32)[..., None])


# What the recorded cases leave open


def one_window(dy: Any, x: Any, dtype: Any = np.float32, **inputs: Any) -> np.ndarray:
    arrays = {"dy": np.reshape(dy, (1, 1, -1, 1)).astype(np.float32), "input": np.reshape(x, (1, 1, -1, 1))}
    arrays["input"] = arrays["input"].astype(dtype)
    width = arrays["input"].size - arrays["dy"].size + 1
    attributes = {"filterSize": [1, width], "strides": 1, "pad": "valid"}
    return np.ravel(tfjs.run("MaxPoolGrad", arrays | inputs, attributes))


def test_large_integers_are_told_apart() -> None:
    x = np.array([2**24, 2**24 + 1])
    assert one_window([1.5], x, np.int32).tolist() == [0, 1.5]
    assert one_window([1.5], x, np.float32).tolist() == [1.5, 0]


def test_sums_are_double_and_rounded_once() -> None:
    dx = one_window([1e8, 1, -1e8], [0, 0, 9, 0, 0])
    assert dx.tolist() == [0, 0, 1, 0, 0]
    assert dx.dtype == np.float32
    assert one_window([3e38, 3e38, -3e38], [0, 0, 9, 0, 0])[2] == np.float32(3e38)
    assert one_window([3e38, 3e38], [0, 9, 0])[1] == math.inf
    attributes = {"filterSize": [1, 3], "strides": 1, "pad": "valid"}
    dy, x = np.float32([1e8, 1, -1e8]).reshape(1, 1, 3, 1), np.zeros((1, 1, 5, 1), np.float32)
    assert np.ravel(tfjs.run("AvgPoolGrad", {"dy": dy, "input": x}, attributes))[2] == np.float32(1 / 3)


def test_the_output_is_never_read() -> None:
    for output in (None, np.float32([math.nan]), np.zeros((2, 3), np.int32)):
        assert one_window([4], [1, 2], output=output).tolist() == [0, 4]
    with pytest.raises(TypeError, match="output"):
        one_window([4], [1, 2], output=np.zeros(1, np.complex64))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_dy_of_every_type(dtype: Any) -> None:
    dy, x = np.ones((1, 1, 2, 1), dtype), np.float32([0, 5, 0]).reshape(1, 1, 3, 1)
    dx = tfjs.run("MaxPoolGrad", {"dy": dy, "input": x}, {"filterSize": [1, 2], "strides": 1, "pad": "valid"})
    assert dx.dtype == np.float32
    assert dx.ravel().tolist() == [0, 2, 0]


def test_dy_may_lack_what_no_maximum_asks_for() -> None:
    # Padding 2 around a window of 2: the outermost windows see nothing.
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2, 1)
    attributes = {"filterSize": 2, "strides": 1, "pad": 2}
    dy = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
    whole = tfjs.run("MaxPoolGrad", {"dy": dy, "input": x}, attributes)
    assert same_bits(tfjs.run("MaxPoolGrad", {"dy": dy[:, :4, :4], "input": x}, attributes), whole)
    with pytest.raises(ValueError, match="dy"):
        tfjs.run("MaxPoolGrad", {"dy": dy[:, :3], "input": x}, attributes)
    nan = np.full_like(x, math.nan)
    assert not tfjs.run("MaxPoolGrad", {"dy": dy[:, :1, :1], "input": nan}, attributes).any()


def test_3d_by_the_mathematics() -> None:
    # The padding of 'same' is never negative, also where the stride is longer than the window.
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8, 1)
    dy = np.float32([1, 2, 3]).reshape(1, 1, 1, 3, 1)
    attributes = {"filterSize": 1, "strides": [1, 1, 3], "pad": "same"}
    for kernel in ("MaxPool3DGrad", "AvgPool3DGrad"):
        dx = tfjs.run(kernel, {"dy": dy, "input": x}, attributes)
        assert dx.ravel().tolist() == [1, 0, 0, 2, 0, 0, 3, 0]
    # dimRoundingMode counts: a last window that sees one element only.
    attributes = {"filterSize": [1, 1, 3], "strides": [1, 1, 2], "pad": 0, "dimRoundingMode": "ceil"}
    dy = np.float32([3, 6, 9, 8]).reshape(1, 1, 1, 4, 1)
    dx = tfjs.run("AvgPool3DGrad", {"dy": dy, "input": x}, attributes)
    assert dx.ravel().tolist() == [1, 1, 3, 2, 5, 3, 7, 4]


def test_results_come_in_the_kind_of_dy() -> None:
    torch = pytest.importorskip("torch")
    inputs = {"dy": torch.ones(1, 1, 1, 1), "input": torch.arange(2, dtype=torch.int32).reshape(1, 1, 2, 1)}
    dx = tfjs.run("MaxPoolGrad", inputs, {"filterSize": [1, 2], "strides": 1, "pad": "valid"})
    assert isinstance(dx, torch.Tensor)
    assert dx.ravel().tolist() == [0, 1]


GOOD_X, GOOD_DY = np.zeros((1, 4, 4, 1), np.float32), np.zeros((1, 2, 2, 1), np.float32)
GOOD = {"filterSize": 2, "strides": 2, "pad": "valid"}


@pytest.mark.parametrize("kernel", ["MaxPoolGrad", "AvgPoolGrad"])
@pytest.mark.parametrize(
    ("inputs", "attributes", "error", "match"),
    [
        ({"input": GOOD_X.astype(np.complex64)}, {}, TypeError, "input"),
        ({"input": GOOD_X.astype(np.float64)}, {}, TypeError, "input"),
        ({"input": GOOD_X.astype(str)}, {}, TypeError, "input"),
        ({"dy": GOOD_DY.astype(np.complex64)}, {}, TypeError, "dy"),
        ({"dy": GOOD_DY.astype(np.uint8)}, {}, TypeError, "dy"),
        ({"dy": [[1]]}, {}, TypeError, "dy"),
        ({"input": GOOD_X[0]}, {}, ValueError, "input"),
        ({"dy": GOOD_DY[0]}, {}, ValueError, "dy"),
        ({"dy": None}, {}, ValueError, "dy"),
        ({"x": GOOD_X}, {}, ValueError, "x"),
        ({}, {"pad": "full"}, ValueError, "Unknown padding parameter: full"),
        ({}, {"pad": None}, ValueError, "padding"),
        ({}, {"pad": [1, 1]}, ValueError, "pad"),
        ({}, {"pad": 0, "dimRoundingMode": "up"}, ValueError, "Unknown roundingMode up"),
        ({}, {"strides": 0}, ValueError, "strides"),
        ({}, {"strides": -1}, ValueError, "strides"),
        ({}, {"strides": math.nan}, ValueError, "strides"),
        ({}, {"filterSize": [2]}, ValueError, "filterSize"),
        ({}, {"filterSize": "2"}, ValueError, "filterSize"),
        ({}, {"filterSize": 9, "strides": 1}, ValueError, "filterSize"),
        ({}, {"dilations": 2}, ValueError, "dilations"),
    ],
)
def test_errors(kernel: str, inputs: Any, attributes: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        tfjs.run(kernel, {"dy": GOOD_DY, "input": GOOD_X} | inputs, GOOD | attributes)


@pytest.mark.parametrize("name", ["filterSize", "strides", "pad"])
def test_missing_attributes(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        tfjs.run("MaxPoolGrad", {"dy": GOOD_DY, "input": GOOD_X}, {n: v for n, v in GOOD.items() if n != name})


@pytest.mark.parametrize(
    ("attributes", "error", "match"),
    [
        ({"pad": [[0, 0]] * 5}, ValueError, "Unknown padding parameter"),
        ({"pad": "full"}, ValueError, "Unknown padding parameter"),
        ({"pad": -1}, ValueError, "pad"),
        ({"pad": 0.5}, TypeError, "pad"),
        ({"dimRoundingMode": "up"}, ValueError, "Unknown roundingMode"),
        ({"filterSize": [2, 2]}, ValueError, "filterSize"),
        ({"filterSize": 0}, ValueError, "filterSize"),
        ({"strides": 0}, ValueError, "strides"),
        ({"strides": 1.5}, TypeError, "strides"),
        ({"filterSize": 5}, ValueError, "kernel"),
        ({"strides": 1}, ValueError, "dy"),
    ],
)
@pytest.mark.parametrize("kernel", ["MaxPool3DGrad", "AvgPool3DGrad"])
def test_errors_3d(kernel: str, attributes: Any, error: type[Exception], match: str) -> None:
    x, dy = np.zeros((1, 4, 4, 4, 1), np.float32), np.zeros((1, 2, 2, 2, 1), np.float32)
    with pytest.raises(error, match=match):
        tfjs.run(kernel, {"dy": dy, "input": x}, GOOD | attributes)


def test_averages_take_whole_windows_and_a_dy_that_fits() -> None:
    for attributes in ({"strides": 1.5}, {"pad": 0.5}, {"filterSize": 0}):
        with pytest.raises(ValueError, match="filterSize, strides, pad"):
            tfjs.run("AvgPoolGrad", {"dy": GOOD_DY, "input": GOOD_X}, GOOD | attributes)
    with pytest.raises(ValueError, match="dy has shape"):
        tfjs.run("AvgPoolGrad", {"dy": GOOD_DY[:, :1], "input": GOOD_X}, GOOD)


def test_the_table() -> None:
    assert [k.op for k in tfjs.kernels()] == [
        KERNELS[n] for n in ("maxPoolGrad", "avgPoolGrad", "maxPool3dGrad", "avgPool3dGrad")
    ]
    assert str(tfjs.kernels()[0]).startswith("tfjs::MaxPoolGrad-1(dy, input, output) [filterSize")
    for call in (lambda: tfjs.run("ConvGrad", {}), lambda: tfjs.run("AvgPoolGrad", {"dy": GOOD_DY}, GOOD)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError, match="inputs"):
        tfjs.run("MaxPoolGrad", [GOOD_DY, GOOD_X], GOOD)  # type: ignore[arg-type]
