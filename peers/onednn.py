"""oneDNN itself: the Graph API of the package onednn-cpu-gomp, by ctypes, in a process that it may end."""

from __future__ import annotations

import ctypes as c
import functools
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backstroke.registry import window_geometry

from . import Call, Calls
from .child import Child, PeerError, decode, encode, serve

PACKAGE = "onednn-cpu-gomp"
KINDS = {
    "AvgPool": 3, "AvgPoolBackward": 4, "ClampBackward": 11, "Convolution": 13, "ConvolutionBackwardData": 14,
    "ConvolutionBackwardWeights": 15, "LogSoftmaxBackward": 38, "MaxPool": 41, "MaxPoolBackward": 42,
    "ReLUBackward": 59, "SigmoidBackward": 63, "SoftMaxBackward": 65, "TanhBackward": 76,
}  # fmt: skip
INT = {"axis": 0x30, "groups": 0x32}
INTS = {
    "dilations": 0x41, "dst_shape": 0x42, "kernel": 0x43, "output_padding": 0x45, "pads_begin": 0x46, "pads_end": 0x47,
    "src_shape": 0x4A, "strides": 0x4B, "weights_shape": 0x4C,
}  # fmt: skip
BOOLS = {"exclude_pad": 0x60, "use_dst": 0x68}
STRINGS = {"auto_pad": 0x81, "data_format": 0x83, "rounding_type": 0x86, "weights_format": 0x87}
DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4}
CPU, IN_ORDER, STRIDED, FUSION, MAX_NDIMS = 1, 1, 2, 1, 12


def available() -> str:
    """'' where the library is there, otherwise why it cannot be used."""
    return "" if _library() else f"the package {PACKAGE} is not installed"


def run(
    op: str, inputs: Sequence[np.ndarray], attributes: Mapping[str, Any], output_shape: Sequence[int]
) -> np.ndarray:
    """The op's output, in the type of the first input; `PeerError` where oneDNN refuses or dies."""
    request = {
        "op": op,
        "inputs": [encode(x) for x in inputs],
        "attributes": {name: _plain(value) for name, value in attributes.items()},
        "output_shape": list(output_shape),
    }
    return decode(_child().call(request))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, str, int)) else [int(v) for v in value]


@functools.cache
def _library() -> str:
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(f.locate().resolve()) for f in files if f.name == "libdnnl.so.3"), "")


@functools.cache
def _child() -> Child:
    return Child([sys.executable, "-m", __name__])


class _LogicalTensor(c.Structure):
    _fields_ = (
        ("id", c.c_size_t),
        ("ndims", c.c_int),
        ("dims", c.c_int64 * MAX_NDIMS),
        ("data_type", c.c_int),
        ("property", c.c_int),
        ("layout_type", c.c_int),
        ("strides", c.c_int64 * MAX_NDIMS),
    )


class _Graph:
    """One op as a graph, compiled and run. Nothing is freed: the process is short-lived and the arrays are small."""

    def __init__(self) -> None:
        self._dnnl = c.CDLL(_library())
        self._engine = self._made("dnnl_engine_create", CPU, c.c_size_t(0))
        self._stream = self._made("dnnl_stream_create", self._engine, IN_ORDER)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        inputs = [decode(x) for x in request["inputs"]]
        output = np.zeros(request["output_shape"], inputs[0].dtype)
        self.prepare(request["op"], inputs, request["attributes"], output)()
        return encode(output)

    def prepare(self, kind: str, inputs: list[np.ndarray], attributes: Mapping[str, Any], output: np.ndarray) -> Call:
        """What runs the op on these arrays, again and again."""
        tensors = [self._logical(i, x) for i, x in enumerate([*inputs, output])]
        op = self._made("dnnl_graph_op_create", c.c_size_t(1), KINDS[kind], b"op")
        for name, value in attributes.items():
            self._set(op, name, value)
        for tensor in tensors[:-1]:
            self._do("dnnl_graph_op_add_input", op, c.byref(tensor))
        self._do("dnnl_graph_op_add_output", op, c.byref(tensors[-1]))
        graph = self._made("dnnl_graph_graph_create", CPU)
        self._do("dnnl_graph_add_op", graph, op)
        self._do("dnnl_graph_graph_finalize", graph)
        self._do("dnnl_graph_graph_filter", graph, FUSION)
        partitions = (c.c_void_p * 1)()
        self._do("dnnl_graph_graph_get_partitions", graph, c.c_size_t(1), partitions)
        partition, supported = c.c_void_p(partitions[0]), c.c_uint8()
        self._do("dnnl_graph_partition_is_supported", partition, c.byref(supported))
        if not supported.value:
            raise PeerError("not supported on this CPU")
        compiled = self._made("dnnl_graph_compiled_partition_create", partition)
        pointers = (c.POINTER(_LogicalTensor) * len(tensors))(*map(c.pointer, tensors))
        outputs = (c.POINTER(_LogicalTensor) * 1)(c.pointer(tensors[-1]))
        count = c.c_size_t(len(inputs))
        self._do(
            "dnnl_graph_partition_compile", partition, compiled, count, pointers, c.c_size_t(1), outputs, self._engine
        )
        handles = [
            self._made("dnnl_graph_tensor_create", c.byref(t), self._engine, x.ctypes.data_as(c.c_void_p))
            for t, x in zip(tensors, [*inputs, output], strict=True)
        ]
        arguments = (c.c_void_p * len(inputs))(*(h.value for h in handles[:-1]))
        results = (c.c_void_p * 1)(handles[-1].value)

        def execute() -> np.ndarray:
            call = "dnnl_graph_compiled_partition_execute"
            self._do(call, compiled, self._stream, count, arguments, c.c_size_t(1), results)
            self._do("dnnl_stream_wait", self._stream)
            return output

        return execute

    def _do(self, function: str, *arguments: Any) -> None:
        status = getattr(self._dnnl, function)(*arguments)
        if status:
            raise PeerError(f"{function} returned {status}")

    def _made(self, function: str, *arguments: Any) -> c.c_void_p:
        handle = c.c_void_p()
        self._do(function, c.byref(handle), *arguments)
        return handle

    def _logical(self, number: int, array: np.ndarray) -> _LogicalTensor:
        tensor, dims = _LogicalTensor(), (c.c_int64 * MAX_NDIMS)(*array.shape)
        kind = DTYPES[array.dtype.name]
        self._do(
            "dnnl_graph_logical_tensor_init_with_dims", c.byref(tensor), c.c_size_t(number), kind, array.ndim, dims,
            STRIDED, 0,
        )  # fmt: skip
        return tensor

    def _set(self, op: c.c_void_p, name: str, value: Any) -> None:
        if name in INT:
            self._do("dnnl_graph_op_set_attr_s64", op, INT[name], c.byref(c.c_int64(value)), c.c_size_t(1))
        elif name in INTS:
            numbers = (c.c_int64 * max(1, len(value)))(*value)
            self._do("dnnl_graph_op_set_attr_s64", op, INTS[name], numbers, c.c_size_t(len(value)))
        elif name in BOOLS:
            self._do("dnnl_graph_op_set_attr_bool", op, BOOLS[name], c.byref(c.c_uint8(value)), c.c_size_t(1))
        else:
            text = value.encode()
            self._do("dnnl_graph_op_set_attr_str", op, STRINGS[name], text, c.c_size_t(len(text)))


