"""The forward model as the gradient needs it: what the backward pass must know becomes an output, chance an input.

- LayerNormalization gives its mean and inverse deviation; MaxPool its indices, where they are asked for. (With indices
  ONNX Runtime takes ten times as long, longer than our kernel needs to find the maxima again.)
- Dropout is, while training, a product with a mask that comes in as an input, so that its chance is ours and can be
  repeated; otherwise it passes its input on.
- BatchNormalization gives, while training, the mean and variance of the batch, and else uses its frozen statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from ..errors import UnsupportedError
from .model import Model, Node


@dataclass(frozen=True)
class Statistics:
    """The statistics of one batch normalization: where the running ones are kept, and which tensors the batch gives."""

    mean: str
    variance: str
    batch_mean: str
    batch_variance: str
    momentum: float


@dataclass
class Prepared:
    """The rewritten model, and what a training step must feed and update."""

    model: Model
    indices: bool = False
    masks: dict[str, float] = field(default_factory=dict)  # input to feed -> ratio of what is dropped
    masked: dict[str, str] = field(default_factory=dict)  # input to feed -> the tensor whose shape it has
    statistics: list[Statistics] = field(default_factory=list)


def prepare(model: Model, *, training: bool, indices: bool = False) -> Prepared:
    """Rewrite a model; without `training`, as it is used for inference; with `indices`, every MaxPool gives its own."""
    result = Prepared(model, indices)
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(model.skeleton)
    used = {name for node in model.nodes for name in (*node.inputs, *node.captured)} | set(model.outputs)
    protos = list(skeleton.graph.node)
    del skeleton.graph.node[:]
    for proto, node in zip(protos, model.nodes, strict=True):
        proto.name = node.name
        rewrite = _REWRITES.get(node.op) if node.domain in ("", "com.microsoft") else None
        skeleton.graph.node.extend(rewrite(result, node, proto, used, training) if rewrite else [proto])
    for name in result.masks:
        kind = helper.np_dtype_to_tensor_dtype(model.types.get(result.masked[name], np.dtype(np.float32)))
        skeleton.graph.input.append(helper.make_tensor_value_info(name, kind, None))
    result.model = Model(skeleton, model.weights)
    return result


def _output(proto: onnx.NodeProto, index: int, suffix: str) -> None:
    while len(proto.output) <= index:
        proto.output.append("")
    if not proto.output[index]:
        proto.output[index] = f"{proto.output[0]}{suffix}"


def _max_pool(
    result: Prepared, node: Node, proto: onnx.NodeProto, used: set[str], training: bool
) -> list[onnx.NodeProto]:
    if node.attributes.get("storage_order"):
        if len(node.outputs) > 1 and node.outputs[1] in used:
            raise UnsupportedError(
                f"model: {node}: its column-major indices are used; only row-major ones are known here"
            )
        _set(proto, "storage_order", None)
    if result.indices:
        _output(proto, 1, "_mask")
    return [proto]


def _layer_normalization(
    result: Prepared, node: Node, proto: onnx.NodeProto, used: set[str], training: bool
) -> list[onnx.NodeProto]:
    _output(proto, 1, "_mean")
    _output(proto, 2, "_inv_std_dev")
    return [proto]


def _dropout(
    result: Prepared, node: Node, proto: onnx.NodeProto, used: set[str], training: bool
) -> list[onnx.NodeProto]:
    if len(node.outputs) > 1 and node.outputs[1] in used:
        raise UnsupportedError(f"model: {node}: its mask is used elsewhere, which is not supported here")
    x, y = node.inputs[0], node.outputs[0]
    ratio = node.attributes.get("ratio", 0.5)
    if len(node.inputs) > 1 and node.inputs[1]:
        value = result.model.value(node.inputs[1])
        if value is None:
            raise UnsupportedError(f"model: {node}: its ratio is computed; expected a constant")
        ratio = float(value.reshape(()))
    if not training or not ratio:
        return [helper.make_node("Identity", [x], [y], node.name)]
    mask = f"{y}_dropout_mask"
    result.masks[mask], result.masked[mask] = float(ratio), x
    return [helper.make_node("Mul", [x, mask], [y], node.name)]


def _batch_normalization(
    result: Prepared, node: Node, proto: onnx.NodeProto, used: set[str], training: bool
) -> list[onnx.NodeProto]:
    if any(name in used for name in node.outputs[1:] if name):
        raise UnsupportedError(f"model: {node}: its running statistics are used elsewhere, which is not supported here")
    del proto.output[1:]
    _set(proto, "training_mode", None)
    if not training:
        return [proto]
    mean, variance = f"{node.outputs[0]}_mean", f"{node.outputs[0]}_variance"
    momentum = node.attributes.get("momentum", 0.9)
    result.statistics.append(Statistics(node.inputs[3], node.inputs[4], mean, variance, momentum))
    if result.model.opset < 14:
        return _batch_normalization_in_parts(node, mean, variance)
    # ONNX Runtime writes the running statistics over those that come in, and these are our arrays: it gets others.
    mine = [
        helper.make_node("Neg", [name], [f"{y}_replaced"])
        for name, y in ((node.inputs[3], mean), (node.inputs[4], variance))
    ]
    for i, negative in enumerate(mine, 3):
        proto.input[i] = negative.output[0]
    proto.output.extend([mean, variance])
    _set(proto, "training_mode", 1)
    _set(proto, "momentum", 0.0)  # so that the batch's own statistics come out
    return [*mine, proto]


def _batch_normalization_in_parts(node: Node, mean: str, variance: str) -> list[onnx.NodeProto]:
    """Before opset 14 a batch normalization does not train: here it is, in elementary ops."""
    x, scale, bias = node.inputs[:3]
    y = node.outputs[0]
    made: list[onnx.NodeProto] = []

    def put(op: str, *inputs: str, to: str = "", **attributes: object) -> str:
        output = to or f"{y}/{op}_{len(made)}"
        made.append(helper.make_node(op, list(inputs), [output], f"{node.name}/{op}_{len(made)}", **attributes))
        return output

    def constant(value: float) -> str:
        return put("Constant", value=helper.make_tensor("", onnx.TensorProto.FLOAT, [], [value]))

    # statistics over all but the channels, by way of x with its channels in front
    shape = put("Shape", x)
    flipped = put("Reshape", put("Shape", scale), put("Constant", value_ints=[1]))
    ones = put("Sub", put("Shape", shape), put("Constant", value_ints=[2]))
    spatial = put("ConstantOfShape", ones, value=helper.make_tensor("", onnx.TensorProto.INT64, [1], [1]))
    channels = put("Concat", put("Constant", value_ints=[1]), flipped, spatial, axis=0)
    flat_shape = put("Constant", value_ints=[0, 0, -1])
    flat = put("Reshape", x, flat_shape)
    m = put("ReduceMean", flat, axes=[0, 2], keepdims=1)
    centred = put("Sub", flat, m)
    v = put("ReduceMean", put("Mul", centred, centred), axes=[0, 2], keepdims=1)
    deviation = put("Sqrt", put("Add", v, constant(node.attributes.get("epsilon", 1e-5))))
    normal = put("Reshape", put("Div", centred, deviation), shape)
    put("Add", put("Mul", normal, put("Reshape", scale, channels)), put("Reshape", bias, channels), to=y)
    put("Identity", m, to=mean)
    put("Identity", v, to=variance)
    return made


def _set(proto: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in proto.attribute if attribute.name != name]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    if value is not None:
        proto.attribute.append(helper.make_attribute(name, value))


_REWRITES = {
    "MaxPool": _max_pool,
    "LayerNormalization": _layer_normalization,
    "Dropout": _dropout,
    "BatchNormalization": _batch_normalization,
}
