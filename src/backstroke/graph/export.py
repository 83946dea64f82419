"""The gradient graph as an ONNX model: forward and backward nodes in one, for the training build of ONNX Runtime.

ONNX Runtime's own gradient ops stand where its CPU kernels are right; where they are not (average pooling beyond the
plain case) and for our own ops, standard nodes take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..geometry import Geometry, ceil_rounding
from . import backward
from .differentiable import names_of
from .model import Model, load
from .prepare import prepare
from .tensors import MICROSOFT, OWN, Builder, GradientNode, SizesNeededError, Tensor

# Ops that only ONNX Runtime knows in ONNX' own domain.
_UNKNOWN_TO_ONNX = ("AveragePoolGrad", "MaxPoolGrad")


def gradient_model(model: Any, *, of: Any, wrt: Any) -> onnx.ModelProto:
    """Forward and backward of a model, frozen as for inference, as one ONNX model.

    It has the model's inputs and outputs, and an input `<name>_grad` for each tensor in `of`, an output `<name>_grad`
    for each input or weight in `wrt`. Beside standard nodes there are gradient ops of com.microsoft, and (in ONNX' own
    domain, as ONNX Runtime has them) MaxPoolGrad and AveragePoolGrad: the training build of ONNX Runtime runs it.
    Everything else is as `onnx.checker` wants it. Batch sizes may stay symbolic. NaN and infinities pass as the ops'
    gradients pass them.
    """
    read = prepare(model if isinstance(model, Model) else load(model), training=False, indices=True).model
    of, wrt = names_of("of", of), names_of("wrt", wrt)
    graph = backward.build(read, of, wrt)
    writer = _Writer(read, graph)
    proto = writer.write(of, wrt)
    _check(proto)
    return proto


class _Writer:
    def __init__(self, model: Model, graph: backward.Backward) -> None:
        self._model, self._graph = model, graph
        self._builder = Builder(model, constants=dict(graph.constants), names=dict(graph.names))
        self._infos: list[onnx.ValueInfoProto] = []
        self._names: dict[str, str] = {}

    def write(self, of: Sequence[str], wrt: Sequence[str]) -> onnx.ModelProto:
        """The whole model."""
        self._rename(of, wrt)
        for node in self._graph.nodes:
            lower = _LOWER.get((node.domain, node.op))
            self._builder.prefix = node.name.rpartition("_Grad/")[0] or node.name
            if lower is None or not lower(self._builder, self._model, node):
                self._builder.nodes.append(node)
        for name in wrt:
            if self._names.get(self._graph.grads[name]) != f"{name}_grad":  # one gradient of two, or what came in
                gradient = self._graph.grads[name]
                node = GradientNode("Identity", "", f"{name}_grad/Identity", [gradient], [f"{name}_grad"], {})
                self._builder.nodes.append(node)
        proto = self._model.build(nodes=[self._node(node) for node in self._builder.nodes])
        graph = proto.graph
        graph.value_info.extend(self._infos)
        used = {name for node in graph.node for name in node.input}
        for name, value in self._builder.constants.items():
            if self._names.get(name, name) in used:
                graph.initializer.append(numpy_helper.from_array(value, self._names.get(name, name)))
        graph.input.extend(self._info(f"{name}_grad", name) for name in of)
        known = {output.name for output in graph.output}
        graph.output.extend(self._info(name, name) for name in of if name not in known)
        for output in graph.output:
            if not output.type.tensor_type.HasField("shape"):
                output.CopyFrom(self._info(output.name, output.name))
        graph.output.extend(self._info(f"{name}_grad", name) for name in wrt)
        if not any(entry.domain == MICROSOFT for entry in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        return proto

    def _rename(self, of: Sequence[str], wrt: Sequence[str]) -> None:
        for name in of:
            self._names[self._graph.seeds[name]] = f"{name}_grad"
        for name in wrt:
            self._names.setdefault(self._graph.grads[name], f"{name}_grad")

    def _node(self, node: GradientNode) -> onnx.NodeProto:
        inputs, outputs = ([self._names.get(name, name) for name in names] for names in (node.inputs, node.outputs))
        if node.like:
            self._infos.append(self._info(outputs[0], node.like))
        return helper.make_node(node.op, inputs, outputs, node.name, domain=node.domain, **node.attributes)

    def _info(self, name: str, like: str) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(self._model.type_of(like))
        return helper.make_tensor_value_info(name, kind, self._model.shapes.get(like))


def _tensor(builder: Builder, name: str, dtype: Any) -> Tensor:
    return Tensor(builder, name, np.dtype(dtype))


def _into(builder: Builder, result: Tensor, output: str) -> None:
    """Name the last node's output."""
    assert builder.nodes[-1].outputs == [result.name]
    builder.nodes[-1].outputs = [output]


