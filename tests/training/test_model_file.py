"""The model file: what is not a weight keeps its bytes; external data; what cannot be read or written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backstroke.training import files, wire
from backstroke.training.model_file import ModelFile

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def model(form: str = "raw") -> Any:
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(4, 3)).astype("f4"), "b": rng.normal(size=3), "n": np.arange(3)}

    def tensor(name: str, x: np.ndarray) -> Any:
        if form == "raw" or x.dtype.kind != "f":
            return numpy_helper.from_array(x, name)
        return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape, x.ravel())

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="first", doc_string="the only node")],
        "a graph",
        [info("x", 1, ["batch", 4])],
        [info("y", 1, ["batch", 3])],
        [tensor(name, x) for name, x in arrays.items()],
        doc_string="what it is",
    )
    result = helper.make_model(graph, producer_name="someone", opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(result, {"author": "nobody"})
    return result


def other_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"w": rng.normal(size=(4, 3)).astype("f4"), "b": rng.normal(size=3)}


def external(folder: Path, **options: Any) -> Path:
    path = folder / "model.onnx"
    onnx.save(model(), path, save_as_external_data=True, size_threshold=0, **options)
    return path


def without_weights(proto: Any) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        for field in ("raw_data", "float_data", "double_data"):
            if tensor.name in ("w", "b"):
                tensor.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))


@pytest.mark.parametrize("form", ["raw", "typed"])
def test_weights_are_found(form: str) -> None:
    proto = model(form)
    file = ModelFile(proto)
    for tensor in proto.graph.initializer:
        if tensor.name != "n":
            np.testing.assert_array_equal(file.read(tensor.name), numpy_helper.to_array(tensor))
            assert file.weights[tensor.name].dtype == numpy_helper.to_array(tensor).dtype
    assert list(file.weights) == ["w", "b"]


@pytest.mark.parametrize("form", ["raw", "typed"])
def test_only_the_weights_bytes_change(form: str, tmp_path: Path) -> None:
    proto, values = model(form), other_weights()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    file = ModelFile(path)
    file.save(tmp_path / "tuned.onnx", values)
    old, new = path.read_bytes(), (tmp_path / "tuned.onnx").read_bytes()
    assert len(old) == len(new)
    places = [segment for name in values for segment in file.weights[name].segments]
    kept = np.ones(len(old), bool)
    for start, stop in places:
        kept[start:stop] = False
    np.testing.assert_array_equal(np.frombuffer(old, np.uint8)[kept], np.frombuffer(new, np.uint8)[kept])
    tuned = onnx.load(tmp_path / "tuned.onnx")
    onnx.checker.check_model(tuned, full_check=True)
    for tensor in tuned.graph.initializer:
        wanted = values.get(tensor.name, np.arange(3))
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), wanted)
    file.save(tmp_path / "same.onnx", {name: file.read(name) for name in values})
    assert (tmp_path / "same.onnx").read_bytes() == old


def test_numbers_one_by_one_and_unknown_fields_are_kept() -> None:
    """Old writers did not pack float_data; and a field that this library has never heard of."""
    value = np.float32([1.5, -2.5])
    tensor = b"\x08\x02\x10\x01\x42\x01w" + b"".join(b"\x25" + v.tobytes() for v in value)
    graph = b"\x2a" + wire.encoded(len(tensor)) + tensor + b"\xfa\x7f\x03abc"
    data = b"\x08\x08\x3a" + wire.encoded(len(graph)) + graph + b"\xf8\x7f\x05"
    file = ModelFile(data)
    np.testing.assert_array_equal(file.read("w"), value)
    new = np.float32([7, 8])
    assert b"".join(map(bytes, file.content({"w": new}))) == data.replace(value[:1], new[:1]).replace(
        value[1:], new[1:]
    )


@pytest.mark.parametrize("options", [{"location": "all.bin"}, {"all_tensors_to_one_file": False}])
@pytest.mark.parametrize("where", ["beside", "elsewhere", "itself"])
def test_external_weights(options: dict[str, Any], where: str, tmp_path: Path) -> None:
    path = external(tmp_path, **options)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    goal = {"beside": tmp_path / "tuned.onnx", "elsewhere": tmp_path / "out" / "tuned.onnx", "itself": path}[where]
    goal.parent.mkdir(exist_ok=True)
    file, values = ModelFile(path), other_weights()
    file.save(goal, values)
    tuned = onnx.load(goal)
    onnx.checker.check_model(str(goal), full_check=True)
    for tensor in tuned.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), values.get(tensor.name, np.arange(3)))
    assert without_weights(tuned) == without_weights(onnx.load(path))
    if where != "itself":
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
    if where != "beside":
        assert goal.read_bytes() == before["model.onnx"]


def test_no_file_of_another_model_is_written_over(tmp_path: Path) -> None:
    path, out = external(tmp_path, location="all.bin"), tmp_path / "out"
    out.mkdir()
    (out / "all.bin").write_bytes(b"of another model")
    for _ in range(2):
        ModelFile(path).save(out / "tuned.onnx", other_weights())
    assert sorted(each.name for each in out.iterdir()) == ["all.bin", "tuned.onnx", "tuned.onnx.data"]
    assert (out / "all.bin").read_bytes() == b"of another model"
    for _ in range(2):
        ModelFile(out / "tuned.onnx", home=path).save(tmp_path / "again.onnx", {})
    found = sorted(each.name for each in tmp_path.iterdir() if each.is_file())
    assert found == ["again.onnx", "again.onnx.data", "all.bin", "model.onnx"]


def test_external_weights_are_copied_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model larger than memory streams: never is more than a chunk of its file read at once."""
    monkeypatch.setattr("backstroke.training.model_file.CHUNK", 16)
    path, values = external(tmp_path, location="all.bin"), other_weights()
    file = ModelFile(path)
    assert len(file.data) < 1000
    file.save(tmp_path / "tuned.onnx", {"b": values["b"]})
    tuned = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "tuned.onnx").graph.initializer
    }
    np.testing.assert_array_equal(tuned["b"], values["b"])
    np.testing.assert_array_equal(tuned["w"], file.read("w"))


