"""The plan of a backward pass for one set of shapes: which step comes when, and where its arrays lie.

It is made once. Shapes and what follows from them are computed here; every array has its place in one block of memory,
which it shares with arrays that live at other times. Running the plan then is calling its steps one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .backward import Backward
from .fold import evaluate
from .fuse import Fusion, Unit
from .fused import Fused
from .steps import Shape, Site, View, Work, entry

ALIGN = 64
Step = Callable[[], object]


@dataclass
class Buffer:
    """An array of the plan: when it is written and last read (steps; 0 is the forward pass), and where it lies."""

    shape: Shape
    dtype: np.dtype
    start: int
    end: int
    offset: int = 0

    @property
    def size(self) -> int:
        count = self.dtype.itemsize
        for n in self.shape:
            count *= n
        return -(-max(count, 1) // ALIGN) * ALIGN


@dataclass
class _Tensor:
    """What a name stands for: a buffer, an array that comes in with each call, or one that always lies in one place;
    seen through `views`. `model` has shape, type and strides, and no content."""

    root: str
    model: np.ndarray
    views: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()


@dataclass
class Plan:
    """How the gradients come about. `stash` are the forward tensors to be kept, each in its place."""

    stash: dict[str, np.ndarray]
    grads: dict[str, np.ndarray]
    bytes: int
    _steps: list[Step]
    _slots: dict[str, np.ndarray] = field(default_factory=dict)
    masks: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, given: dict[str, np.ndarray]) -> None:
        """Compute the gradients; `given` are the arrays that come in with each call."""
        self._slots.clear()
        self._slots.update(given)
        for step in self._steps:
            step()
        self._slots.clear()


class Planner:
    """Makes a plan.

    `shapes` and `dtypes` tell of every forward tensor that the gradient graph looks at, `values` of those that are
    known (constants, shape arithmetic). `fixed` lie where they lie (parameters); `given` come in with each call (feeds
    and the gradients of the outputs); what else is read of the forward pass is stashed.
    """

    def __init__(
        self,
        backward: Backward,
        shapes: dict[str, Shape],
        dtypes: dict[str, np.dtype],
        values: dict[str, np.ndarray],
        fixed: dict[str, np.ndarray],
        given: Sequence[str],
        keep: Sequence[str],
    ) -> None:
        self._backward, self._shapes, self._dtypes = backward, shapes, dtypes
        self._values = {**values, **backward.constants}
        self._fixed, self._given = dict(fixed), set(given)
        self._tensors: dict[str, _Tensor] = {}
        self._buffers: dict[str, Buffer] = {}
        self._planned: list[Unit] = []
        self._keep, self._stashed = list(keep), list(keep)
        for name in keep:
            self._buffer(name, shapes[name], dtypes[name], 0)

    def plan(self, allocate: Callable[[int], np.ndarray]) -> Plan:
        """The plan, in memory from `allocate` (a number of bytes)."""
        for node in self._backward.nodes:
            self._node(node)
        results = self._results()
        self._fuse(results)
        self._lifetimes(set(results.values()))
        total = place(list(self._buffers.values()))
        block = allocate(total)
        arrays = {
            name: block[b.offset : b.offset + b.size].view(b.dtype)[: int(np.prod(b.shape))].reshape(b.shape)
            for name, b in self._buffers.items()
        }
        slots: dict[str, np.ndarray] = {}
        steps = [self._step(planned, arrays, slots) for planned in self._planned]
        stash = {name: arrays[name] for name in self._stashed}
        grads = {}
        for name, result in results.items():
            found = self._operand(result, arrays)
            assert isinstance(found, np.ndarray)
            grads[name] = found
        return Plan(stash, grads, total, steps, slots)

    # ---- names --------------------------------------------------------------------------------------------------

    def _buffer(self, name: str, shape: Shape, dtype: np.dtype, start: int) -> None:
        self._buffers[name] = Buffer(shape, dtype, start, start)
        self._tensors[name] = _Tensor(name, np.empty(shape, dtype))

    def _tensor(self, name: str) -> _Tensor:
        """The tensor of a name; forward tensors that nobody has asked for yet are stashed from now on."""
        found = self._tensors.get(name)
        if found is None:
            value = self._values.get(name)
            if value is not None:
                self._fixed[name] = np.asarray(value, order="C")
            if name in self._fixed:
                found = self._tensors[name] = _Tensor(name, self._fixed[name])
            elif name in self._given:
                found = self._tensors[name] = _Tensor(name, np.empty(self._shapes[name], self._dtypes[name]))
            else:
                self._buffer(name, self._shapes[name], self._dtypes[name], 0)
                self._stashed.append(name)
                found = self._tensors[name]
        return found

    # ---- nodes --------------------------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        if not node.domain and node.op in ("Shape", "Size"):
            shape = self._shape_of(node.inputs[0])
            value = np.asarray(shape if node.op == "Shape" else int(np.prod(shape, dtype=np.int64)), np.int64)
            self._values[node.outputs[0]] = value
            return
        values = [self._values.get(name) if name else None for name in node.inputs]
        if all(value is not None for value in values):
            result = evaluate(node.op, values, node.attributes)
            if result is not None:
                self._values[node.outputs[0]] = result
                return
        like = self._shapes[node.like] if node.like else None
        wanted = entry(node.op, node.domain)
        inputs: list[np.ndarray | None] = []
        for name in node.inputs:
            known = self._values.get(name)
            inputs.append(known if known is not None else self._model_of(name) if name else None)
        made = wanted(Site(node, inputs, values, like))
        if isinstance(made, View):
            self._view(node.outputs[0], node.inputs[made.source], made)
        else:
            self._work(node, made)

    def _shape_of(self, name: str) -> Shape:
        if name in self._tensors:
            return self._tensors[name].model.shape
        return self._values[name].shape if name in self._values else self._shapes[name]

    def _model_of(self, name: str) -> np.ndarray:
        """An array like the tensor; looking at it does not yet ask for its content."""
        found = self._tensors.get(name)
        if found is not None:
            return found.model
        if name in self._fixed:
            return self._fixed[name]
        return np.empty(self._shapes[name], self._dtypes[name])

    def _view(self, output: str, source: str, made: View) -> None:
        tensor = self._dense(source) if made.dense else self._tensor(source)
        self._tensors[output] = _Tensor(tensor.root, made.of(tensor.model), (*tensor.views, made.of))

    def _dense(self, name: str) -> _Tensor:
        """The tensor, copied where its elements do not lie one after the other."""
        tensor = self._tensor(name)
        if tensor.model.flags.c_contiguous:
            return tensor
        dense, copy = self._dense_copy(name)
        if copy is not None:
            self._planned.append(copy)
        return self._tensors[dense]

    def _dense_copy(self, name: str) -> tuple[str, Unit | None]:
        """The name of a dense copy, and what makes it, where nothing does yet."""
        copy = f"{name}:dense"
        if copy in self._tensors:
            return copy, None
        model = self._tensors[name].model
        self._buffer(copy, model.shape, model.dtype, 1)
        return copy, Unit(_copy, [name], [copy])

    def _work(self, node: Any, made: Work) -> None:
        reads = []
        for i in made.reads:
            name = node.inputs[i]
            tensor = self._dense(name) if made.dense else self._tensor(name)
            reads.append(f"{name}:dense" if tensor is not self._tensors[name] else name)
        writes = []
        for name, output in zip(node.outputs, made.outputs, strict=True):
            if name and output is not None:
                self._buffer(name, *output, 1)
                writes.append(name)
        if made.memory is not None:
            writes.append(f"{node.name}:memory")
            self._buffer(writes[-1], (made.memory,), np.dtype(np.uint8), 1)
        self._planned.append(Unit(made.run, reads, writes, made.part))

    def _results(self) -> dict[str, str]:
        """The gradients, each in a buffer of its own."""
        results, taken = {}, set(self._stashed)
        for name, gradient in self._backward.grads.items():
            tensor = self._tensor(gradient)
            whole = tensor.model.flags.c_contiguous and tensor.model.size == self._tensors[tensor.root].model.size
            if whole and tensor.root in self._buffers and tensor.root not in taken:
                results[name] = gradient
                taken.add(tensor.root)
                continue
            copy = f"{name}:result"
            self._buffer(copy, tensor.model.shape, tensor.model.dtype, 1)
            self._planned.append(Unit(_copy, [gradient], [copy]))
            results[name] = copy
        return results

    # ---- time and memory ----------------------------------------------------------------------------------------

    def _fuse(self, results: dict[str, str]) -> None:
        """Make one kernel of what can be one; what is then made in passing needs no memory."""
        tensors = self._tensors
        wanted = {tensors[name].root for name in (*results.values(), *self._keep)}
        fusion = Fusion(self._planned, lambda n: tensors[n].root, lambda n: tensors[n].model, wanted, self._dense_copy)
        self._planned = fusion.run()
        written = {*self._stashed, *(name for unit in self._planned for name in unit.writes)}
        self._buffers = {name: buffer for name, buffer in self._buffers.items() if name in written}

    def _lifetimes(self, results: set[str]) -> None:
        for time, planned in enumerate(self._planned, start=1):
            for name in planned.writes:
                self._buffers[name].start = self._buffers[name].end = time
            for name in planned.reads:
                buffer = self._buffers.get(self._tensors[name].root)
                if buffer is not None:
                    buffer.end = max(buffer.end, time)
        for name in (*results, *self._keep):
            self._buffers[self._tensors[name].root].end = len(self._planned) + 1

    def _step(self, planned: Unit, arrays: dict[str, np.ndarray], slots: dict[str, np.ndarray]) -> Step:
        run = planned.run
        operands = [self._operand(name, arrays) for name in (*planned.reads, *planned.writes)]
        places = [operand for operand in operands if isinstance(operand, np.ndarray)]
        if len(places) == len(operands):
            return run.prepare(places) if isinstance(run, Fused) else lambda: run(*places)

        def late(operand: np.ndarray | _Tensor) -> np.ndarray:
            if not isinstance(operand, _Tensor):
                return operand
            found = slots[operand.root]
            for view in operand.views:
                found = view(found)
            return found

        return lambda: run(*map(late, operands))

    def _operand(self, name: str, arrays: dict[str, np.ndarray]) -> np.ndarray | _Tensor:
        """The array of a name, if it is always the same one; else how to find it in each call."""
        tensor = self._tensors[name]
        if tensor.root in self._given and tensor.root not in self._fixed:
            return tensor
        array = arrays[tensor.root] if tensor.root in arrays else self._fixed[tensor.root]
        for view in tensor.views:
            array = view(array)
        return array


def _copy(x: np.ndarray, y: np.ndarray) -> None:
    np.copyto(y, x)


def place(buffers: list[Buffer]) -> int:
    """Give every buffer an offset such that none overlaps another of the same time; -> the size of all.

    The large ones choose first, each the lowest gap that it fits in.
    """
    placed: list[Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.start)):
        offset = 0
        for other in placed:  # by offset
            if other.end < buffer.start or buffer.end < other.start:
                continue
            if other.offset - offset >= buffer.size:
                break
            offset = max(offset, other.offset + other.size)
        buffer.offset = offset
        total = max(total, offset + buffer.size)
        placed.append(buffer)
        placed.sort(key=lambda b: b.offset)
    return total
