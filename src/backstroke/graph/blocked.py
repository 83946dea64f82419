"""Convolutions of the forward pass in ONNX Runtime's own blocked layout.

ONNX Runtime has fast convolutions (domain com.microsoft.nchwc): channels lie in blocks of 16 or 8, as many as a vector
holds. It uses them where weights never change, for it reorders those when a model is loaded. The weights of a training
change with every step. So the graph is written with these ops here, with weights that come in as inputs, and a kernel
puts them into blocks before each run. Activations are reordered around each convolution, for the backward pass reads
them as they were. Whether that is worth it, a model of the costs says; whether this ONNX Runtime has these ops, and how
large its blocks are, is tried once.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .. import arrays, memory
from ..convolution.tiles import whole, within
from ..jit import compile as compiler
from ..jit.threads import pool
from ..jit.types import f32, i64, pointer
from .model import Dims, Model, Node

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

DOMAIN = "com.microsoft.nchwc"
_ALIGNED = 4  # its ReorderInput wants a multiple of so many channels
# What an element costs that is put into a matrix of windows, and one that is reordered, in multiplications.
_GATHERED, _REORDERED = 20, 16
_FUSED = ("Relu", "Sigmoid", "Tanh")  # what its convolution can do on the way out
_COLUMNS = 7  # of the table that the kernel reads


@dataclass
class _Kind:
    """How one convolution is blocked: its shape, and whether its input, too, is in blocks."""

    outputs: int
    inputs: int  # of each group
    taps: int
    reordered: bool  # its input comes in blocks
    depthwise: bool

    def shape(self, w: Dims, block: int) -> tuple[int, ...]:
        """The shape of the blocked weights."""
        whole = self.reordered and not self.depthwise
        return _up(w[0], block), _up(w[1], block) if whole else w[1], *w[2:]


class Blocked:
    """The blocked weights of one session: `arrays` by the names of its inputs, which `fill` brings up to date."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._rows: list[list[int]] = []
        self._table = np.empty((0, _COLUMNS), np.int64)
        self._held: list[np.ndarray] = []

    def add(self, name: str, weight: np.ndarray, kind: _Kind, block: int) -> None:
        """Weights that are to be fed in blocks."""
        shape = kind.shape(weight.shape, block)
        goal = self.arrays[name] = memory.pool.empty(shape, np.dtype(np.float32))
        goal.fill(0)  # what no weight fills stays 0
        self._held.append(weight)
        row = math.prod(weight.shape[1:])
        whole = kind.reordered and not kind.depthwise
        # Where inputs lie in blocks too, a piece is a block of them, and their taps come apart; else it is all of them.
        step, taps = (block * kind.taps, kind.taps) if whole else (row, 1)
        for first in range(0, kind.outputs, block):
            for start in range(0, row, step):
                source = arrays.address(weight) + 4 * (first * row + start)
                place = arrays.address(goal) + 4 * (first * math.prod(shape[1:]) + start * block)
                count = min(step, row - start)
                self._rows.append([source, place, row, min(block, kind.outputs - first), count, taps, block * block])
        self._table = np.asarray(self._rows, np.int64)

    def fill(self, block: int) -> None:
        """Put the weights, as they are now, into blocks."""
        if len(self._table):
            kernel = compiler.kernel(put_into_blocks, pointer(i64), block=block)
            pool.run(kernel, kernel.pack(arrays.address(self._table)), len(self._table))


