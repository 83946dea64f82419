"""The gradient graph as an ONNX model: ONNX' checker passes it, and ONNX Runtime's training build runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnx

import backstroke as bs
from peers import why_absent
from tests.graph.models import Array, distinct, model, node, normal, positive

RUN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
feeds = dict(numpy.load(sys.argv[2]))
numpy.savez(sys.argv[3], **dict(zip(names, session.run(names, feeds))))
"""


def theirs(gradients: onnx.ModelProto, feeds: dict[str, Array], folder: Path) -> dict[str, Array]:
    """What ONNX Runtime's training build makes of the model, in a process that may die."""
    paths = [str(folder / name) for name in ("model.onnx", "feeds.npz", "found.npz")]
    onnx.save(gradients, paths[0])
    np.savez(paths[1], **feeds)
    done = subprocess.run([sys.executable, "-c", RUN, *paths], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(paths[2]))


def cnn() -> Any:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c s o m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "p", "q", kernel_shape=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1, strides=[2, 2]),
        node("ConvTranspose", "q t", "u", strides=[2, 2]),
        node("GlobalAveragePool", "u", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f a d", "l", transB=1),
        node("LogSoftmax", "l", "y", axis=1),
    ]
    weights = {"w": normal(3, 2, 3, 3), "b": normal(3), "s": positive(3), "o": normal(3), "m": normal(3)}
    weights |= {"v": positive(3), "t": normal(3, 4, 2, 2), "a": normal(5, 4), "d": normal(5)}
    return model(nodes, {"x": ["N", 2, 8, 8]}, weights), {"x": normal(3, 2, 8, 8)}


def mixture() -> Any:
    nodes = [
        node("LayerNormalization", "x s b", "n"),
        node("MatMul", "n w", "h"),
        node("QuickGelu", "h", "k", domain="com.microsoft"),
        node("Split", "k", "k1 k2", axis=1),
        node("Elu", "k1", "e"),
        node("Softmax", "k2", "z", axis=-1),
        node("Mul", "e z", "p"),
        node("Add", "p c", "q"),
        node("Concat", "q e", "r", axis=2),
        node("Transpose", "r", "t", perm=[1, 0, 2]),
        node("ReduceMean", "t", "m", axes=[0], keepdims=0),
        node("Sigmoid", "m", "y"),
    ]
    weights = {"s": positive(6), "b": normal(6), "w": normal(6, 4), "c": normal(1, 4)}
    return model(nodes, {"x": ["N", 4, 6]}, weights, microsoft=True, opset=17), {"x": normal(3, 4, 6)}


def pools() -> Any:
    nodes = [
        node("AveragePool", "x", "a", kernel_shape=[3], strides=[2], pads=[1, 0], count_include_pad=1),
        node("MaxPool", "a", "p", kernel_shape=[2], strides=[1]),
        node("Resize", ["p", "", "scales"], "y", mode="linear"),
    ]
    return model(nodes, {"x": [2, 3, 11]}, {"scales": np.float32([1, 1, 2])}), {"x": distinct(2, 3, 11)}


MODELS = {"cnn": cnn, "mixture": mixture, "pools": pools}


@pytest.mark.parametrize("name", MODELS)
def test_the_training_build_computes_our_gradients(name: str, tmp_path: Path) -> None:
    if why := why_absent("ort"):
        pytest.skip(why)
    tested, feeds = MODELS[name]()
    wrt = ["x", *(w.name for w in tested.graph.initializer if w.name not in ("scales", "m", "v"))]
    gradients = bs.gradient_model(tested, of="y", wrt=wrt)
    dy = normal(*onnx_shape(tested, feeds))
    found = theirs(gradients, {**feeds, "y_grad": dy}, tmp_path)
    for gradient, expected in bs.grad(tested, of="y", wrt=wrt)(feeds, dy={"y": dy}).items():
        error = np.linalg.norm(found[f"{gradient}_grad"] - expected) / np.linalg.norm(expected)
        assert error < 1e-5, (gradient, error)


def onnx_shape(tested: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[int, ...]:
    """The shape of the output "y"."""
    from backstroke.graph import Differentiable

    return Differentiable(tested, of=["y"], wrt=["x"]).forward(feeds)["y"].shape


@pytest.mark.parametrize("name", MODELS)
def test_it_is_an_onnx_model_with_gradients_by_name(name: str) -> None:
    tested, _ = MODELS[name]()
    gradients = bs.gradient_model(tested, of=["y"], wrt=["x"])
    assert [i.name for i in gradients.graph.input] == ["x", "y_grad"]
    assert [o.name for o in gradients.graph.output] == ["y", "x_grad"]
    assert {n.domain for n in gradients.graph.node} <= {"", "com.microsoft"}


def test_one_gradient_for_two(tmp_path: Path) -> None:
    tested = model([node("Add", "x a", "y")], {"x": [2, 3]}, {"a": normal(2, 3)})
    gradients = bs.gradient_model(tested, of="y", wrt=["x", "a"])
    assert [o.name for o in gradients.graph.output] == ["y", "x_grad", "a_grad"]
