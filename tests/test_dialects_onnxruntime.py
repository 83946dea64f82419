"""The ONNX Runtime dialect: its own cases, its defaults, its old axis rule, its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import data

import backstroke as bs
from backstroke.dialects import onnxruntime
from backstroke.dialects.table import REQUIRED

CASES = data("ort_elementwise_cases.json")


def _softmax(x: np.ndarray, axis: int, legacy: bool) -> np.ndarray:
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1) if legacy else x
    along = 1 if legacy else axis
    e = np.exp(flat - flat.max(axis=along, keepdims=True))
    return (e / e.sum(axis=along, keepdims=True)).reshape(x.shape)


def _forward(case: dict[str, Any]) -> tuple[Callable[[np.ndarray], np.ndarray], str, bool]:
    """The forward function, the name of its gradient, and whether that takes the forward output."""
    alpha = case["attrs"].get("alpha", {"LeakyRelu": 0.01, "QuickGelu": 1.702}.get(case["op"]))
    legacy = case["forward_opset"] < 13
    axis = case["attrs"].get("axis", 1 if legacy else -1)
    suffix = "Grad" if legacy else "Grad_13"
    return {
        "Softmax": (lambda x: _softmax(x, axis, legacy), f"Softmax{suffix}", True),
        "LogSoftmax": (lambda x: np.log(_softmax(x, axis, legacy)), f"LogSoftmax{suffix}", True),
        "Relu": (lambda x: np.maximum(x, 0), "ReluGrad", False),
        "LeakyRelu": (lambda x: np.where(x > 0, x, alpha * x), "LeakyReluGrad", True),
        "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "SigmoidGrad", True),
        "Tanh": (np.tanh, "TanhGrad", True),
        "QuickGelu": (lambda x: x / (1 + np.exp(-alpha * x)), "QuickGeluGrad", False),
    }[case["op"]]


@pytest.mark.parametrize("case", CASES["gradient_cases"], ids=lambda case: case["name"])
def test_gradient_cases(case: dict[str, Any]) -> None:
    """The whole Jacobian, as ONNX Runtime's gradient checker takes it, within its tolerance (and ours, 1e-4)."""
    forward, name, from_output = _forward(case)
    x = np.random.default_rng(5566).normal(0, 5, case["x"][0])
    if "x_transform" in case:
        x = np.where(x > 0, x + 0.2, x - 0.2)
    saved = (forward(x) if from_output else x).astype(np.float32)
    worst = 0.0
    for i in range(x.size):
        dy = np.zeros(x.size, np.float32)
        dy[i] = 1
        (row,) = onnxruntime.run(name, [dy.reshape(x.shape), saved], case["attrs"])
        for j in range(x.size):
            step = np.zeros(x.size)
            step[j] = 1e-5
            moved = (forward(x + step.reshape(x.shape)) - forward(x - step.reshape(x.shape))).reshape(-1)
            worst = max(worst, abs(float(row.reshape(-1)[j]) - moved[i] / 2e-5))
    assert worst <= min(case["tol"], 1e-4)