def _sum_to(builder: Builder, model: Model, node: GradientNode) -> bool:
    """Summed over what broadcasting repeated, by ONNX Runtime's helpers for that."""
    x, shape = _tensor(builder, node.inputs[0], np.float32), _tensor(builder, node.inputs[1], np.int64)
    axes = builder.nodes_out(
        "BroadcastGradientArgs",
        [builder.shape(x), shape],
        [np.dtype(np.int64)] * 2,
        wanted=[False, True],
        domain=MICROSOFT,
    )[1]
    summed = builder.node("ReduceSumTraining", x, axes, domain=MICROSOFT, keepdims=1, noop_with_empty_axes=1)
    _into(builder, builder.reshape(summed, shape), node.outputs[0])
    return True


def _average_pool_grad(builder: Builder, model: Model, node: GradientNode) -> bool:
    """ONNX Runtime's is right for static shapes, one or two axes, and plain windows; else it is a sum of shifted dy,
    which is what a transposed convolution with ones does."""
    shape, attributes = model.shapes[node.like], node.attributes
    rank = len(attributes["kernel_shape"])
    plain = not attributes.get("ceil_mode") and max(attributes.get("dilations", [1])) == 1 and rank < 3
    if plain and "auto_pad" not in attributes and all(isinstance(d, int) for d in shape):
        return False
    if not all(isinstance(d, int) for d in shape[1:]):
        raise SizesNeededError(f"{node.name}: the sizes of {node.like!r} are not known: {shape}")
    kernel, ones = tuple(attributes["kernel_shape"]), (1,) * rank
    strides, dilations = (tuple(attributes.get(name, ones)) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    geometry = Geometry.of(
        shape[2:],
        kernel,
        strides=strides,
        pads=tuple(zip(pads[:rank], pads[rank:], strict=True)),
        dilations=dilations,
        rounding=ceil_rounding(bool(attributes.get("ceil_mode", 0))),
    )
    divisors = geometry.divisors("padded" if attributes.get("count_include_pad") else "valid")
    divisor = np.ones((1, 1, *geometry.output_size))
    for axis, counts in enumerate(divisors):
        divisor = divisor * counts.reshape([-1 if i == axis + 2 else 1 for i in range(rank + 2)])
    dtype = model.types[node.like]
    dy = _tensor(builder, node.inputs[0], dtype)
    ends = []  # what a window reaches beyond the input is cut off, what none reaches is padded
    for i, (n, m, k, s, d) in enumerate(zip(shape[2:], geometry.output_size, kernel, strides, dilations, strict=True)):
        ends.append((m - 1) * s + (k - 1) * d + 1 - pads[i] - n)
    whole = builder.node(
        "ConvTranspose",
        dy / builder.constant(divisor, dtype),
        builder.constant(np.ones((shape[1], 1, *kernel)), dtype),
        group=shape[1],
        strides=list(strides),
        dilations=list(dilations),
        pads=[*pads[:rank], *(max(end, 0) for end in ends)],
    )
    more = builder.integers(*[0] * (rank + 4), *(max(-end, 0) for end in ends))
    _into(builder, builder.node("Pad", whole, more), node.outputs[0])
    return True


_LOWER: dict[tuple[str, str], Callable[[Builder, Model, GradientNode], bool]] = {
    (OWN, "SumTo"): _sum_to,
    ("", "AveragePoolGrad"): _average_pool_grad,
}


def _check(proto: onnx.ModelProto) -> None:
    """ONNX' checker, which does not know two of ONNX Runtime's ops in its domain."""
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    for node in checked.graph.node:
        if node.op_type in _UNKNOWN_TO_ONNX:
            node.domain = MICROSOFT
    try:
        onnx.checker.check_model(checked)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"model: with its gradient it is not what ONNX' checker wants: {error}") from error


__all__ = ["gradient_model"]
