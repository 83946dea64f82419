"""Gradients checked against finite differences in float64, by random directions.

With v of standard normal numbers, <g, v> differs from the true derivative along v by about |e|, the norm of the error
of g. So one random direction tells the error in norm of a whole gradient, however many numbers it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .backward import trainable
from .differentiable import Differentiable
from .exact import OPS, softmaxes
from .model import FLOATS, Model, load
from .prepare import prepare

STEP = 1e-6
_ZERO = 1e-5  # gradients smaller than that part of the largest are 0 but for rounding
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Checked:
    """How far a gradient is from what finite differences tell, relative to its norm (or, where that is 0 but for
    rounding, as of a bias in front of a normalization, to the largest gradient's)."""

    name: str
    shape: tuple[int, ...]
    norm: float
    error: float


def check_gradients(
    model: Any,
    feeds: dict[str, np.ndarray],
    *,
    of: Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
    directions: int = 3,
    seed: int = 0,
    training: bool = False,
) -> list[Checked]:
    """Every gradient of a model at `feeds`, with random gradients coming in.

    `of` are all float outputs, `wrt` all float inputs and weights that they depend on, if not told otherwise.
    """
    read = model if isinstance(model, Model) else load(model)
    of = list(of or [name for name in read.outputs if read.types.get(name, FLOATS[0]) in FLOATS])
    wrt = list(wrt or trainable(read, of, inputs=True))
    ours = Differentiable(read, of=of, wrt=wrt, training=training)
    rng = np.random.default_rng(seed)
    outputs = ours.forward(feeds)
    dy = {name: rng.standard_normal(outputs[name].shape).astype(outputs[name].dtype) for name in of}
    grads = ours.backward(dy)
    exact = DoubleModel(read, training=training)
    at = {name: (feeds[name] if name in feeds else read.weights[name]).astype(np.float64) for name in wrt}
    found = []
    for name in wrt:
        g = grads[name].astype(np.float64)
        norm = float(np.linalg.norm(g))
        error = 0.0
        for _ in range(directions):
            v = rng.standard_normal(g.shape)
            sides = []
            for h in (STEP, -STEP):
                y = exact.run(feeds, {**at, name: at[name] + h * v}, of)
                sides.append(sum(float(np.vdot(y[out], dy[out].astype(np.float64))) for out in of))
            error = max(error, abs((sides[0] - sides[1]) / (2 * STEP) - float(np.vdot(g, v))))
        found.append(Checked(name, g.shape, norm, error))
    largest = max(checked.norm for checked in found)
    return [replace(c, error=c.error / ((c.norm if c.norm > _ZERO * largest else largest) or 1)) for c in found]


class DoubleModel:
    """A model in float64, run by ONNX' own reference implementation."""

    def __init__(self, model: Model, *, training: bool = False) -> None:
        from onnx.reference import ReferenceEvaluator

        self._model = prepare(model, training=training).model if training else model
        proto = self._model.build(weights_in=self._model.weights)
        _widen(proto.graph)
        self._weights = {n: w.astype(np.float64) if w.dtype in FLOATS else w for n, w in self._model.weights.items()}
        self._proto, self._evaluator = proto, ReferenceEvaluator
        self._runs: dict[tuple[str, ...], Any] = {}

    def run(
        self, feeds: dict[str, np.ndarray], instead: dict[str, np.ndarray], of: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """The tensors in `of`, with some inputs and weights replaced."""
        if tuple(of) not in self._runs:
            proto = onnx.ModelProto()
            proto.CopyFrom(self._proto)
            del proto.graph.output[:]
            proto.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in of)
            self._runs[tuple(of)] = self._evaluator(proto, new_ops=[*OPS, *softmaxes(self._model.opset)])
        wide = {n: x.astype(np.float64) if x.dtype in FLOATS else x for n, x in feeds.items()}
        everything = {**self._weights, **wide, **instead}
        return dict(zip(of, self._runs[tuple(of)].run(None, everything), strict=True))


def _widen(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        if node.op_type == "Constant":
            _widen_constant(node)
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type in _NARROW:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float64)))
            if attribute.HasField("g"):
                _widen(attribute.g)
    for tensor in graph.initializer:
        if tensor.data_type in _NARROW:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_constant(node: onnx.NodeProto) -> None:
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats"):
            value = np.asarray(helper.get_attribute_value(attribute), np.float64)
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))
