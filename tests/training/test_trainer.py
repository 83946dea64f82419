"""The Trainer: it learns, saves the user's own model, selects, accumulates, clips, stops; and says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
if not hasattr(onnxruntime, "InferenceSession"):
    pytest.skip("onnxruntime is not whole", allow_module_level=True)

from checks import same_bits  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from training_models import convolutional, images, model, perceptron, vectors  # noqa: E402

import backstroke as bs  # noqa: E402
from backstroke.training.schedules import Linear  # noqa: E402


def trainer(proto: Any = None, **options: Any) -> bs.Trainer:
    settings = {"loss": "cross_entropy", "optimizer": bs.AdamW(lr=1e-2), **options}
    return bs.Trainer(perceptron() if proto is None else proto, **settings)


def weights_of(proto: Any) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def plain(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


def test_it_learns_and_tells_of_it() -> None:
    t, (x, y), held = trainer(), vectors(), vectors(seed=2)
    before = t.evaluate(*held)
    history = t.fit(x, y, epochs=4, batch_size=16, validation=held)
    assert [line["epoch"] for line in history] == [1, 2, 3, 4]
    assert history is t.history
    assert history[-1]["step"] == t.steps == len(t.losses) == 4 * 8
    after = t.evaluate(*held)
    assert {f"val_{name}": value for name, value in after.items()}.items() <= history[-1].items()
    assert after["loss"] < before["loss"] / 2
    assert after["accuracy"] > 0.8
    assert t.losses[-1] < t.losses[0] / 2
    t.fit(x, y, epochs=1, batch_size=16)
    assert [line["epoch"] for line in t.history] == [1, 2, 3, 4, 5]


def test_a_step_is_that_of_the_mean_loss() -> None:
    """One SGD step against the derivative by differences of the loss that `evaluate` gives."""
    t, (x, y) = trainer(optimizer=bs.SGD(lr=0.5)), vectors(20)
    before = {name: p.copy() for name, p in t.parameters.items()}
    t.fit(x, y, batch_size=20)
    step = {name: (p - before[name]) / -0.5 for name, p in t.parameters.items()}
    v = {name: np.random.default_rng(3).normal(size=p.shape).astype(np.float32) for name, p in before.items()}
    losses = []
    for sign in (1, -1):
        for name, p in t.parameters.items():
            p[...] = before[name] + sign * 2e-3 * v[name]
        losses.append(t.evaluate(x, y)["loss"])
    along = sum(float((step[name] * v[name]).sum()) for name in v)
    assert (losses[0] - losses[1]) / 4e-3 == pytest.approx(along, rel=1e-3)


@pytest.mark.parametrize("make", [perceptron, convolutional])
def test_save_changes_the_weights_and_nothing_else(make: Any, tmp_path: Path) -> None:
    proto, data = make(), vectors if make is perceptron else images
    path, out = tmp_path / "model.onnx", tmp_path / "tuned.onnx"
    onnx.save(proto, path)
    t, (x, y) = trainer(path), data()
    t.fit(x, y, epochs=2, batch_size=16, out=out)
    tuned = onnx.load(out)
    onnx.checker.check_model(tuned, full_check=True)
    changed = {name for name, w in weights_of(tuned).items() if not np.array_equal(w, weights_of(proto)[name])}
    running = {"mean", "var"} if make is convolutional else set()
    assert changed == set(t.parameters) | running
    for tensor, old in zip(tuned.graph.initializer, proto.graph.initializer, strict=True):
        tensor.CopyFrom(old)
    assert tuned == proto
    assert np.array_equal(plain(out, {"x": x}), t.predict(x, batch_size=len(x)))
    t.save(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == out.read_bytes()


def test_running_statistics_follow_the_batches(tmp_path: Path) -> None:
    t, (x, y) = trainer(convolutional()), images(16)
    t.fit(x, y, batch_size=16, shuffle=False)
    t.save(tmp_path / "tuned.onnx")
    conv = weights_of(convolutional())["conv"]
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    c = np.einsum("nchwij,ocij->nohw", windows, conv)
    found = weights_of(onnx.load(tmp_path / "tuned.onnx"))
    np.testing.assert_allclose(found["mean"], 0.1 * c.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * c.var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("where", ["one file", "files"])
def test_external_weights_train(where: str, tmp_path: Path) -> None:
    options = {"location": "w.bin"} if where == "one file" else {"all_tensors_to_one_file": False}
    path, (x, y) = tmp_path / "model.onnx", vectors()
    onnx.save(perceptron(), path, save_as_external_data=True, size_threshold=0, **options)
    t, inside = trainer(path), trainer(perceptron())
    for each in (t, inside):
        each.fit(x, y, epochs=2)
    (tmp_path / "out").mkdir()
    t.save(tmp_path / "out" / "tuned.onnx")
    assert np.array_equal(plain(tmp_path / "out" / "tuned.onnx", {"x": x}), t.predict(x))
    assert all(same_bits(p, inside.parameters[name]) for name, p in t.parameters.items())
    t.save_checkpoint(tmp_path / "c")
    again = bs.Trainer.resume(tmp_path / "c")
    assert np.array_equal(again.predict(x), t.predict(x))
    again.save(tmp_path / "beside.onnx")
    assert np.array_equal(plain(tmp_path / "beside.onnx", {"x": x}), t.predict(x))
    assert all(np.array_equal(w, weights_of(perceptron())[name]) for name, w in weights_of(onnx.load(path)).items())


@pytest.mark.parametrize(
    ("trainable", "names"),
    [
        ("all", ["w1", "b1", "w2", "b2"]),
        ("last:1", ["w2", "b2"]),
        ("last:9", ["w1", "b1", "w2", "b2"]),
        (["b2", "w1"], ["w1", "b2"]),
    ],
)
def test_trainable_selects(trainable: Any, names: list[str]) -> None:
    t, (x, y), before = trainer(trainable=trainable), vectors(), weights_of(perceptron())
    assert list(t.parameters) == names
    t.fit(x, y)
    t.predict(x)
    assert all(not np.array_equal(t.parameters[name], before[name]) for name in names)
    kept = {name: t._file.read(name) for name in before if name not in names}
    assert all(np.array_equal(w, before[name]) for name, w in kept.items())


def test_accumulated_batches_are_one_batch() -> None:
    results = []
    for size, accumulate in ((32, 1), (8, 4), (16, 2)):
        t, (x, y) = trainer(optimizer=bs.SGD(lr=0.3)), vectors(90)
        t.fit(x, y, epochs=2, batch_size=size, accumulate=accumulate)
        assert t.steps == 6
        results.append((t.parameters, t.losses))
    for parameters, losses in results[1:]:
        np.testing.assert_allclose(losses, results[0][1], rtol=1e-5)
        for name, p in parameters.items():
            np.testing.assert_allclose(p, results[0][0][name], rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_step() -> None:
    x, y = vectors(32)
    steps = {}
    for clip in (None, 1e-3, 1e9):
        t = trainer(optimizer=bs.SGD(lr=1.0), clip_norm=clip)
        before = {name: p.copy() for name, p in t.parameters.items()}
        t.fit(x, y, batch_size=32)
        steps[clip] = np.concatenate([(t.parameters[name] - p).ravel() for name, p in before.items()])
    assert np.linalg.norm(steps[1e-3]) == pytest.approx(1e-3, rel=1e-2)
    cosine = steps[None] @ steps[1e-3] / np.linalg.norm(steps[None]) / np.linalg.norm(steps[1e-3])
    assert cosine == pytest.approx(1, abs=1e-3)
    assert np.array_equal(steps[None], steps[1e9])


def test_the_schedule_sets_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    t, (x, y) = trainer(schedule=Linear(warmup=2)), vectors(80)
    seen: list[float] = []
    step = t._updates.step
    monkeypatch.setattr(t._updates, "step", lambda g, lr, scale: (seen.append(lr), step(g, lr, scale)))
    t.fit(x, y, epochs=2, batch_size=20)
    assert seen == pytest.approx([1e-2 * Linear(warmup=2).factor(i, 8) for i in range(8)])


def test_early_stop_brings_back_the_best_weights() -> None:
    (x, y), held = vectors(40), vectors(40, seed=5)
    t = trainer(perceptron(width=64), optimizer=bs.AdamW(lr=0.05))
    wrong = (held[0], (held[1] + 1) % 4)  # the better it gets, the worse this is
    t.fit(x, y, epochs=50, batch_size=8, validation=wrong, patience=3)
    losses = [line["val_loss"] for line in t.history]
    assert len(losses) < 50
    assert len(losses) == int(np.argmin(losses)) + 1 + 3
    assert t.evaluate(*wrong)["loss"] == min(losses)


def test_the_seed_decides_and_nothing_else() -> None:
    x, y = images()
    runs = []
    for seed in (0, 0, 1):
        t = trainer(convolutional(), seed=seed)
        t.fit(x, y, epochs=2, batch_size=16)
        runs.append((t.losses, t.parameters))
    assert runs[0][0] == runs[1][0]
    assert all(same_bits(p, runs[0][1][name]) for name, p in runs[1][1].items())
    assert runs[0][0] != runs[2][0]


def test_several_inputs_and_outputs() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"], "add"),
        helper.make_node("MatMul", ["s", "w"], ["y"], "product"),
        helper.make_node("Exp", ["y"], ["e"], "exp"),
    ]
    sides, both = {"a": ["n", 3], "b": ["n", 3]}, {"y": ["n", 2], "e": ["n", 2]}
    proto = model(nodes, {"w": w}, sides, both)
    x = {name: rng.normal(size=(30, 3)).astype(np.float32) for name in "ab"}
    y = ((x["a"] + x["b"]) @ rng.normal(size=(3, 2))).astype(np.float32)
    with pytest.raises(ValueError, match=r"the model has 2 outputs; expected output= to name one of \['y', 'e'\]"):
        trainer(proto, loss="mse")
    t = trainer(proto, loss="mse", output="y", optimizer=bs.SGD(lr=0.2))
    t.fit(x, y, epochs=40, batch_size=10)
    assert t.evaluate(x, y)["loss"] < 1e-4
    assert t.history[-1]["mae"] < 0.1
    with pytest.raises(ValueError, match=r"x has arrays for 'a'; expected one for each of 'a', 'b'"):
        t.predict({"a": x["a"]})
    with pytest.raises(TypeError, match="x is a ndarray; expected a dictionary with arrays for 'a', 'b'"):
        t.predict(x["a"])
    with pytest.raises(ValueError, match="x has different numbers of samples"):
        t.predict({"a": x["a"], "b": x["b"][:5]})


def test_a_fixed_batch_size() -> None:
    t, (x, y) = trainer(perceptron(batch=8)), vectors(40)
    t.fit(x, y, batch_size=8)
    assert t.predict(x).shape == (40, 4)
    with pytest.raises(ValueError, match="batch_size is 16; expected 8, for the model's input 'x' has that fixed size"):
        t.fit(x, y, batch_size=16)
    with pytest.raises(ValueError, match="there are 39 samples; expected a multiple of 8"):
        t.fit(x[:39], y[:39], batch_size=8)


def test_the_callback_is_called_after_each_update() -> None:
    t, (x, y) = trainer(), vectors(40)
    seen: list[int] = []
    t.fit(x, y, epochs=2, batch_size=16, callback=lambda t: seen.append(t.steps))
    assert seen == [1, 2, 3, 4, 5, 6]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_nan_in_the_data_is_named() -> None:
    t, (x, y) = trainer(), vectors(40)
    before = {name: p.copy() for name, p in t.parameters.items()}
    x[33, 2] = np.nan
    with pytest.raises(FloatingPointError, match=r"step 3: the loss is nan; first went wrong: the data: input 'x'"):
        t.fit(x, y, batch_size=16, shuffle=False)
    assert t.steps == 2
    assert all(np.isfinite(p).all() for p in t.parameters.values())
    assert not np.array_equal(before["w1"], t.parameters["w1"])


def test_the_first_tensor_that_went_wrong_is_named() -> None:
    w = np.float32([[1, 2], [3, 4]])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Log", ["a"], ["b"], "logarithm"),
        helper.make_node("MatMul", ["b", "v"], ["y"], "mix"),
    ]
    t = trainer(model(nodes, {"w": w, "v": w}, {"x": ["n", 2]}, {"y": ["n", 2]}), loss="mse")
    x = np.float32([[1, 1], [1, -1]])
    with pytest.raises(FloatingPointError, match=r"step 1: .*: 'b', made by node 'logarithm' \(Log\)"):
        t.fit(x, np.zeros((2, 2), np.float32))
    t.parameters["v"][0, 0] = np.inf
    with pytest.raises(FloatingPointError, match="first went wrong: the weight 'v'"):
        t.fit(x[:1], np.zeros((1, 2), np.float32))


def test_a_gradient_that_is_not_finite_is_named_and_not_used() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"], "scale"), helper.make_node("Sqrt", ["a"], ["y"], "root")]
    proto = model(nodes, {"w": np.float32([1, 1])}, {"x": ["n", 2]}, {"y": ["n", 2]})
    t = trainer(proto, loss="mse")
    with pytest.raises(FloatingPointError, match="step 1: the gradient of 'w' is not finite; the loss is 1"):
        t.fit(np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32))
    assert np.array_equal(t.parameters["w"], [1, 1])


def test_a_failed_step_leaves_running_statistics_alone(tmp_path: Path) -> None:
    t, (x, y) = trainer(convolutional()), images(16)
    x[:] = 3e38
    with pytest.raises(FloatingPointError):
        t.fit(x, y)
    t.save(tmp_path / "t.onnx")
    assert weights_of(onnx.load(tmp_path / "t.onnx"))["var"].tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (np.ones((4, 8)), np.zeros(4, int), TypeError, "x has type float64; expected float32"),
        (np.ones((4, 7), "f4"), np.zeros(4, int), ValueError, r"x has shape \(4, 7\); expected \(samples, 8\)"),
        (np.ones((4, 8, 1), "f4"), np.zeros(4, int), ValueError, r"x has shape \(4, 8, 1\); expected \(samples, 8\)"),
        (np.ones((0, 8), "f4"), np.zeros(0, int), ValueError, r"x is empty: its shape is \(0, 8\)"),
        ([[1.0] * 8], np.zeros(1, int), TypeError, "x is a list; expected a NumPy array"),
        (np.ones((4, 8), "f4"), np.zeros(3, int), ValueError, r"y has shape \(3,\); expected 4 samples, as many as x"),
        (np.ones((4, 8), "f4"), np.zeros(4), TypeError, "y has type float64; expected whole numbers"),
        (np.ones((4, 8), "f4"), np.array([0, 1, 4, 2]), ValueError, r"y\[2\] is 4; expected labels from 0 to 3"),
        (np.ones((4, 8), "f4"), np.array([0, 1, -100, 2]), ValueError, r"y\[2\] is -100; expected labels from 0 to 3"),
        (np.ones((4, 8), "f4"), np.zeros((4, 4), int), ValueError, r"y has shape \(4, 4\); expected \(samples\)"),
        ({"z": np.ones((4, 8), "f4")}, np.zeros(4, int), ValueError, "x has arrays for 'z'; expected one for each"),
    ],
)  # fmt: skip
def test_bad_data(x: Any, y: Any, error: type[Exception], words: str) -> None:
    t = trainer()
    with pytest.raises(error, match=words):
        t.fit(x, y)
    assert t.steps == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epochs": 0}, ValueError, "epochs is 0; expected 1 or more"),
        ({"epochs": 1.5}, TypeError, "epochs is a float"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"accumulate": 0}, ValueError, "accumulate is 0"),
        ({"patience": 1}, ValueError, "patience is given without validation"),
        ({"validation": 0.1}, TypeError, "validation is float; expected a pair"),
        ({"validation": (np.ones((2, 8), "f4"), np.array([0, 9]))}, ValueError, r"validation\[1\]\[1\] is 9"),
        ({"validation": (np.ones((2, 8)), np.array([0, 1]))}, TypeError, r"validation\[0\] has type float64"),
        ({"out": "/no/such/folder/t.onnx"}, ValueError, "out: .* cannot be written: there is no folder"),
        ({"checkpoint": "/no/such/folder/c"}, ValueError, "checkpoint: .* cannot be written: there is no folder"),
    ],
)
def test_bad_settings_of_fit_are_found_before_training(options: Any, error: type[Exception], words: str) -> None:
    t, (x, y) = trainer(), vectors()
    with pytest.raises(error, match=words):
        t.fit(x, y, **options)
    assert t.steps == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"loss": "hinge"}, ValueError, "loss is 'hinge'"),
        ({"optimizer": "adam"}, TypeError, r"optimizer is a str; expected bs.SGD\(...\) or bs.AdamW"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"clip_norm": 0}, ValueError, "clip_norm is 0; expected a number above 0"),
        ({"schedule": "step"}, ValueError, "schedule is 'step'"),
        ({"trainable": "first:2"}, ValueError, 'trainable is \'first:2\'; expected "all", "last:2" or a list'),
        ({"trainable": ["w9"]}, ValueError, "trainable names 'w9', which no gradient comes to; expected some of 'w1'"),
        ({"trainable": []}, ValueError, "no weight is left to train"),
        ({"trainable": 3}, TypeError, "trainable is a int"),
        ({"output": "t"}, ValueError, r"output is 't'; expected one of the model's outputs, \['logits'\]"),
    ],
)
def test_bad_settings_of_the_trainer(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        trainer(**options)


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    w = {"w": np.float32([[1, 2], [3, 4]])}
    ports = {"x": ["n", 2]}, {"y": ["n", 2]}
    cosine = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"), helper.make_node("Cos", ["a"], ["y"], "wave")]
    with pytest.raises(bs.UnsupportedError, match=r"'wave' \(Cos\) has no gradient here.*Freeze"):
        trainer(model(cosine, w, *ports), loss="mse")
    whole = perceptron().SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(whole[:-7])
    with pytest.raises(ValueError, match=r"cut.onnx' is not a whole ONNX model"):
        trainer(tmp_path / "cut.onnx")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        trainer(tmp_path / "none.onnx")
    path = tmp_path / "outside.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ValueError, match="weight 'w1' cannot be read"):
        trainer(path)
