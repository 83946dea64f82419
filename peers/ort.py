"""ONNX Runtime itself: a model of one node with a static output shape, run by the package onnxruntime-training-cpu."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import Calls
from .child import Child, decode, encode, serve

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
    return Child([sys.executable, "-W", "ignore", "-m", __name__])


class OnnxRuntime:
    """Timed in this process: a model of one node, inputs and outputs bound."""

    name = "onnxruntime"

    def __init__(self) -> None:
        if why := available():
            raise ImportError(why)
        self._runtime = importlib.import_module("onnxruntime")
        self._onnx = importlib.import_module("onnx")
        self._threads = 1

    def version(self) -> str:
        return str(self._runtime.__version__)

    def threads(self, count: int) -> None:
        self._threads = count

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        node = _node(problem, arguments)
        if node is None or problem.dtype != "float32":
            return None
        op, domain, attributes, inputs = node
        results = list(out) if isinstance(out, tuple) else [out]
        session = _session(op, domain, OPSET, attributes, inputs, [r.shape for r in results], self._threads)
        feeds = {f"i{n}": a for n, a in enumerate(inputs)}
        binding = session.io_binding()
        for name, a in feeds.items():
            binding.bind_input(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        for n, a in enumerate(results):
            binding.bind_output(f"o{n}", "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        return lambda: session.run(None, feeds), lambda: session.run_with_iobinding(binding)


_ELEMENTWISE = {
    "relu_grad": "ReluGrad", "leaky_relu_grad": "LeakyReluGrad", "sigmoid_grad": "SigmoidGrad",
    "tanh_grad": "TanhGrad", "quick_gelu_grad": "QuickGeluGrad", "softmax_grad": "SoftmaxGrad_13",
    "log_softmax_grad": "LogSoftmaxGrad_13",
}  # fmt: skip


def _node(problem: Any, arguments: list[Any]) -> tuple[str, str, dict[str, Any], list[Any]] | None:
    """Op, domain, attributes and inputs of the node for a problem, where there is a right one."""
    inputs = [a for a in arguments if isinstance(a, np.ndarray)]
    if problem.op in _ELEMENTWISE:
        return _ELEMENTWISE[problem.op], "com.microsoft", dict(problem.options), inputs
    options = dict(problem.options)
    if options.pop("layout", "NCX") != "NCX" or problem.op not in ("avg_pool_grad", "max_pool_grad", "conv_grad"):
        return None
    rank = len(problem.shape) - 2

    def each(name: str, otherwise: int) -> list[Any]:
        value = options.get(name, otherwise)
        return list(value) if isinstance(value, (tuple, list)) else [value] * rank

    pads = [p if isinstance(p, (tuple, list)) else (p, p) for p in each("pads", 0)]
    attributes: dict[str, Any] = {"pads": [p[0] for p in pads] + [p[1] for p in pads]}
    attributes |= {"strides": each("strides", 1), "dilations": each("dilations", 1)}
    if problem.op == "conv_grad":
        if rank != 2 and options.get("group", 1) > 1:  # it writes out of bounds there
            return None
        return "ConvGrad", "com.microsoft", attributes | {"group": options.get("group", 1)}, inputs
    kernel = each("kernel", 1)
    attributes |= {"kernel_shape": kernel, "ceil_mode": int(options.get("ceil_mode", False))}
    if options.get("strides") is None:
        attributes["strides"] = kernel
    if problem.op == "max_pool_grad":
        return "MaxPoolGrad", "", attributes, inputs
    if rank == 3 and attributes["strides"] != kernel:  # its 3-D averages are wrong where windows overlap
        return None
    attributes["count_include_pad"] = int(options.get("count_include_pad", False))
    return "AveragePoolGrad", "", attributes, inputs


def _session(
    op: str,
    domain: str,
    opset: int,
    attributes: Mapping[str, Any],
    inputs: Sequence[np.ndarray],
    shapes: Sequence[Sequence[int]],
    threads: int = 0,
) -> Any:
    """A session of a model of that one node, whose outputs have those static shapes."""
    onnx, onnxruntime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    names, results = [f"i{n}" for n in range(len(inputs))], [f"o{n}" for n in range(len(shapes))]
    of, info = onnx.helper.np_dtype_to_tensor_dtype, onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(op, names, results, domain=domain, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "one_node",
        [info(name, of(x.dtype), x.shape) for name, x in zip(names, inputs, strict=True)],
        [info(name, of(inputs[0].dtype), shape) for name, shape in zip(results, shapes, strict=True)],
    )
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    inputs = [decode(x) for x in request["inputs"]]
    shapes = request["output_shapes"]
    session = _session(request["op"], request["domain"], request["opset"], request["attributes"], inputs, shapes)
    return {"outputs": [encode(y) for y in session.run(None, {f"i{n}": x for n, x in enumerate(inputs)})]}


if __name__ == "__main__":
    serve(_answer)
