"""oneDNN itself: the Graph API of the package onednn-cpu-gomp, by ctypes, in a process that it may end."""

from __future__ import annotations

import ctypes as c
import functools
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.child import Child, PeerError, decode, encode, serve

PACKAGE = "onednn-cpu-gomp"
KINDS = {"AvgPool": 3, "AvgPoolBackward": 4, "MaxPool": 41, "MaxPoolBackward": 42}
INTS = {"dilations": 0x41, "kernel": 0x43, "pads_begin": 0x46, "pads_end": 0x47, "src_shape": 0x4A, "strides": 0x4B}
BOOLS = {"exclude_pad": 0x60}
STRINGS = {"auto_pad": 0x81, "data_format": 0x83, "rounding_type": 0x86}
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
    return value if isinstance(value, (bool, str)) else [int(v) for v in value]


@functools.cache
def _library() -> str:
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(f.locate().resolve()) for f in files if f.name == "libdnnl.so.3"), "")


@functools.cache
def _child() -> Child:
    return Child([sys.executable, __file__])


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
        tensors = [self._logical(i, x) for i, x in enumerate([*inputs, output])]
        op = self._made("dnnl_graph_op_create", c.c_size_t(1), KINDS[request["op"]], b"op")
        for name, value in request["attributes"].items():
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
        self._do(
            "dnnl_graph_compiled_partition_execute", compiled, self._stream, count, arguments, c.c_size_t(1), results
        )
        self._do("dnnl_stream_wait", self._stream)
        return encode(output)

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
        if name in INTS:
            numbers = (c.c_int64 * max(1, len(value)))(*value)
            self._do("dnnl_graph_op_set_attr_s64", op, INTS[name], numbers, c.c_size_t(len(value)))
        elif name in BOOLS:
            self._do("dnnl_graph_op_set_attr_bool", op, BOOLS[name], c.byref(c.c_uint8(value)), c.c_size_t(1))
        else:
            text = value.encode()
            self._do("dnnl_graph_op_set_attr_str", op, STRINGS[name], text, c.c_size_t(len(text)))


if __name__ == "__main__":
    serve(_Graph().run)
