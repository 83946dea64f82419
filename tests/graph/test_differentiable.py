"""Forward and backward of a model: batches that change, live weights, what comes in and what goes out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from backstroke.graph import Differentiable
from backstroke.graph.check import check_gradients
from tests.graph.models import model, node, normal


def small() -> object:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f v a", "y", transB=1),
    ]
    weights = {"w": normal(3, 1, 3, 3), "b": normal(3), "v": normal(5, 48), "a": normal(5)}
    return model(nodes, {"x": ["N", 1, 8, 8]}, weights)


@pytest.mark.parametrize("count", [1, 4])
def test_gradients_are_right(count: int) -> None:
    for checked in check_gradients(small(), {"x": normal(count, 1, 8, 8)}):
        assert checked.error < 1e-5, checked


def test_weights_are_live() -> None:
    d = Differentiable(small(), of=["y"], wrt=["w", "a"])
    x = normal(2, 1, 8, 8)
    before = d.forward({"x": x})["y"].copy()
    d.parameters["a"] += 1
    assert np.allclose(d.forward({"x": x})["y"], before + 1, atol=1e-5)
