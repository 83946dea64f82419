"""The reference against what TensorFlow.js' CPU backend answers: 45 upstream gradient tests and 84 edge cases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backstroke.geometry import Geometry, tfjs_pool_2d
from backstroke.pooling import reference

DATA = Path(__file__).parent / "data"
UPSTREAM = json.loads((DATA / "tfjs_maxpool_grad_cases.json").read_text())["cases"]
EDGE = json.loads((DATA / "tfjs_maxpool_grad_edge_cases.json").read_text())
Case = dict[str, Any]


def numbers(values: list[Any]) -> np.ndarray:
    return np.array([float(v) for v in values], np.float64)


def assert_same_float32(ours: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit after one rounding to float32, except that one NaN is as good as another."""
    ours, expected = ours.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(ours, expected)
    numeric = ~np.isnan(ours)
    np.testing.assert_array_equal(np.signbit(ours)[numeric], np.signbit(expected)[numeric])


def max_pool_grad_kernel(case: Case, x: np.ndarray, mode: str | None) -> np.ndarray:
    """The kernel MaxPoolGrad: TensorFlow.js' geometry, and dy read by the windows that see something."""
    if x.ndim != 4:
        raise ValueError(f"input: rank {x.ndim}")
    geometry, (rows, columns) = tfjs_pool_2d(
        x.shape[1:3], case["filter"], case["strides"], case.get("pad", "undefined"), mode
    )
    dy = numbers(case["dy"]).reshape(case.get("dy_shape") or (x.shape[0], *geometry.output_size, x.shape[3]))
    dy = dy.reshape((1,) * (4 - dy.ndim) + dy.shape)
    if dy.shape[1] < rows.stop or dy.shape[2] < columns.stop:
        raise ValueError(f"dy: shape {dy.shape}")
    return reference.window_max_grad(dy[:, rows, columns], x, geometry, "NXC")


def max_pool_grad(case: Case) -> np.ndarray:
    """What a case asks for: the kernel itself, or through the op, which checks, lifts rank 3 and forgets the mode."""
    x = numbers(case["x"]).reshape(case["x_shape"])
    mode, pad = case.get("dimRoundingMode"), case.get("pad")
    if case.get("via") != "grad" and "from" not in case:
        return max_pool_grad_kernel(case, x, mode)
    if x.ndim not in (3, 4):
        raise ValueError(f"input: rank {x.ndim}")
    if mode and (isinstance(pad, str) or not np.all(np.mod(pad, 1) == 0)):
        raise ValueError(f"pad: {pad!r} with dimRoundingMode")
    lifted = x.reshape((1, *x.shape) if x.ndim == 3 else x.shape)
    forward, _ = tfjs_pool_2d(lifted.shape[1:3], case["filter"], case["strides"], pad, mode)
    if tuple(case["dy_shape"][-3:-1]) != forward.output_size:
        raise ValueError(f"dy: shape {case['dy_shape']}")
    return max_pool_grad_kernel(case, lifted, None).reshape(x.shape)


def by_the_mathematics(case: Case) -> np.ndarray:
    """The derivative, through the public functions, for the ops that are not MaxPoolGrad."""
    x, dy = numbers(case["x"]), numbers(case["dy"])
    three_d = "3d" in case["op"]
    rank = 3 if three_d else 2
    shape = tuple(case["x_shape"])
    shape = (1,) * (rank + 2 - len(shape)) + shape
    pad = case["pad"]
    options: Case = {"strides": case["strides"], "dilations": case.get("dilation", 1), "layout": "NXC"}
    if isinstance(pad, str):
        options["auto_pad"] = {"same": "same_upper", "valid": "valid"}[pad]
    else:
        options["pads"] = pad if isinstance(pad, int) else pad[1:3]
    size = Geometry.of(shape[1:-1], case["filter"], **{k: v for k, v in options.items() if k != "layout"}).output_size
    dy = dy.reshape(shape[0], *size, shape[-1])
    if case["op"].startswith("avg") or case.get("pool") == "avg":
        dx = reference.avg_pool_grad(dy, shape, case["filter"], **options)
    else:
        dx = reference.max_pool_grad_from_input(dy, x.reshape(shape), case["filter"], **options)
    return dx.reshape(case["x_shape"])