def test_a_longer_name_makes_every_message_around_it_longer(tmp_path: Path) -> None:
    path = external(tmp_path, location="a")
    goal = tmp_path / ("t" * 200)
    ModelFile(path).save(goal, {})
    onnx.checker.check_model(onnx.load(goal))
    assert (tmp_path / ("t" * 200 + ".data")).exists()


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_corrupt_file_is_an_error(cut: int, tmp_path: Path) -> None:
    data = model().SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(data[:-cut])
    with pytest.raises(ValueError, match=r"model: '.*cut.onnx' is not a whole ONNX model"):
        ModelFile(tmp_path / "cut.onnx")


def test_no_bytes_break_the_reader() -> None:
    rng, data = np.random.default_rng(4), bytearray(model().SerializeToString())
    for _ in range(2000):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            damaged[at] = rng.integers(256)
        try:
            file = ModelFile(bytes(damaged))
            for name in file.weights:
                file.read(name)
        except ValueError:
            pass


def test_bad_models(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model is a int; expected a path, bytes or"):
        ModelFile(3)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        ModelFile(tmp_path / "none.onnx")
    path = external(tmp_path, location="all.bin")
    with pytest.raises(ValueError, match=r"weights lie in the file 'all.bin'; expected the model's path"):
        ModelFile(path.read_bytes()).read("w")
    (tmp_path / "all.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="weight 'w' has 5 bytes; expected 48"):
        ModelFile(path).read("w")
    with pytest.raises(ValueError, match=r"the file of weights 'all.bin' is shorter than the model says"):
        ModelFile(path).save(tmp_path / "t.onnx", {"b": np.zeros(3)})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["all.bin", "model.onnx"]
    escaped = path.read_bytes().replace(b"all.bin", b"../.bin")
    path.write_bytes(escaped)
    with pytest.raises(ValueError, match=r"weights lie in '\.\./\.bin'; expected a file in the model's folder"):
        ModelFile(path).read("w")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"v": np.zeros(3)}, "no floating-point weight 'v'"),
        ({"b": np.zeros(4)}, r"weight 'b' is float64 of shape \(4,\); expected float64 of shape \(3,\)"),
        ({"b": np.zeros(3, "f4")}, "weight 'b' is float32"),
    ],
)
def test_other_weights_are_refused(values: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        ModelFile(model()).save(tmp_path / "tuned.onnx", values)
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"out: .* is a folder; expected the path of a file"):
        files.checked_output("out", tmp_path)
    with pytest.raises(ValueError, match=r"out: .* cannot be written: there is no folder"):
        files.checked_output("out", tmp_path / "none" / "t.onnx")
    with pytest.raises(ValueError, match="and the disk has"):
        files.checked_output("out", tmp_path / "t.onnx", 1 << 60)

    def refuse(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ValueError, match="cannot be written: Permission denied"):
        files.checked_output("out", tmp_path / "t.onnx")


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o640)

    def fail() -> None:
        with files.whole(path) as file:
            file.write(b"half of the n")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    assert path.read_bytes() == b"old"
    with files.whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f"]


def test_weights_in_constant_nodes(tmp_path: Path) -> None:
    """Where a model has no initializers, its Constants of more than one number are its weights, by their outputs."""
    import backstroke as bs

    w, b, half = np.arange(12, dtype=np.float32).reshape(3, 4), np.float32([1, 2, 3]), np.float32([0.5])
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w, "any")),
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(half)),
        helper.make_node("Constant", [], ["b"], value=helper.make_tensor("", onnx.TensorProto.FLOAT, [3], b.tolist())),
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=1),
        helper.make_node("Mul", ["g", "half"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", size]) for n, size in (("x", 4), ("y", 3))]
    made = helper.make_model(
        helper.make_graph(nodes, "constants", infos[:1], infos[1:]),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    file = ModelFile(made)
    assert set(file.weights) == {"w", "b"}
    file.save(tmp_path / "new.onnx", {"w": w + 1, "b": b + 1})
    found = onnx.load(tmp_path / "new.onnx")
    values = [numpy_helper.to_array(n.attribute[0].t) for n in found.graph.node[:3]]
    for value, expected in zip(values, (w + 1, half, b + 1), strict=True):
        np.testing.assert_array_equal(value, expected)
    trainer = bs.Trainer(made, loss="mse", optimizer=bs.SGD(lr=1e-3))
    assert sorted(trainer.parameters) == ["b", "w"]
    x = np.ones((8, 4), np.float32)
    before = trainer.evaluate(x, np.zeros((8, 3), np.float32))["loss"]
    trainer.fit(x, np.zeros((8, 3), np.float32), epochs=3, progress=False)
    assert trainer.evaluate(x, np.zeros((8, 3), np.float32))["loss"] < before
