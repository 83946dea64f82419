"""Any model, any feeds, any arguments of `grad`, `gradient_model` and `Trainer`: an answer or a named error.

Models are a small network whose nodes, attributes, weights and shapes are spoilt. Trainers are left as they were: after
an error the weights are what they were before the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
if not hasattr(onnxruntime, "InferenceSession"):
    pytest.skip("onnxruntime is not whole", allow_module_level=True)

from hypothesis import strategies as st  # noqa: E402
from onnx import ModelProto, helper, numpy_helper  # noqa: E402
from spoiling import ALLOWED, SECONDS, STRANGE, for_a_while, named, spoilt_arrays  # noqa: E402

import backstroke as bs  # noqa: E402
from tests.graph.models import model, node, normal  # noqa: E402

WEIGHTS = {"k": normal(4, 3, 3, 3), "v": normal(4, 2), "b": normal(2)}
FEEDS, DY = {"x": normal(2, 3, 6, 6)}, {"y": normal(2, 2)}
OPS = ["Relu", "Conv", "Gemm", "MaxPool", "AveragePool", "Softmax", "Flatten", "Reshape", "Add", "CumSum", "If", "None"]


def network() -> ModelProto:
    """Images to two numbers."""
    nodes = [
        node("Conv", "x k", "c", name="conv", pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Relu", "c", "r", name="relu"),
        node("MaxPool", "r", "m", name="pool", kernel_shape=[2, 2], strides=[1, 2]),
        node("GlobalAveragePool", "m", "g", name="mean"),
        node("Flatten", "g", "f", name="flat"),
        node("Gemm", "f v b", "y", name="head"),
    ]
    return model(nodes, {"x": ["N", 3, 6, 6]}, WEIGHTS)


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    """The network, and up to three things in it changed."""
    made = network()
    graph = made.graph
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["op", "edge", "attribute", "weight", "shape", "drop", "twice", "opset", "output"]))
        changed = draw(st.sampled_from(list(graph.node) or [node("Relu", "x", "y")]))
        if kind == "op":
            changed.op_type = draw(st.sampled_from(OPS))
        elif kind == "edge":
            names = [*WEIGHTS, "x", "c", "r", "f", "y", "", "nothing"]
            edges = changed.input if draw(st.booleans()) else changed.output
            edges[draw(st.integers(0, len(edges) - 1))] = draw(st.sampled_from(names))
        elif kind == "attribute":
            name = draw(st.sampled_from(["pads", "strides", "kernel_shape", "dilations", "group", "axis", "alpha"]))
            value = draw(st.one_of(st.integers(-2, 9), st.lists(st.integers(-2, 9), min_size=1, max_size=5)))
            kept = [a for a in changed.attribute if a.name != name]
            del changed.attribute[:]
            changed.attribute.extend([*kept, helper.make_attribute(name, value)])
        elif kind == "weight":
            place = draw(st.integers(0, len(graph.initializer) - 1))
            name = graph.initializer[place].name
            other = draw(spoilt_arrays(WEIGHTS[name]))
            if isinstance(other, np.ndarray) and other.dtype.kind in "fib" and other.dtype.isnative:
                graph.initializer[place].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(other), name))
        elif kind == "shape":
            dims = graph.input[0].type.tensor_type.shape.dim
            dims[draw(st.integers(0, len(dims) - 1))].dim_value = draw(st.sampled_from([0, 1, 2, 3, 7, 2**40]))
        elif kind == "drop" and len(graph.node):
            del graph.node[draw(st.integers(0, len(graph.node) - 1))]
        elif kind == "twice":
            graph.node.append(changed)
        elif kind == "opset":
            made.opset_import[0].version = draw(st.sampled_from([0, 7, 11, 13, 17, 21, 99]))
        elif kind == "output":
            graph.output[0].name = draw(st.sampled_from(["y", "f", "x", "k", "", "nothing"]))
    return made


def feeds() -> st.SearchStrategy[Any]:
    """Mostly what the network takes."""
    spoilt = spoilt_arrays(FEEDS["x"]).map(lambda x: {"x": x})
    return st.one_of(st.just(FEEDS), st.just(FEEDS), spoilt, STRANGE)


NAMES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([["x"], ["k"], ["v", "b"], ["x", "k", "v", "b"], "k", "y", "f"]), STRANGE
)


@contextmanager
def errors() -> Iterator[None]:
    """Only named errors come out."""
    try:
        yield
    except (*ALLOWED, FloatingPointError) as error:
        named(error)


def test_any_gradient_of_any_model() -> None:
    answered = 0

    def run(call: Any) -> None:
        nonlocal answered
        proto, of, wrt, given, dy = call
        with errors():
            found = bs.grad(proto, of=of, wrt=wrt)(given, dy=dy)
            assert all(isinstance(a, np.ndarray) for a in found.values())
            answered += 1

    spoilt_dy = spoilt_arrays(DY["y"]).map(lambda a: {"y": a})
    call = st.tuples(
        st.one_of(models(), models(), STRANGE),
        st.one_of(st.just("y"), NAMES),
        NAMES,
        feeds(),
        st.one_of(st.just(DY), st.just(DY), spoilt_dy, STRANGE),
    )
    for_a_while(call, run, SECONDS)
    assert answered


def test_any_gradient_model() -> None:
    def run(call: Any) -> None:
        proto, of, wrt = call
        with errors():
            assert isinstance(bs.gradient_model(proto, of=of, wrt=wrt), ModelProto)

    for_a_while(st.tuples(st.one_of(models(), STRANGE), st.one_of(st.just("y"), NAMES), NAMES), run, SECONDS)


def test_any_training(tmp_path: Path) -> None:
    """Whatever is refused, the weights stay finite; and nothing is left on the disk but what was asked for."""
    labels = np.array([0, 1])
    targets = st.one_of(st.just(labels), st.just(labels), spoilt_arrays(labels), STRANGE)
    # Whole numbers that are fine and large are epochs: years of them.
    odd = STRANGE.filter(lambda v: isinstance(v, bool) or not isinstance(v, int) or v < 9)
    how = st.dictionaries(
        st.sampled_from(["loss", "optimizer", "trainable", "seed", "schedule", "clip_norm", "output"]), odd, max_size=2
    )
    fit = st.dictionaries(
        st.sampled_from(["epochs", "batch_size", "accumulate", "shuffle", "validation", "patience", "callback"]),
        odd,
        max_size=2,
    )
    rates = st.dictionaries(
        st.sampled_from(["lr", "weight_decay", "betas", "eps", "momentum"]), st.one_of(st.floats(), odd), max_size=2
    )

    def run(call: Any) -> None:
        proto, options, rate, x, y, arguments = call
        with errors():
            optimizer = bs.AdamW(**rate) if "betas" in rate or "eps" in rate else bs.SGD(**{"lr": 0.01, **rate})
            trainer = bs.Trainer(proto, **{"loss": "cross_entropy", "optimizer": optimizer, **options})
            before = {name: w.copy() for name, w in trainer.parameters.items()}
            with errors():
                trainer.fit(x.get("x") if isinstance(x, dict) else x, y, progress=False, **arguments)
            if not trainer.steps:
                assert all(np.array_equal(w, before[n], equal_nan=True) for n, w in trainer.parameters.items())
            with errors():
                trainer.save(tmp_path / "out.onnx")
        assert {path.name for path in tmp_path.iterdir()} <= {"out.onnx"}

    for_a_while(st.tuples(st.one_of(st.builds(network), models()), how, rates, feeds(), targets, fit), run, SECONDS)
