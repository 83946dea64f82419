"""Models and arguments that will not do: every error says what, and where; nothing ends the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnx
from onnx import TensorProto, helper

import backstroke as bs
from backstroke.graph import Differentiable
from tests.graph.models import model, node, normal


def linear() -> onnx.ModelProto:
    return model([node("Gemm", "x w", "h"), node("Relu", "h", "y")], {"x": ["N", 3]}, {"w": normal(3, 2)})


def test_an_op_without_a_gradient_is_named_with_its_way() -> None:
    nodes = [
        node("Gemm", "x w", "h"),
        node("CumSum", "h axis", "s", name="sums"),
        node("Relu", "s", "r", name="rectifier"),
        node("Gemm", "r v", "y", name="head"),
    ]
    weights = {"w": normal(3, 2), "v": normal(2, 2), "axis": np.asarray(1)}
    tested = model(nodes, {"x": ["N", 3]}, weights)
    words = r"'sums' \(CumSum\) has no gradient.*sums -> rectifier -> head -> y.*[Ff]reeze"
    with pytest.raises(bs.UnsupportedError, match=words):
        bs.grad(tested, of="y", wrt=["w"])
    bs.grad(tested, of="y", wrt=["v"])({"x": normal(1, 3)}, dy={"y": normal(1, 2)})  # above it, all is well


def test_control_flow_is_named() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, "h", f"{op}_out")], op, [], [_info(f"{op}_out")])

    nodes = [
        node("Gemm", "x w", "h"),
        helper.make_node("If", ["yes"], ["y"], "choice", then_branch=branch("Relu"), else_branch=branch("Neg")),
    ]
    tested = model(nodes, {"x": ["N", 3]}, {"w": normal(3, 2), "yes": np.asarray(True)})
    with pytest.raises(bs.UnsupportedError, match=r"'choice' \(If\) is control flow"):
        bs.grad(tested, of="y", wrt=["w"])


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"of": "logits", "wrt": ["w"]}, ValueError, "of: the model has no tensor 'logits'; its outputs are 'y'"),
        ({"of": "y", "wrt": ["q"]}, ValueError, "wrt: 'q' is not in the model"),
        ({"of": "y", "wrt": ["h"]}, ValueError, "wrt: 'h' is computed in the model"),
        ({"of": "y", "wrt": []}, ValueError, "wrt is empty"),
        ({"of": "y", "wrt": ["w", "w"]}, ValueError, "wrt names a tensor twice"),
        ({"of": "y", "wrt": [1]}, TypeError, "wrt is"),
        ({"of": "y", "wrt": 1}, TypeError, "wrt is a int"),
    ],
)
def test_names_are_checked(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bs.grad(linear(), **arguments)


def test_integers_have_no_gradient() -> None:
    tested = model([node("Gather", "w i", "y")], {"i": np.zeros(2, np.int64)}, {"w": normal(3, 2)})
    with pytest.raises(TypeError, match="wrt: 'i' has type int64"):
        bs.grad(tested, of="y", wrt=["i"])
    tested = model([node("Shape", "x", "s"), node("Cast", "s", "y", to=1)], {"x": ["N", 3]})
    with pytest.raises(ValueError, match="no path leads from it to 'y'"):
        bs.grad(tested, of="y", wrt=["x"])


@pytest.mark.parametrize(
    ("feeds", "error", "words"),
    [
        ({}, ValueError, r"feeds: \[\] given, expected the model's inputs, \['x'\]"),
        ({"x": np.zeros((2, 3))}, TypeError, "feeds: 'x' has type float64; expected float32"),
        ({"x": np.zeros((2, 4), np.float32)}, ValueError, r"feeds: 'x' has shape \(2, 4\); expected \('N', 3\)"),
        ({"x": np.zeros(3, np.float32)}, ValueError, "feeds: 'x' has shape"),
        ([1], TypeError, "feeds is a list"),
    ],
)
def test_feeds_are_checked(feeds: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bs.grad(linear(), of="y", wrt=["w"])(feeds)


@pytest.mark.parametrize(
    ("dy", "error", "words"),
    [
        (None, ValueError, "dy is missing"),
        ({"z": normal(2, 2)}, ValueError, "expected gradients of"),
        ({"y": normal(2, 3)}, ValueError, r"dy: 'y' has shape \(2, 3\); expected \(2, 2\)"),
        ({"y": np.zeros((2, 2))}, TypeError, "dy: 'y' has type float64"),
        (3, TypeError, "dy is a int"),
    ],
)
def test_dy_is_checked(dy: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bs.grad(linear(), of="y", wrt=["w"])({"x": normal(2, 3)}, dy=dy)


def test_one_backward_for_each_forward() -> None:
    d = Differentiable(linear(), of=["y"], wrt=["w"])
    with pytest.raises(ValueError, match="call forward first"):
        d.backward({"y": normal(2, 2)})
    d.forward({"x": normal(2, 3)})
    with pytest.raises(ValueError, match="has shape"):
        d.backward({"y": normal(2, 3)})
    d.backward({"y": normal(2, 2)})  # what was refused has changed nothing
    with pytest.raises(ValueError, match="call forward first"):
        d.backward({"y": normal(2, 2)})


@pytest.mark.parametrize("cut", [0, 1, 40, -1], ids=["empty", "one byte", "head", "all but one byte"])
def test_a_damaged_file_is_an_error(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear().SerializeToString()[:cut])
    with pytest.raises(ValueError, match="model"):
        bs.grad(path, of="y", wrt=["w"])


def test_other_things_than_models_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        bs.grad(tmp_path / "none.onnx", of="y", wrt=["w"])
    with pytest.raises(TypeError, match="model is a int"):
        bs.grad(3, of="y", wrt=["w"])
    with pytest.raises(ValueError, match=r"not a whole ONNX model|not an ONNX model"):
        bs.grad(b"not a model", of="y", wrt=["w"])
    old = linear()
    old.opset_import[0].version = 9
    with pytest.raises(bs.UnsupportedError, match="opset 9; expected 11"):
        bs.grad(old, of="y", wrt=["w"])
    loose = linear()
    loose.graph.node[1].input[0] = "nothing"
    with pytest.raises(ValueError, match="reads 'nothing', which nothing makes before"):
        bs.grad(loose, of="y", wrt=["w"])


def test_a_model_that_onnxruntime_refuses_is_an_error() -> None:
    tested = model([node("Gemm", "x w", "y")], {"x": ["N", 3]}, {"w": normal(4, 2)})
    with pytest.raises(ValueError, match=r"model|onnxruntime"):
        bs.grad(tested, of="y", wrt=["w"])({"x": normal(2, 3)}, dy={"y": normal(2, 2)})


def test_external_weights_work(tmp_path: Path) -> None:
    path, x, dy = tmp_path / "model.onnx", normal(2, 3), normal(2, 2)
    tested = linear()
    expected = bs.grad(tested, of="y", wrt=["w", "x"])({"x": x}, dy={"y": dy})
    onnx.save_model(tested, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    found = bs.grad(path, of="y", wrt=["w", "x"])({"x": x}, dy={"y": dy})
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with pytest.raises(ValueError, match="'w' lies in another file; expected a path"):
        bs.grad(path.read_bytes(), of="y", wrt=["w"])
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ValueError, match="weight 'w' cannot be read from its own file"):
        bs.grad(path, of="y", wrt=["w"])


def test_a_file_of_weights_beyond_two_gigabytes(tmp_path: Path) -> None:
    """A sparse file: a weight lies behind 2 GB of nothing, where 32 bits do not reach."""
    path, x, dy = tmp_path / "model.onnx", normal(2, 3), normal(2, 2)
    tested = linear()
    expected = bs.grad(tested, of="y", wrt=["w", "x"])({"x": x}, dy={"y": dy})
    onnx.save_model(tested, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    proto, file, far = onnx.load(path, load_external_data=False), tmp_path / "weights.bin", (1 << 31) + 4096
    raw = file.read_bytes()
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + far)
    path.write_bytes(proto.SerializeToString())
    with file.open("wb") as out:
        out.seek(far)
        out.write(raw)
    found = bs.grad(path, of="y", wrt=["w", "x"])({"x": x}, dy={"y": dy})
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with file.open("rb+") as out:
        out.truncate(far + len(raw) - 4)
    with pytest.raises(ValueError, match=r"weight 'w' cannot be read from its own file: 'weights.bin' ends before it"):
        bs.grad(path, of="y", wrt=["w"])


def test_weights_of_their_own_file_lie_in_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "model.onnx"
    onnx.save_model(linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").write_bytes((tmp_path / "inside" / "weights.bin").read_bytes())
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match="leaves the model's folder"):
        bs.grad(path, of="y", wrt=["w"])


def test_large_weights_are_never_part_of_a_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at 2 GB. Sessions get weights, frozen ones too, beside the model."""
    import onnxruntime

    tested = model(
        [node("MatMul", "x frozen", "h"), node("MatMul", "h w", "y")],
        {"x": ["N", 300]}, {"frozen": normal(300, 300), "w": normal(300, 4)},
    )  # fmt: skip
    sizes, made = [], onnxruntime.InferenceSession

    def session(data: bytes, *arguments: object, **options: object) -> object:
        sizes.append(len(data))
        return made(data, *arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    x, dy = normal(2, 300), normal(2, 4)
    found = bs.grad(tested, of="y", wrt=["w"])({"x": x}, dy={"y": dy})["w"]
    frozen = onnx.numpy_helper.to_array(tested.graph.initializer[0])
    assert np.allclose(found, (x @ frozen).T @ dy, atol=1e-3)
    assert len(sizes) >= 2
    assert max(sizes) < 2000


def test_an_empty_batch() -> None:
    found = bs.grad(linear(), of="y", wrt=["w", "x"])({"x": np.zeros((0, 3), np.float32)}, dy={"y": normal(0, 2)})
    assert found["x"].shape == (0, 3)
    assert np.array_equal(found["w"], np.zeros((3, 2)))
