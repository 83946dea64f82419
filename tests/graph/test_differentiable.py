"""Forward and backward of a model: batches that change, live weights, what comes in and what goes out."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((64, 2, 2), (8, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((64, 4, 4), (8, 64, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((64, 5, 6), (8, 64, 2, 3), {"dilations": [2, 1], "strides": [2, 3], "pads": [0, 1, 1, 0]}),
        ((130, 1, 1), (7, 130, 1, 1), {}),
        ((33, 9), (6, 33, 4), {"strides": [2]}),
        ((20, 2, 3, 2), (5, 20, 2, 2, 2), {"pads": [0, 0, 1, 0, 0, 0]}),
    ],
    ids=str,
)
def test_convolutions_to_small_planes_are_products(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    """The forward pass is what ONNX Runtime makes of the convolution itself, for any batch."""
    import onnxruntime

    from backstroke.graph.model import load
    from backstroke.graph.small_planes import rewritten

    made = model([node("Conv", "x w b", "y", **attributes)], {"x": ["N", *x]}, {"w": normal(*w), "b": normal(w[0])})
    changed = rewritten(load(made).build(weights_in=["w"]), load(made), {"w"})
    assert "Gemm" in [n.op_type for n in changed.graph.node]
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    trained = Differentiable(made, of=["y"], wrt=["w", "b"])
    for batch in (3, 1, 5, 0):
        feeds = {"x": normal(batch, *x)}
        (expected,) = session.run(None, feeds)
        np.testing.assert_allclose(trained.forward(feeds)["y"], expected, rtol=1e-4, atol=1e-4)