class OneDnn:
    """Timed in this process, on problems that it is known to survive: each is tried in the other process first."""

    name = "onednn"

    def __init__(self) -> None:
        if why := available():
            raise ImportError(why)
        self._graph = _Graph()

    def version(self) -> str:
        return f"3.2 ({importlib.metadata.version(PACKAGE)})"

    def threads(self, count: int) -> None:
        gomp = c.CDLL("libgomp.so.1")
        gomp.omp_set_num_threads(count)

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        inputs = [a for a in arguments if isinstance(a, np.ndarray)]
        results = list(out) if isinstance(out, tuple) else [out]
        steps = _steps(problem, inputs)
        if steps is None or problem.dtype not in TYPES:
            return None
        runs = []
        for (op, operands, attributes), result in zip(steps, results, strict=False):
            try:
                run(op, operands, attributes, result.shape)
            except PeerError:
                return None
            runs.append(self._graph.prepare(op, operands, attributes, result))
        if len(runs) == 1:
            return lambda: runs[0]().copy(), runs[0]
        return lambda: [each().copy() for each in runs], lambda: [each() for each in runs]


TYPES = ("float32", "bfloat16", "float16")
Step = tuple[str, "list[np.ndarray]", "dict[str, Any]"]


def _steps(problem: Any, inputs: list[np.ndarray]) -> list[Step] | None:
    """The ops that a problem is for oneDNN; of a convolution dx and dw, for it has no op that gives db."""
    options = problem.options
    along = {"axis": options.get("axis", -1)}
    if problem.op in ("relu_grad", "sigmoid_grad", "tanh_grad"):
        name = {"relu_grad": "ReLU", "sigmoid_grad": "Sigmoid", "tanh_grad": "Tanh"}[problem.op]
        return [(f"{name}Backward", [inputs[1], inputs[0]], {"use_dst": problem.op != "relu_grad"})]
    if problem.op in ("softmax_grad", "log_softmax_grad"):
        return [("SoftMaxBackward" if problem.op == "softmax_grad" else "LogSoftmaxBackward", inputs, along)]
    if problem.op not in ("avg_pool_grad", "max_pool_grad_from_input", "conv_grad"):
        return None
    first = options.get("layout", "NCX") == "NCX"
    attributes: dict[str, Any] = {"data_format": "NCX" if first else "NXC"}
    windowed = (
        {**options, "kernel": inputs[2].shape[2:] if first else inputs[2].shape[:-2]} if len(inputs) > 2 else options
    )
    windows = window_geometry(problem.shape, **{"strides": 1, **windowed} if problem.op == "conv_grad" else windowed)
    attributes |= {"strides": list(windows.strides), "pads_begin": [p[0] for p in windows.pads]}
    attributes |= {"pads_end": [p[1] for p in windows.pads]}
    if problem.op == "avg_pool_grad":
        attributes |= {"kernel": list(windows.kernel), "exclude_pad": not options.get("count_include_pad", False)}
        return [("AvgPoolBackward", inputs, attributes | {"src_shape": list(problem.shape)})]
    attributes |= {"dilations": list(windows.dilations)}
    if problem.op == "max_pool_grad_from_input":
        return [("MaxPoolBackward", inputs[::-1], attributes | {"kernel": list(windows.kernel)})]
    dy, x, w = inputs
    attributes |= {"groups": options.get("group", 1), "weights_format": "OIX" if first else "XIO"}
    return [
        ("ConvolutionBackwardData", [dy, w], attributes | {"dst_shape": list(x.shape)}),
        ("ConvolutionBackwardWeights", [x, dy], attributes | {"weights_shape": list(w.shape)}),
    ]


if __name__ == "__main__":
    serve(_Graph().run)
