"""`backstroke.onnx`: models with gradient nodes in ONNX' reference evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import same_bits

from backstroke.dialects import onnxruntime

onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
bso = pytest.importorskip("backstroke.onnx")


def model_of(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: dict[str, Any]) -> Any:
    make = onnx.helper
    kind = make.np_dtype_to_tensor_dtype
    info = [make.make_tensor_value_info(name, kind(x.dtype), x.shape) for name, x in inputs.items()]
    results = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    opsets = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
    return make.make_model(make.make_graph(nodes, "g", info, results), opset_imports=opsets)


def evaluate(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = onnx.reference.ReferenceEvaluator(model, new_ops=bso.ops(model)).run(None, inputs)
    return found


@pytest.mark.parametrize("kernel", onnxruntime.kernels(), ids=lambda k: k.op)
def test_every_op_has_a_class(kernel: Any) -> None:
    found = [c for c in bso.ops() if (c.op_domain, c.__name__) == (kernel.domain, kernel.op)]
    assert len(found) == 1
    assert found[0].__doc__ == str(kernel)


@pytest.mark.parametrize(
    "kernel", [k for k in onnxruntime.kernels() if k.inputs in (("dY", "X"), ("dY", "Y"))], ids=lambda k: k.op
)
def test_elementwise_and_softmax(kernel: Any) -> None:
    rng = np.random.default_rng(0)
    inputs = dict(zip(kernel.inputs, rng.random((2, 3, 4, 5)).astype(np.float32), strict=False))
    given = {a.name: 0.25 if a.kind == "FLOAT" else 1 for a in kernel.attributes}
    node = onnx.helper.make_node(kernel.op, list(inputs), ["dX"], domain=kernel.domain, **given)
    (found,) = evaluate(model_of([node], inputs, {"dX": (3, 4, 5)}), inputs)
    (want,) = onnxruntime.run(kernel.op, list(inputs.values()), given, domain=kernel.domain)
    assert same_bits(found, want)


def test_a_model_with_several_gradient_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 8, 8)).astype(np.float32), rng.normal(size=(2, 3, 2, 2)).astype(np.float32)
    make = onnx.helper.make_node
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("MaxPool", ["r"], ["m", "indices"], **window),
        make("AveragePoolGrad", ["dy"], ["dm"], **window),
        make("MaxPoolGrad", ["dm", "indices"], ["dr"], **window),
        make("ReluGrad", ["dr", "x"], ["dx"], domain="com.microsoft"),
    ]
    inputs = {"x": x, "dy": dy}
    model = model_of(nodes, inputs, {"dx": x.shape})
    for name, shape in (("dm", (2, 3, 4, 4)), ("dr", ("batch", 3, 8, 8))):
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    (dx,) = evaluate(model, inputs)
    spread = np.repeat(np.repeat(dy, 4, 2), 4, 3) / 4
    blocks = x.reshape(2, 3, 4, 2, 4, 2).max((3, 5))
    top = np.repeat(np.repeat(blocks, 2, 2), 2, 3)
    np.testing.assert_array_equal(dx, np.where((x == top) & (x > 0), spread, 0))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    (again,) = onnx.reference.ReferenceEvaluator(model, new_ops=bso.ops(str(path))).run(None, inputs)
    assert same_bits(again, dx)


def test_convolution_and_its_outputs_that_nobody_wants() -> None:
    """An output without a name is not computed, and the others are what they are."""
    rng = np.random.default_rng(0)
    shapes = {"dY": (2, 4, 5, 6), "X": (2, 4, 5, 6), "W": (4, 2, 3, 3)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    attributes = {"pads": [1, 1, 1, 1], "group": 2}
    whole = onnxruntime.run("ConvGrad", list(inputs.values()), attributes, outputs=3)
    want = dict(zip(("dx", "dw", "db"), whole, strict=True))
    for names in (["dx", "dw", "db"], ["dx"], ["", "dw"], ["", "", "db"], ["dx", "", "db"]):
        node = onnx.helper.make_node("ConvGrad", list(inputs), names, domain="com.microsoft", **attributes)
        named = [name for name in names if name]
        found = evaluate(model_of([node], inputs, {name: want[name].shape for name in named}), inputs)
        assert all(map(same_bits, found, [want[name] for name in named]))


def test_a_shape_that_is_not_stated() -> None:
    dy, indices = np.ones((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.int64)
    node = onnx.helper.make_node("MaxPoolGrad", ["dy", "indices"], ["dx"], kernel_shape=[2])
    inputs = {"dy": dy, "indices": indices}
    model = model_of([node], inputs, {"dx": None})
    with pytest.raises(ValueError, match="output_shapes is None"):
        evaluate(model, inputs)


def test_a_type_that_is_not_taken() -> None:
    inputs = {"dY": np.ones(3, np.int32), "X": np.ones(3, np.int32)}
    node = onnx.helper.make_node("ReluGrad", ["dY", "X"], ["dX"], domain="com.microsoft")
    with pytest.raises(ValueError, match="dy has type int32"):
        evaluate(model_of([node], inputs, {"dX": (3,)}), inputs)
