"""ONNX Runtime itself: a model of one node with a static output shape, run by the package onnxruntime-training-cpu."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.child import Child, decode, encode, serve

PACKAGES = ("onnxruntime-training-cpu", "onnx")
OPSET = 12


def available() -> str:
    """'' where the packages are there, otherwise which is not."""
    for package in PACKAGES:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            return f"the package {package} is not installed"
    return ""


def run(
    op: str,
    inputs: Sequence[np.ndarray],
    attributes: Mapping[str, Any],
    output_shapes: Sequence[Sequence[int]],
    *,
    domain: str = "",
    opset: int = OPSET,
) -> list[np.ndarray]:
    """The node's outputs, in the type of the first input; `PeerError` where ONNX Runtime refuses or dies."""
    request = {
        "op": op,
        "domain": domain,
        "opset": opset,
        "inputs": [encode(x) for x in inputs],
        "attributes": dict(attributes),
        "output_shapes": [list(shape) for shape in output_shapes],
    }
    return [decode(y) for y in _child().call(request)["outputs"]]


@functools.cache
def _child() -> Child:
    return Child([sys.executable, "-W", "ignore", __file__])


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import onnx
    import onnxruntime

    inputs = {f"i{n}": decode(x) for n, x in enumerate(request["inputs"])}
    outputs = {f"o{n}": shape for n, shape in enumerate(request["output_shapes"])}
    of = onnx.helper.np_dtype_to_tensor_dtype
    kind = of(next(iter(inputs.values())).dtype)
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        request["op"], list(inputs), list(outputs), domain=request["domain"], **request["attributes"]
    )
    graph = onnx.helper.make_graph(
        [node],
        "one_node",
        [info(name, of(x.dtype), x.shape) for name, x in inputs.items()],
        [info(name, kind, shape) for name, shape in outputs.items()],
    )
    opsets = [onnx.helper.make_opsetid("", request["opset"]), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {"outputs": [encode(y) for y in session.run(None, inputs)]}


if __name__ == "__main__":
    serve(_answer)
