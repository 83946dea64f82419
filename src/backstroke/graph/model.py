"""An ONNX model as Python reads it: nodes, constants, weights, types; checked when it is loaded.

Weights are taken out of the protobuf and live as NumPy arrays. What is left, the skeleton, is small, however large the
model is: it is copied, edited and looked at freely.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from ..errors import UnsupportedError

OLDEST_OPSET = 11
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16))
_IN_SKELETON = 1024  # weights of so few elements may be shapes and axes, which shape inference wants to see
_FLOAT_KINDS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_LIKE_THEIR_INPUT = ("FastGelu", "Gelu", "QuickGelu")
Dims = tuple[Any, ...]


@dataclass(frozen=True)
class Node:
    """A node of the model. Outputs and inputs that are left out are ""."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(hash=False)
    captured: tuple[str, ...] = ()  # tensors of the outer graph that its subgraphs use

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.domain + '.' if self.domain else ''}{self.op})"


class Model:
    """Nodes in topological order, constants and weights by name, types and shapes as far as they are known."""

    def __init__(self, skeleton: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
        self.skeleton, self.weights = skeleton, weights
        graph = skeleton.graph
        self.opset = next((i.version for i in skeleton.opset_import if i.domain in ("", "ai.onnx")), 0)
        self.nodes = [_node(proto, index) for index, proto in enumerate(graph.node)]
        self.producer = {name: node for node in self.nodes for name in node.outputs if name}
        self.constants: dict[str, np.ndarray] = {}
        for node in self.nodes:
            if node.op == "Constant" and node.domain in ("", "ai.onnx"):
                self.constants[node.outputs[0]] = _constant(node)
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.types: dict[str, np.dtype] = {name: w.dtype for name, w in {**weights, **self.constants}.items()}
        self.shapes: dict[str, Dims] = {name: w.shape for name, w in {**weights, **self.constants}.items()}
        self._infer()

    @property
    def large(self) -> dict[str, np.ndarray]:
        """The weights that are no shapes or axes."""
        return {name: weight for name, weight in self.weights.items() if weight.size > _IN_SKELETON}

    def _infer(self) -> None:
        proto = self.build(weights_in=self.large)
        for node in proto.graph.node:
            if node.domain == "com.microsoft" and node.op_type in _LIKE_THEIR_INPUT:  # inference does not know them
                del node.input[1:], node.attribute[:]
                node.op_type, node.domain = "Identity", ""
        try:
            known = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # inference is a help; the checker has had its say before
            known = proto
        for value in (*known.graph.input, *known.graph.output, *known.graph.value_info):
            tensor = value.type.tensor_type
            if tensor.elem_type:
                self.types.setdefault(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
            if tensor.HasField("shape"):
                dims = tuple(_dim(d) for d in tensor.shape.dim)
                self.shapes.setdefault(value.name, dims)

    def at(self, shapes: dict[str, Dims], values: dict[str, np.ndarray]) -> Model:
        """The model for inputs of certain shapes, which tell the shapes of other tensors, and values of some."""
        known = copy.copy(self)
        known.shapes, known.constants = {**self.shapes, **shapes}, {**self.constants, **values}
        return known

    def value(self, name: str) -> np.ndarray | None:
        """The value of a constant or weight; None for everything else."""
        found = self.constants.get(name)
        return self.weights.get(name) if found is None else found

    def type_of(self, name: str) -> np.dtype:
        """The type of a tensor; a ValueError where shape inference did not find it."""
        if name not in self.types:
            raise ValueError(f"model: the type of {name!r} cannot be told: ONNX' shape inference does not come so far")
        return self.types[name]

    def knows(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return name in self.producer or name in self.inputs or name in self.weights

    def build(
        self,
        *,
        weights_in: Iterable[str] = (),
        outputs: Sequence[str] | None = None,
        nodes: Sequence[onnx.NodeProto] = (),
        apart: dict[str, np.ndarray] | None = None,
    ) -> onnx.ModelProto:
        """The model as a protobuf: the weights named in `weights_in` are inputs, the others initializers.

        `outputs` stand in the place of the model's own; `nodes` are put at the end. With `apart`, large weights that
        are no inputs go there, to be given to a session as they lie: a protobuf ends at 2 GB.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.skeleton)
        graph, as_inputs = proto.graph, set(weights_in)
        for name, weight in self.weights.items():
            if name in as_inputs:
                graph.input.append(
                    helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(weight.dtype), weight.shape)
                )
            elif apart is not None and weight.size > _IN_SKELETON and weight.dtype.isbuiltin and weight.dtype != object:
                graph.initializer.append(_elsewhere(name, weight))
                apart[name] = weight
            else:
                graph.initializer.append(numpy_helper.from_array(weight, name))
        graph.node.extend(nodes)
        if outputs is not None:
            known = {value.name: value for value in self.skeleton.graph.output}
            del graph.output[:]
            graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in outputs)
        return proto


def load(model: Any) -> Model:
    """Read a model from a path, bytes or a ModelProto; ValueError says what is wrong with it."""
    folder = None
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    elif isinstance(model, (bytes, bytearray)):
        proto = _parse(bytes(model), "the model's bytes")
    elif isinstance(model, (str, os.PathLike)):
        path = Path(model)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ValueError(f"model: {str(path)!r} cannot be read: {error.strerror or error}") from error
        proto, folder = _parse(raw, repr(str(path))), path.parent
    else:
        raise TypeError(f"model is a {type(model).__name__}; expected a path, bytes or an onnx.ModelProto")
    _check(proto)
    return Model(*_without_weights(proto, folder))


def _parse(raw: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(raw)
    except Exception as error:  # protobuf has several of its own
        raise ValueError(f"model: {what} is not a whole ONNX model: {error}") from error
    if not proto.graph.node and not proto.graph.output:
        raise ValueError(f"model: {what} is not an ONNX model: it has no nodes and no outputs")
    return proto


def _check(proto: onnx.ModelProto) -> None:
    opset = next((i.version for i in proto.opset_import if i.domain in ("", "ai.onnx")), None)
    if opset is None:
        raise ValueError("model: it imports no version of the ONNX operators")
    if opset < OLDEST_OPSET:
        raise UnsupportedError(
            f"model: it is written for opset {opset}; expected {OLDEST_OPSET} or later "
            "(onnx.version_converter.convert_version makes it so)"
        )
    seen = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    seen |= {sparse.values.name for sparse in proto.graph.sparse_initializer}
    context = onnx.checker.C.CheckerContext()
    context.ir_version = min(proto.ir_version or 1, int(onnx.IR_VERSION))
    context.opset_imports = {
        i.domain: min(i.version, onnx.defs.onnx_opset_version()) if i.domain in ("", "ai.onnx") else i.version
        for i in proto.opset_import
    }
    for node in proto.graph.node:
        for name in node.input:
            if name and name not in seen:
                raise ValueError(
                    f"model: node {node.name!r} ({node.op_type}) reads {name!r}, which nothing makes before"
                )
        for name in node.output:
            if name and name in seen:
                raise ValueError(f"model: node {node.name!r} ({node.op_type}) makes {name!r}, which is there before")
            seen.add(name)
        # The numbers of inputs, the attributes and their types; branches and bodies may leave out what it asks for.
        flat = not any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if flat and onnx.defs.has(node.op_type, node.domain):
            try:
                onnx.checker.check_node(node, context)
            except onnx.checker.ValidationError as error:
                raise ValueError(f"model: node {node.name!r} ({node.op_type}): {error}") from error
    for value in proto.graph.output:
        if value.name not in seen:
            raise ValueError(f"model: nothing makes its output {value.name!r}")


def _without_weights(proto: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    weights = {}
    for name, tensor in (
        *((tensor.name, tensor) for tensor in proto.graph.initializer),
        *_constants_that_are_weights(proto),
    ):
        if external_data_helper.uses_external_data(tensor):
            if folder is None:
                raise ValueError(f"model: weight {name!r} lies in another file; expected a path, to find it by")
            try:
                weight = _from_its_file(tensor, folder)
            except Exception as error:
                raise ValueError(f"model: weight {name!r} cannot be read from its own file: {error}") from error
        else:
            try:
                weight = numpy_helper.to_array(tensor)
            except Exception as error:
                raise ValueError(f"model: weight {name!r} is damaged: {error}") from error
        weights[name] = weight if weight.flags.writeable and weight.flags.c_contiguous else np.array(weight)
    for sparse in proto.graph.sparse_initializer:
        raise UnsupportedError(f"model: weight {sparse.values.name!r} is sparse; expected dense weights")
    del proto.graph.initializer[:]
    nodes = [node for node in proto.graph.node if node.op_type != "Constant" or node.output[0] not in weights]
    if len(nodes) < len(proto.graph.node):
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
    own = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(own)
    return proto, weights


def _from_its_file(tensor: onnx.TensorProto, folder: Path) -> np.ndarray:
    """A tensor in a file of its own, read into the memory that it will have: it may be most of what there is."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if not dtype.isbuiltin or sys.byteorder == "big":
        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        return np.asarray(numpy_helper.to_array(tensor))
    info = external_data_helper.ExternalDataInfo(tensor)
    path = (folder / info.location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{info.location!r} leaves the model's folder")
    count, offset = math.prod(tensor.dims), int(info.offset or 0)
    if info.length not in (None, count * dtype.itemsize):
        raise ValueError(f"it is said to have {info.length} bytes; expected {count * dtype.itemsize}")
    found = np.fromfile(path, dtype, count, offset=offset)
    if found.size != count:
        raise ValueError(f"{info.location!r} ends before it")
    return np.reshape(found, tuple(tensor.dims))


def _elsewhere(name: str, weight: np.ndarray) -> TensorProto:
    """A tensor that does not have its numbers with it."""
    tensor = TensorProto(
        name=name, data_type=helper.np_dtype_to_tensor_dtype(weight.dtype), data_location=TensorProto.EXTERNAL
    )
    tensor.dims.extend(weight.shape)
    tensor.external_data.add(key="location", value="apart")
    return tensor


def _constants_that_are_weights(proto: onnx.ModelProto) -> list[tuple[str, onnx.TensorProto]]:
    """Some exporters (Paddle's) write weights as Constant nodes. Where a model has no initializers of float type, its
    Constants of more than one number are its weights."""
    if any(tensor.data_type in _FLOAT_KINDS for tensor in proto.graph.initializer):
        return []
    return [
        (node.output[0], attribute.t)
        for node in proto.graph.node
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for attribute in node.attribute
        if attribute.name == "value" and attribute.t.data_type in _FLOAT_KINDS and math.prod(attribute.t.dims) > 1
    ]


def _node(proto: onnx.NodeProto, index: int) -> Node:
    attributes, captured = {}, []
    for attribute in proto.attribute:
        attributes[attribute.name] = helper.get_attribute_value(attribute)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            captured += _captured(graph)
    name = proto.name or f"{proto.op_type}_{index}"
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    return Node(proto.op_type, domain, name, tuple(proto.input), tuple(proto.output), attributes, tuple(captured))


def _captured(graph: onnx.GraphProto) -> list[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    found = []
    for proto in graph.node:
        node = _node(proto, 0)
        found += [name for name in (*node.inputs, *node.captured) if name and name not in own]
        own.update(node.outputs)
    return found + [value.name for value in graph.output if value.name not in own]


def _dim(dim: Any) -> Any:
    """A size: a number, the name of a symbol, or None. Some exporters write -1 for what is not known."""
    return (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None


def _constant(node: Node) -> np.ndarray:
    for kind, value in node.attributes.items():
        if kind == "value":
            return np.asarray(numpy_helper.to_array(value))
        if kind in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if kind in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    return np.asarray(None)
