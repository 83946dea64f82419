"""Small models and data that the tests of training share."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: list[Any], weights: dict[str, np.ndarray], inputs: dict[str, list[Any]], outputs: dict[str, list[Any]],
    *, opset: int = 17, kinds: dict[str, int] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A model of these nodes, checked."""
    kinds = kinds or {}

    def infos(values: dict[str, list[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), dims) for n, dims in values.items()]

    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "test", infos(inputs), infos(outputs), tensors)
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    helper.set_model_props(made, {"author": "nobody"})
    onnx.checker.check_model(made)
    return made


def dense(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def perceptron(seed: int = 0, width: int = 16, batch: Any = "batch") -> onnx.ModelProto:
    """8 numbers to 4 logits through one hidden layer."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": dense(rng, width, 8), "b1": np.zeros(width, np.float32), "w2": dense(rng, 4, width),
        "b2": np.zeros(4, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first", transB=1),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["logits"], "second", transB=1),
    ]
    return model(nodes, weights, {"x": [batch, 8]}, {"logits": [batch, 4]})


def convolutional(seed: int = 0, channels: int = 6) -> onnx.ModelProto:
    """Images of 3 x 10 x 10 to 4 logits, with batch normalization and dropout."""
    rng = np.random.default_rng(seed)
    weights = {
        "conv": dense(rng, channels, 3, 3, 3) * 2, "scale": np.ones(channels, np.float32),
        "shift": np.zeros(channels, np.float32), "mean": np.zeros(channels, np.float32),
        "var": np.ones(channels, np.float32), "w": dense(rng, 4, channels), "b": np.zeros(4, np.float32),
        "ratio": np.float32(0.25), "train": np.array(False),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], "norm", momentum=0.9),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Dropout", ["f", "ratio", "train"], ["d"], "drop"),
        helper.make_node("Gemm", ["d", "w", "b"], ["logits"], "head", transB=1),
    ]
    return model(nodes, weights, {"x": ["batch", 3, 10, 10]}, {"logits": ["batch", 4]})


def vectors(count: int = 120, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Points of four clouds, for `perceptron`."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    centres = np.random.default_rng(99).normal(size=(4, 8)) * 2
    return (centres[y] + rng.normal(size=(count, 8))).astype(np.float32), y


def images(count: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Images of four textures, for `convolutional`."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    patterns = np.random.default_rng(98).normal(size=(4, 3, 10, 10))
    return (patterns[y] + 0.5 * rng.normal(size=(count, 3, 10, 10))).astype(np.float32), y
