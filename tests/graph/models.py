"""Small ONNX models for the tests of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray
rng = np.random.default_rng(20)


def normal(*shape: int) -> Array:
    """Standard normal numbers, not too near to 0 (where many ops have a kink)."""
    x = rng.standard_normal(shape)
    return np.asarray(x + np.copysign(0.05, x), np.float32)


def positive(*shape: int) -> Array:
    """Numbers from 0.5 to 2."""
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def distinct(*shape: int) -> Array:
    """Numbers no two of which are near each other."""
    count = int(np.prod(shape))
    return (rng.permutation(count).reshape(shape).astype(np.float32) - count / 2) / 8


def node(op: str, inputs: str | Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node; names are told as words."""
    split = lambda names: names.split() if isinstance(names, str) else list(names)  # noqa: E731
    return helper.make_node(op, split(inputs), split(outputs), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Array | Sequence[Any]],
    weights: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    opset: int = 17,
    microsoft: bool = False,
) -> onnx.ModelProto:
    """A model; an input is told by an array like it (with a symbolic batch), or by its dimensions (float32)."""

    def info(name: str, like: Any) -> onnx.ValueInfoProto:
        if isinstance(like, np.ndarray):
            kind = helper.np_dtype_to_tensor_dtype(like.dtype)
            return helper.make_tensor_value_info(name, kind, ["N", *like.shape[1:]] if like.ndim else [])
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, like)

    graph = helper.make_graph(
        list(nodes),
        "test",
        [info(name, like) for name, like in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(w, name) for name, w in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("com.microsoft", 1)] if microsoft else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=8)