def put_into_blocks(k: Trace, piece: Value, table: Pointer, *, block: int) -> None:
    """A block of output channels: rows of weights become columns, `block` of them side by side."""
    source, goal, row, rows, count, taps, apart = (table[piece * _COLUMNS + i] for i in range(_COLUMNS))
    weights, blocks = k.dereference(source, f32), k.dereference(goal, f32)
    for at in k.vectors(count, lanes=block):
        lines = []
        for i in range(block):
            there = k.value(i, i64) < rows
            line = weights.at(k.where(there, k.value(i, i64), 0) * row)
            lines.append(line[within(k, at.start, 0, k.where(there, count, 0), block)])
        for i, column in enumerate(k.turned(lines)):
            number = k.value(at.start, i64) + i
            with k.when(number < count):
                blocks.at(number % taps * apart + number // taps * block)[whole(0, block)] = column


def rewritten(
    proto: onnx.ModelProto, model: Model, live: Mapping[str, np.ndarray], shapes: Mapping[str, Dims]
) -> tuple[onnx.ModelProto, Blocked]:
    """The same model, convolutions with weights in `live` blocked where that is faster; `proto` is used up.

    `shapes` are those that tensors are likely to have: they say what is faster, not what is right.
    """
    blocked, block = Blocked(), block_size()
    if not block:
        return proto, blocked
    known = {**model.shapes, **shapes}
    kinds = {}
    for node in model.nodes:
        if (
            node.op == "Conv"
            and not node.domain
            and node.inputs[1] in live
            and live[node.inputs[1]].dtype == np.float32
        ):
            kind = _kind(node, known, live[node.inputs[1]].shape, block)
            if kind is not None:
                kinds[node.outputs[0]] = kind
    left = {node.output[0] for node in proto.graph.node if node.op_type == "Conv"}
    kinds = {name: kind for name, kind in kinds.items() if name in left}
    if kinds:
        nodes = list(_Writer(proto, kinds, live, blocked, block).nodes())
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        for name, array in blocked.arrays.items():
            proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return proto, blocked


def _up(n: int, block: int) -> int:
    return -(-n // block) * block


def _kind(node: Node, shapes: Mapping[str, Dims], w: tuple[int, ...], block: int) -> _Kind | None:
    """How a convolution is blocked; None where it cannot be, or where it would not be faster."""
    x, y = (shapes.get(name, ()) for name in (node.inputs[0], node.outputs[0]))
    group, taps = node.attributes.get("group", 1), math.prod(w[2:])
    if len(w) != 4 or 0 in w:
        return None
    if group > 1:
        depthwise = w[1] == 1 and w[0] == group and group % _ALIGNED == 0
        return _Kind(w[0], 1, taps, True, True) if depthwise else None
    reordered = w[1] >= block
    if reordered and w[1] % _ALIGNED:
        return None
    if len(x) != 4 or len(y) != 4 or not all(isinstance(n, int) for n in (*x[2:], *y[2:])):
        return None
    points, seen = math.prod(y[2:]), math.prod(x[2:])
    products = w[1] * taps * w[0]
    strides = node.attributes.get("strides", [1, 1])
    gathered = 0 if taps == 1 and max(strides) == 1 else w[1] * taps * points
    plain = products * _up(points, block) + _GATHERED * gathered
    moved = _up(w[0], block) * points + (w[1] * seen if reordered else 0)
    ours = products * points * _up(w[0], block) // w[0] + _REORDERED * moved
    return _Kind(w[0], w[1], taps, reordered, False) if ours < plain else None


class _Writer:
    """Writes the nodes of the blocked graph."""

    def __init__(
        self, proto: onnx.ModelProto, kinds: Mapping[str, _Kind], live: Mapping[str, np.ndarray], blocked: Blocked,
        block: int,
    ) -> None:  # fmt: skip
        self._proto, self._kinds, self._live, self._blocked, self._block = proto, kinds, live, blocked, block
        self._in_blocks: dict[str, str] = {}  # tensor -> the same in blocks
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._asked = {value.name for value in proto.graph.output}
        self._captured = any(a.HasField("g") or a.graphs for node in proto.graph.node for a in node.attribute)
        self._done: set[str] = set()

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """All nodes, in order."""
        for node in self._proto.graph.node:
            kind = self._kinds.get(node.output[0])
            if kind is not None:
                yield from self._convolution(node, kind)
            elif node.output[0] not in self._done:
                yield node

    def _convolution(self, node: onnx.NodeProto, kind: _Kind) -> Iterator[onnx.NodeProto]:
        x, w, *bias = node.input
        y, after = node.output[0], self._after(node.output[0])
        if kind.reordered and x not in self._in_blocks:
            self._in_blocks[x] = f"{x}/blocked"
            yield helper.make_node("ReorderInput", [x], [f"{x}/blocked"], domain=DOMAIN, channels_last=0)
        weights = f"{w}/blocked{'' if not kind.depthwise else '_each'}"
        if weights not in self._blocked.arrays:
            self._blocked.add(weights, self._live[w], kind, self._block)
        extra = _up(kind.outputs, self._block) - kind.outputs
        if bias and bias[0] and extra:
            pads = f"{y}/bias_pads"
            self._proto.graph.initializer.append(numpy_helper.from_array(np.asarray([0, extra], np.int64), pads))
            yield helper.make_node("Pad", [bias[0], pads], [f"{y}/bias"])
            bias[0] = f"{y}/bias"
        if after is not None:
            y = after.output[0]
            self._done.add(y)
        inside = self._in_blocks[x] if kind.reordered else x
        made = helper.make_node("Conv", [inside, weights, *bias], [f"{y}/blocked"], node.name, domain=DOMAIN)
        made.attribute.extend(a for a in node.attribute if a.name != "group")
        if not any(a.name == "auto_pad" for a in made.attribute):
            made.attribute.append(helper.make_attribute("auto_pad", "NOTSET"))
        group = _up(kind.outputs, self._block) if kind.depthwise else 1
        made.attribute.append(helper.make_attribute("group", group))
        if after is not None:
            made.attribute.append(helper.make_attribute("activation", after.op_type))
        yield made
        self._in_blocks[y] = f"{y}/blocked"
        yield helper.make_node(
            "ReorderOutput", [f"{y}/blocked"], [y], domain=DOMAIN, channels=kind.outputs, channels_last=0
        )

    def _after(self, y: str) -> onnx.NodeProto | None:
        """The activation that alone reads a convolution's output, which nobody else asks for."""
        readers = self._readers.get(y, [])
        if len(readers) != 1 or y in self._asked or self._captured:
            return None
        return readers[0] if readers[0].op_type in _FUSED and readers[0].domain in ("", "ai.onnx") else None


# ---- whether this ONNX Runtime has it ------------------------------------------------------------------------------


@functools.cache
def block_size() -> int:
    """How many channels ONNX Runtime puts into a block here; 0 where its blocked convolutions are not what we know."""
    try:
        block = _block_of_its_own()
        return block if block > 1 and _is_right(block) else 0
    except Exception:  # whatever another version says to this: then we do without
        return 0


def _model(nodes: list[onnx.NodeProto], inputs: dict[str, Dims], weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(3)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _samples() -> tuple[dict[str, np.ndarray], list[onnx.NodeProto]]:
    """Convolutions of the three kinds that are blocked, in the order in which they need each other."""
    rng = np.random.default_rng(0)
    sizes = {
        "x": (1, 4, 5, 6),
        "w0": (20, 4, 3, 3),
        "w1": (24, 20, 3, 2),
        "w2": (24, 1, 3, 3),
        "b0": (20,),
        "b2": (24,),
    }
    values = {name: rng.integers(-3, 4, size).astype(np.float32) for name, size in sizes.items()}
    conv = functools.partial(helper.make_node, "Conv", pads=[1, 1, 1, 1])
    nodes = [
        conv(["x", "w0", "b0"], ["y0"], strides=[1, 1], group=1),
        conv(["y0", "w1"], ["y1"], strides=[1, 1], group=1),
        conv(["y1", "w2", "b2"], ["y2"], strides=[2, 1], group=24),
    ]
    return values, nodes


def _block_of_its_own() -> int:
    import onnxruntime

    values, nodes = _samples()
    model = _model(nodes, {"x": values["x"].shape}, {n: v for n, v in values.items() if n != "x"})
    with tempfile.TemporaryDirectory(prefix="backstroke-") as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "Conv" and node.domain == DOMAIN)
    outputs = shapes[first.input[1]][0]  # of 20 channels, in whole blocks
    return {24: 8, 32: 16}.get(outputs, 0)


def _is_right(block: int) -> bool:
    """Whether blocked convolutions with weights that come in give what plain ones give: whole numbers, so exactly."""
    import onnxruntime

    values, nodes = _samples()
    weights: Collection[str] = [name for name in values if name[0] == "w"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1

    def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run([f"y{i}" for i in range(3)], feeds))

    model = _model(nodes, {name: v.shape for name, v in values.items()}, {})
    expected = run(model, values)
    kinds = {
        "y0": _Kind(20, 4, 9, False, False),
        "y1": _Kind(24, 20, 6, True, False),
        "y2": _Kind(24, 1, 9, True, True),
    }
    blocked = Blocked()
    live = {name: values[name] for name in weights}
    written = list(_Writer(model, kinds, live, blocked, block).nodes())
    del model.graph.node[:]
    model.graph.node.extend(written)
    for name, array in blocked.arrays.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    blocked.fill(block)
    found = run(model, {**values, **blocked.arrays})
    return all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


__all__ = ["Blocked", "block_size", "rewritten"]