@pytest.mark.parametrize("case", CASES["kernel_cases"], ids=lambda case: case["op"] + str(case["attrs"]))
def test_kernel_cases(case: dict[str, Any]) -> None:
    first, second = (np.array(v, np.float32) for v in case["inputs"].values())
    (dx,) = onnxruntime.run(case["op"], [first, second], case["attrs"], domain=case["domain"])
    name = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "LeakyRelu": "leaky_relu", "QuickGelu": "quick_gelu"}
    twin = getattr(bs.reference, name[case["op"].removesuffix("Grad")] + "_grad")
    assert np.allclose(dx, twin(first, second, **case["attrs"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", CASES["softmax_grad_cpu_vs_cuda"]["ops"])
@pytest.mark.parametrize("shape", [(4, 2, 128), (8, 16, 2048), (8, 16, 512), (8, 16, 1500)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 1e-3)])
def test_shapes_of_its_cuda_comparison(
    op: str, shape: tuple[int, ...], axis: int, dtype: Any, tolerance: float
) -> None:
    rng = np.random.default_rng(5566)
    dy, y = rng.uniform(-1, 1, shape).astype(dtype), rng.uniform(-1.02, 1.02, shape).astype(dtype)
    twin = {"SoftmaxGrad": bs.reference.softmax_grad, "LogSoftmaxGrad": bs.reference.log_softmax_grad}[op]
    want = twin(dy, y, axis=axis)
    (dx,) = onnxruntime.run(op + "_13", [dy, y], {"axis": axis})
    assert np.allclose(dx, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
    flat = int(np.prod(shape[:axis])), -1
    (dx,) = onnxruntime.run(op, [dy, y], {"axis": axis})
    want = twin(dy.reshape(flat), y.reshape(flat)).reshape(shape)
    assert np.allclose(dx, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_defaults_are_the_schema_s() -> None:
    rng = np.random.default_rng(0)
    dy, y = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    run = onnxruntime.run
    assert np.array_equal(run("LeakyReluGrad", [dy, y])[0], bs.leaky_relu_grad(dy, y, alpha=0.01))
    assert np.array_equal(run("QuickGeluGrad", [dy, y])[0], bs.quick_gelu_grad(dy, y, alpha=1.702))
    assert np.array_equal(run("SoftmaxGrad_13", [dy, y])[0], bs.softmax_grad(dy, y, axis=-1))
    whole = bs.softmax_grad(dy.reshape(2, 12), y.reshape(2, 12)).reshape(2, 3, 4)
    assert np.array_equal(run("SoftmaxGrad", [dy, y])[0], whole)


def test_float_attributes_are_float32() -> None:
    (dx,) = onnxruntime.run("LeakyReluGrad", [np.ones(1), np.full(1, -1.0)], {"alpha": 0.1})
    assert dx[0] == np.float64(np.float32(0.1))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)])
def test_empty_dimensions(shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape, np.float32)
    for op in ("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13"):
        assert onnxruntime.run(op, [empty, empty])[0].shape == shape


def test_unnamed_attributes_pass_where_the_schema_is_open() -> None:
    one = np.ones(1, np.float32)
    onnxruntime.run("SigmoidGrad", [one, one], {"whatever": 3})
    with pytest.raises(ValueError, match="ReluGrad has no attribute 'whatever'; expected none"):
        onnxruntime.run("ReluGrad", [one, one], {"whatever": 3})


ONE = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda run: run("GeluGrad", [ONE, ONE]), ValueError, "'GeluGrad' is not an op of the ONNX Runtime dialect"),
        (lambda run: run("ReluGrad", [ONE, ONE], domain=""), ValueError, "in domain 'com.microsoft'"),
        (lambda run: run("ReluGrad", [ONE]), ValueError, "got 1 inputs; expected dY, X"),
        (lambda run: run("ReluGrad", [ONE, None]), ValueError, "input X of ReluGrad is missing"),
        (lambda run: run("ReluGrad", ONE), TypeError, "inputs is a ndarray"),
        (lambda run: run("ReluGrad", [ONE, ONE], [1]), TypeError, "attributes is a list"),
        (lambda run: run("ReluGrad", [ONE, ONE], outputs=2), ValueError, "outputs is 2"),
        (lambda run: run("SoftmaxGrad", [ONE, ONE], {"axis": 2}), ValueError, "axis is 2"),
        (lambda run: run("SoftmaxGrad", [ONE, ONE], {"axis": 1.0}), TypeError, "attribute axis is 1.0; expected INT"),
        (lambda run: run("SoftmaxGrad", [ONE, ONE], {"axis": 2**80}), ValueError, "axis is 1208925819614629174706176"),
        (lambda run: run("SoftmaxGrad_13", [np.float32(1), np.float32(1)]), ValueError, "axis is -1; expected none"),
        (lambda run: run("QuickGeluGrad", [ONE, ONE], {"alpha": "x"}), TypeError, "expected FLOAT"),
        (lambda run: run("ReluGrad", [ONE, ONE[:1]]), ValueError, "x has shape"),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(onnxruntime.run)


def test_the_table_tells_the_contract() -> None:
    rows = {(row.domain, row.op): row for row in onnxruntime.kernels()}
    row = rows["com.microsoft", "LeakyReluGrad"]
    assert str(row) == "com.microsoft::LeakyReluGrad-1(dY, Y) [alpha: FLOAT = 0.01]"
    assert "float32" in row.types
    assert all(a.default is not REQUIRED for a in row.attributes)
    assert len(rows) == len(onnxruntime.kernels())
