"""The pooling gradients of the ONNX Runtime dialect: its own cases, the attributes it passes over, its errors."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import data

from backstroke.dialects import onnxruntime
from backstroke.pooling import reference

CASES = data("ort_pooling_cases.json")
POOLS = [case for case in CASES["gradient_cases"] if case["op"] in ("MaxPool", "AveragePool")]


def run(op: str, inputs: list[Any], attributes: dict[str, Any], shape: Any) -> Any:
    (dx,) = onnxruntime.run(op, inputs, attributes, domain="", output_shapes=[shape])
    return dx


def options_of(attributes: dict[str, Any], rank: int) -> dict[str, Any]:
    """ONNX attributes as arguments of the reference."""
    pads = attributes.get("pads") or [0] * 2 * rank
    return {
        "strides": attributes.get("strides", 1),
        "pads": tuple(zip(pads[:rank], pads[rank:], strict=True)),
        "dilations": attributes.get("dilations", 1),
        "auto_pad": attributes.get("auto_pad", "NOTSET").replace("NOTSET", "none"),
        "ceil_mode": bool(attributes.get("ceil_mode", 0)),
    }


@pytest.mark.parametrize("case", CASES["kernel_cases"], ids=lambda c: c["name"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_kernel_cases(case: dict[str, Any], dtype: Any) -> None:
    dy = np.array(case["dY"]).reshape(case["dY_shape"]).astype(dtype)
    indices = np.array(case["Indices"], np.int64).reshape(dy.shape)
    if "error" in case:
        with pytest.raises(ValueError, match=case["error"]):
            run("MaxPoolGrad", [dy, indices], {}, case["dX_shape"])
    else:
        dx = run("MaxPoolGrad", [dy, indices], {}, case["dX_shape"])
        assert dx.dtype == dtype
        assert dx.ravel().tolist() == case["dX"]


@pytest.mark.parametrize("case", POOLS, ids=lambda c: c["name"])
def test_gradient_cases(case: dict[str, Any]) -> None:
    """As ONNX Runtime checks them: the slope of the forward op in every direction, here against its adjoint."""
    rng = np.random.default_rng(5566)
    shape, attributes = tuple(case["x"][0]), case["attrs"]
    options, kernel = options_of(attributes, len(shape) - 2), attributes["kernel_shape"]
    dy = rng.normal(size=case["y"]).astype(np.float32)
    exact = dy.astype(np.float64)
    if case["op"] == "MaxPool":
        x = rng.permutation(math.prod(shape)).reshape(shape) * 0.01
        _, indices = reference.max_pool(x, kernel, **options, return_indices=True)
        dx = run("MaxPoolGrad", [dy, indices], attributes, shape)
        expected = reference.max_pool_grad(exact, indices, shape)
    else:
        options["count_include_pad"] = bool(attributes.get("count_include_pad", 0))
        dx = run("AveragePoolGrad", [dy], attributes, shape)
        expected = reference.avg_pool_grad(exact, shape, kernel, **options)
    windows = math.prod(kernel)
    assert np.abs(dx - expected).max() <= min(case["tol"], windows * np.finfo(np.float32).eps * np.abs(dy).max())


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        {"auto_pad": "VALID", "strides": [2, 1]},
        {"dilations": [2, 1], "pads": [1, 0, 2, 1]},
        {"ceil_mode": 1, "strides": [2, 3]},
        {"ceil_mode": 1, "strides": [2, 3], "pads": [1, 1, 1, 0]},
        {"strides": [], "pads": [], "dilations": []},
        {"strides": [2, 2], "unknown_to_the_schema": 3},
    ],
)
@pytest.mark.parametrize("include", [0, 1])
def test_what_onnx_runtime_passes_over_counts(attributes: dict[str, Any], include: int) -> None:
    rng = np.random.default_rng(1)
    shape, kernel = (2, 3, 6, 7), [3, 2]
    options = options_of({n: v for n, v in attributes.items() if v != []}, 2) | {"count_include_pad": bool(include)}
    v = rng.normal(size=shape)
    y = reference.avg_pool(v, kernel, **options)
    dy = rng.normal(size=y.shape)
    dx = run("AveragePoolGrad", [dy], attributes | {"kernel_shape": kernel, "count_include_pad": include}, shape)
    assert np.sum(dy * y) == pytest.approx(np.sum(dx * v), abs=1e-12)


def test_strides_are_one_unless_given() -> None:
    dx = run("AveragePoolGrad", [np.float32([[[2, 4, 6]]])], {"kernel_shape": [2]}, (1, 1, 4))
    assert dx.tolist() == [[[1, 3, 5, 3]]]


def test_a_ceil_window_divides_by_the_padded_input() -> None:
    attributes = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "count_include_pad": 1}
    dx = run("AveragePoolGrad", [np.float32([[[2, 2]]])], attributes, (1, 1, 3))
    assert dx.tolist() == [[[1, 1, 2]]]


@pytest.mark.parametrize("size", [(5,), (3, 4), (2, 3, 4)])
def test_column_major_indices(size: tuple[int, ...]) -> None:
    """storage_order=1: within a plane the first spatial axis runs fastest; batch and channels stay outermost."""
    rng = np.random.default_rng(2)
    shape = (2, 3, *size)
    x = rng.permutation(math.prod(shape)).reshape(shape).astype(np.float64)
    y, indices = reference.max_pool(x, 2, strides=1, return_indices=True)
    plane = math.prod(size)
    position = np.unravel_index(indices % plane, size)
    turned = indices // plane * plane + np.ravel_multi_index(position, size, order="F")
    dy = rng.integers(-9, 10, y.shape).astype(np.float32)
    attributes = {"kernel_shape": [2] * len(size)}
    expected = run("MaxPoolGrad", [dy, indices], attributes | {"storage_order": 0}, shape)
    assert np.array_equal(run("MaxPoolGrad", [dy, turned], attributes | {"storage_order": 1}, shape), expected)
    for bad in (-1, math.prod(shape)):
        turned.flat[3] = bad
        with pytest.raises(ValueError, match=rf"{bad} at position 3 is out of range"):
            run("MaxPoolGrad", [dy, turned], attributes | {"storage_order": 1}, shape)


def test_the_batch_is_dys() -> None:
    dy, indices = np.ones((2, 1, 1), np.float32), np.array([0, 5]).reshape(2, 1, 1)
    for batch in (2, 7, None, "N"):
        assert run("MaxPoolGrad", [dy, indices], {}, (batch, 1, 3)).ravel().tolist() == [1, 0, 0, 0, 0, 1]
    for batch in (2, None, "N"):
        assert run("AveragePoolGrad", [dy], {"kernel_shape": [2]}, (batch, 1, 2)).shape == (2, 1, 2)
    with pytest.raises(ValueError, match="dy"):
        run("AveragePoolGrad", [dy], {"kernel_shape": [2]}, (7, 1, 2))


def test_max_pool_grad_takes_any_rank_and_no_elements() -> None:
    dy, indices = np.float32([3, 4]), np.array([1, 1])
    assert run("MaxPoolGrad", [dy, indices], {}, (2,)).tolist() == [0, 7]
    nothing = np.zeros((0, 2, 2, 2), np.float32)
    for order in (0, 1):
        given = {"storage_order": order}
        assert run("MaxPoolGrad", [nothing, nothing.astype(np.int64)], given, (0, 2, 4, 4)).shape == (0, 2, 4, 4)


def test_results_come_in_the_kind_of_dy() -> None:
    torch = pytest.importorskip("torch")
    dy, indices = torch.ones(1, 1, 2), torch.tensor([[[3, 0]]])
    for dx in (
        run("MaxPoolGrad", [dy, indices], {}, (1, 1, 4)),
        run("AveragePoolGrad", [dy], {"kernel_shape": [2], "strides": [2]}, (1, 1, 4)),
    ):
        assert isinstance(dx, torch.Tensor)
        assert dx.sum() == 2


DY, INDICES = np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 2, 2), np.int64)


@pytest.mark.parametrize(
    ("inputs", "attributes", "shapes", "error", "match"),
    [
        ([DY, INDICES], {}, None, ValueError, "output_shapes"),
        ([DY, INDICES], {}, [], ValueError, "output_shapes"),
        ([DY, INDICES], {}, [None], ValueError, "output_shapes"),
        ([DY, INDICES], {}, [()], ValueError, "output_shapes"),
        ([DY, INDICES], {}, [(1, 1, "H", 4)], TypeError, "output_shapes"),
        ([DY, INDICES], {}, [(1, 1, None, 4)], TypeError, "output_shapes"),
        ([DY, INDICES], {}, [(1, 1, 4, -4)], ValueError, "output_shapes"),
        ([DY, INDICES], {}, [(-1, 1, 4, 4)], ValueError, "output_shapes"),
        ([DY, INDICES[..., :1]], {}, [(1, 1, 4, 4)], ValueError, "Indices"),
        ([DY, INDICES.astype(np.int32)], {}, [(1, 1, 4, 4)], TypeError, "Indices"),
        ([DY, DY], {}, [(1, 1, 4, 4)], TypeError, "Indices"),
        ([INDICES, INDICES], {}, [(1, 1, 4, 4)], TypeError, "dY"),
        ([DY], {}, [(1, 1, 4, 4)], ValueError, "inputs"),
        ([DY[0, 0, 0, 0], INDICES[0, 0, 0, 0]], {}, [(1,)], ValueError, "dY"),
        ([DY, INDICES], {"storage_order": 2}, [(1, 1, 4, 4)], ValueError, "storage_order"),
        ([DY, INDICES], {"storage_order": 1.0}, [(1, 1, 4, 4)], TypeError, "storage_order"),
        ([DY, INDICES], {}, [(1, 1, 0, 4)], ValueError, "out of range"),
    ],
)
def test_max_pool_grad_errors(inputs: Any, attributes: Any, shapes: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        onnxruntime.run("MaxPoolGrad", inputs, attributes, domain="", output_shapes=shapes)


@pytest.mark.parametrize(
    ("attributes", "shape", "error", "match"),
    [
        ({}, (1, 1, 4, 4), ValueError, "kernel_shape"),
        ({"kernel_shape": []}, (1, 1, 4, 4), ValueError, "output_shapes"),
        ({"kernel_shape": [3]}, (1, 1, 4, 4), ValueError, "output_shapes"),
        ({"kernel_shape": [1, 1, 1, 1]}, (1, 1, 4, 4, 4, 4), ValueError, "3 to 5 axes"),
        ({"kernel_shape": [3, 0]}, (1, 1, 4, 4), ValueError, "kernel"),
        ({"kernel_shape": [3, 3], "strides": [1]}, (1, 1, 4, 4), ValueError, "strides"),
        ({"kernel_shape": [3, 3], "strides": [0, 1]}, (1, 1, 4, 4), ValueError, "strides"),
        ({"kernel_shape": [3, 3], "pads": [0, 0]}, (1, 1, 4, 4), ValueError, "pads"),
        ({"kernel_shape": [3, 3], "pads": [0, 0, 0, -1]}, (1, 1, 4, 4), ValueError, "pads"),
        ({"kernel_shape": [3, 3], "dilations": [1]}, (1, 1, 4, 4), ValueError, "dilations"),
        ({"kernel_shape": [3, 3], "auto_pad": "SAME"}, (1, 1, 4, 4), ValueError, "auto_pad"),
        ({"kernel_shape": [3, 3], "auto_pad": "VALID", "pads": [1] * 4}, (1, 1, 4, 4), ValueError, "auto_pad"),
        ({"kernel_shape": [3, 3]}, (1, 1, 4, 5), ValueError, "dy"),
        ({"kernel_shape": [3, 3]}, (1, 2, 4, 4), ValueError, "dy"),
        ({"kernel_shape": [9, 9]}, (1, 1, 4, 4), ValueError, "kernel"),
    ],
)
def test_average_pool_grad_errors(attributes: Any, shape: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run("AveragePoolGrad", [DY], attributes, shape)


def test_the_table() -> None:
    rows = {k.op: k for k in onnxruntime.kernels() if k.domain == ""}
    assert list(rows) == ["MaxPoolGrad", "AveragePoolGrad"]
    assert {k.version for k in rows.values()} == {9}
    assert str(rows["MaxPoolGrad"]).startswith("ai.onnx::MaxPoolGrad-9(dY, Indices) [")
    with pytest.raises(ValueError, match=r"domain ''"):
        onnxruntime.run("MaxPoolGrad", [DY, INDICES], output_shapes=[(1, 1, 4, 4)])