def test_nothing_is_missing() -> None:
    assert len(UPSTREAM) == 45
    assert len(EDGE) == 84


@pytest.mark.parametrize("case", [c for c in UPSTREAM if c["op"] == "maxPoolGrad"], ids=lambda c: c["id"])
def test_upstream_max_pool_grad(case: Case) -> None:
    assert_same_float32(max_pool_grad(case), numbers(case["dx"]).reshape(case["dx_shape"]))


@pytest.mark.parametrize("case", [c for c in UPSTREAM if c["op"] != "maxPoolGrad"], ids=lambda c: c["id"])
def test_upstream_other_gradients(case: Case) -> None:
    expected = numbers(case["dx"]).reshape(case["dx_shape"])
    if case["id"] == "avg2d_04":
        # Upstream divides by the whole window in the gradient, but by the valid elements in the forward op.
        assert not np.allclose(by_the_mathematics(case), expected)
        geometry, _ = tfjs_pool_2d((3, 3), case["filter"], case["strides"], case["pad"])
        dy = numbers(case["dy"]).reshape(1, *case["dy_shape"])
        ours = reference.window_mean_grad(dy, (1, 3, 3, 1), geometry, "kernel", "NXC")[0]
    else:
        ours = by_the_mathematics(case)
    assert_same_float32(ours, expected)


@pytest.mark.parametrize("case", [c for c in EDGE if c["op"] == "maxPoolGrad"], ids=lambda c: c["id"])
def test_edge_max_pool_grad(case: Case) -> None:
    if "error" in case["cpu"]:
        with pytest.raises(ValueError):
            max_pool_grad(case)
    else:
        expected = numbers(case["cpu"]["dx"]).reshape(case["cpu"]["dx_shape"])
        assert_same_float32(max_pool_grad(case), expected)


# Where TensorFlow.js is not the derivative, or breaks ties in 3-D the other way round: what we answer.
DIFFERENT = {
    "t3_ties": [7, 0, 0],  # first maximum; theirs is the last, in 3-D only
    "t3_rect_hw": [0, 0, 0, 0, 0, 7],  # theirs mistakes height for width in the window's index
    "t3_rect_hw2": [0, 0, 0, 0, 0, 7],
    "t3_ninf_all": [0, 0],  # nothing is greater than -infinity; theirs gives it to the last in 3-D, to nobody in 2-D
    "avg_same": [0.25, 0.75, 0.75, 2.25],  # theirs divides by the whole window
}


@pytest.mark.parametrize("case", [c for c in EDGE if c["op"] != "maxPoolGrad"], ids=lambda c: c["id"])
def test_edge_other_gradients(case: Case) -> None:
    theirs = numbers(case["cpu"]["dx"])
    ours = by_the_mathematics(case).ravel()
    if case["id"] in DIFFERENT:
        assert not np.array_equal(ours, theirs)
        theirs = np.array(DIFFERENT[case["id"]], np.float64)
    assert_same_float32(ours, theirs)


def test_average_of_the_whole_window_is_tfjs_avg_pool_grad() -> None:
    case = next(c for c in EDGE if c["id"] == "avg_same")
    geometry, _ = tfjs_pool_2d((2, 2), case["filter"], case["strides"], case["pad"])
    dx = reference.window_mean_grad(np.ones((1, 2, 2, 1)), (1, 2, 2, 1), geometry, "kernel", "NXC")
    assert dx.ravel().tolist() == case["cpu"]["dx"]
    assert math.isclose(dx.sum(), 2.25)
