"""Elementwise nodes, and sums over what they make, as one kernel: formulas traced into one nest.

A `Program` is what is computed for each element of a space; sizes, strides and numbers come in when the kernel runs, so
that the same program over another shape is the same machine code. Axes that every operand walks alike are one axis.
What does not change along the last axis is computed once for each row. Without sums, a piece is a stretch of elements
or some rows; with sums, it is what goes into one place of them (or into neighbouring places), added in float64 in an
order that depends on nothing but the shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arrays
from ..jit import compile as compiler
from ..jit.threads import pool
from ..jit.types import Param, Type, f32, f64, i8, i32, i64, mask, pointer, scalar
from .formulas import FORMULAS

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value

CHUNK = 16384
COLUMNS = 4  # vectors in a piece, where neighbouring places are summed for themselves
_INTEGERS = {np.dtype(bool): i8, np.dtype(np.int32): i32, np.dtype(np.int64): i64}
Line = tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...], str]  # op, attributes, what it takes, its type


def type_of(dtype: np.dtype) -> Type | None:
    """The type of elements in memory; None where no kernel reads them."""
    found = arrays.TYPES.get(dtype)
    return _INTEGERS.get(dtype) if found is None else found


@dataclass(frozen=True)
class Program:
    """What a kernel does. What a line takes is counted: first the operands, then the numbers, then the lines."""

    axes: int
    operands: tuple[tuple[Type, tuple[bool, ...]], ...]  # type, and along which axes it changes
    numbers: tuple[Type, ...]
    lines: tuple[Line, ...]
    results: tuple[tuple[int, Type], ...]
    sums: tuple[tuple[int, Type], ...]
    kept: tuple[bool, ...]  # the axes that sums keep

    @property
    def params(self) -> Iterator[Param]:
        """Sizes; of each operand its place and its strides; places of results and sums; numbers."""
        yield from [scalar()] * self.axes
        for type, along in self.operands:
            yield pointer(type)
            yield from [scalar()] * sum(along[:-1])
        for _, type in (*self.results, *self.sums):
            yield pointer(type)
        for type in self.numbers:
            yield scalar(type)

    def pieces(self, sizes: Sequence[int], lanes: int) -> int:
        """How many pieces there are."""
        if not self.sums:
            rows = math.prod(sizes[:-1])
            return -(-sizes[-1] // CHUNK) if self.axes == 1 else -(-rows // (CHUNK // sizes[-1] + 1))
        kept = math.prod(n for n, keep in zip(sizes[:-1], self.kept, strict=False) if keep)
        return kept * (-(-sizes[-1] // (COLUMNS * lanes)) if self.kept[-1] else 1)


def nest(k: Trace, piece: Value, *arguments: Any, program: Program) -> None:
    _Nest(k, piece, list(arguments), program).trace()


class _Nest:
    """One tracing of a program."""

    def __init__(self, k: Trace, piece: Value, given: list[Any], program: Program) -> None:
        self.k, self.piece, self.p = k, piece, program
        self.sizes: list[Value] = [given.pop(0) for _ in range(program.axes)]
        self.places: list[Pointer] = []
        self.strides: list[dict[int, Value]] = []
        for _, along in program.operands:
            self.places.append(given.pop(0))
            self.strides.append({axis: given.pop(0) for axis in range(program.axes - 1) if along[axis]})
        self.results: list[Pointer] = [given.pop(0) for _ in program.results]
        self.sums: list[Pointer] = [given.pop(0) for _ in program.sums]
        self.numbers: list[Value] = given
        self.lanes = lanes_of(k.target, program)
        wheres = any(op == "Where" for op, *_ in program.lines)
        self._fence = wheres  # see jit.functions.ready
        self._moves = self._moving()

    def _moving(self) -> list[bool]:
        """Which operands, numbers and lines change along the last axis."""
        moves = [along[-1] for _, along in self.p.operands] + [False] * len(self.p.numbers)
        for _, _, takes, _ in self.p.lines:
            moves.append(any(moves[i] for i in takes))
        return moves

    def trace(self) -> None:
        k, p, inner = self.k, self.p, self.sizes[-1]
        if p.sums:
            self._with_sums()
        elif p.axes == 1:
            first = self.piece * CHUNK
            row = _Row(self, {})
            for at in k.vectors(first, k.least(first + CHUNK, inner), lanes=self.lanes):
                row.element(at)
        else:
            height, rows = CHUNK // inner + 1, _product(self.sizes[:-1])
            first = self.piece * height
            for index in k.range(first, k.least(first + height, rows)):
                row = _Row(self, self._indices(index, range(p.axes - 1)))
                for at in k.vectors(inner, lanes=self.lanes):
                    row.element(at)

    def _with_sums(self) -> None:
        k, p, inner = self.k, self.p, self.sizes[-1]
        outer = range(p.axes - 1)
        kept, gone = [i for i in outer if p.kept[i]], [i for i in outer if not p.kept[i]]
        many = _product([self.sizes[i] for i in gone])
        if not p.kept[-1]:
            mine = self._indices(self.piece, kept)
            totals = [k.var(0.0, f64, self.lanes) for _ in p.sums]
            for index in k.range(many):
                row = _Row(self, mine | self._indices(index, gone))
                for at in k.vectors(inner, lanes=self.lanes):
                    row.element(at, totals)
            for place, total in zip(self.sums, totals, strict=True):
                place[self.piece] = k.to(place.type.compute, k.sum(total))
            return
        width = COLUMNS * self.lanes
        side = (inner + (width - 1)) // width
        block, first = self.piece // side, self.piece % side * width
        mine = self._indices(block, kept)
        for at in k.vectors(first, k.least(first + width, inner), lanes=self.lanes):
            totals = [k.var(0.0, f64, self.lanes) for _ in p.sums]
            for index in k.range(many):
                _Row(self, mine | self._indices(index, gone)).element(at, totals)
            for place, total in zip(self.sums, totals, strict=True):
                place.at(block * inner).store(at, k.to(place.type.compute, total.read()))

    def _indices(self, flat: Value, axes: Sequence[int]) -> dict[int, Value]:
        """The indices along these axes, of which `flat` counts all together."""
        found = {}
        for axis in reversed(axes):
            if axis != axes[0]:
                found[axis], flat = flat % self.sizes[axis], flat // self.sizes[axis]
            else:
                found[axis] = flat
        return found


class _Row:
    """One row of the space: what is the same all along it is computed once, when it is first asked for."""

    def __init__(self, nest: _Nest, indices: dict[int, Value]) -> None:
        k = nest.k
        self.nest = nest
        self.places: list[Any] = []
        for place, strides in zip(nest.places, nest.strides, strict=True):
            for axis, stride in strides.items():
                place = place.at(indices[axis] * stride)
            self.places.append(place)
        start = k.value(0, i64)
        for axis in range(nest.p.axes - 1):
            start = start * nest.sizes[axis] + indices[axis]
        self.results = [place.at(start * nest.sizes[-1]) for place in nest.results]
        self.known: dict[int, Value] = {}
        for i, moves in enumerate(nest._moves):
            if not moves:
                self._value(i, None, self.known)

    def element(self, at: Lanes, totals: Sequence[Any] = ()) -> None:
        """Compute one vector: store the results, add to the sums."""
        nest, k = self.nest, self.nest.k
        values = dict(self.known)
        for place, (i, _) in zip(self.results, nest.p.results, strict=True):
            value = self._value(i, at, values)
            place.store(at, k.where(value, 1, k.value(0, i8)) if value.type is mask else value)
        for total, (i, _) in zip(totals, nest.p.sums, strict=False):
            value = k.value(self._value(i, at, values), nest.p.sums[0][1].compute, at.count)
            total += k.to(f64, value if at.mask is None else k.where(at.mask, value, 0.0))

    def _value(self, i: int, at: Lanes | None, values: dict[int, Value]) -> Value:
        if i in values:
            return values[i]
        nest, p = self.nest, self.nest.p
        first = len(p.operands) + len(p.numbers)
        if i < len(p.operands):
            values[i] = self._load(i, at)
        elif i < first:
            values[i] = nest.numbers[i - len(p.operands)]
        else:
            op, attributes, takes, kind = p.lines[i - first]
            values[i] = _compute(nest.k, op, dict(attributes), [self._value(j, at, values) for j in takes], kind)
        return values[i]

    def _load(self, i: int, at: Lanes | None) -> Value:
        from ..jit.functions import ready

        type, along = self.nest.p.operands[i]
        value: Value = self.places[i][at if along[-1] and at is not None else 0]
        if type is i8:
            return value != 0
        return ready(value) if self.nest._fence and type.kind in "fb" and value.lanes > 1 else value


def _compute(k: Trace, op: str, attributes: dict[str, Any], values: list[Value], kind: str) -> Value:
    if op == "Cast":
        return _cast(k, values[0], np.dtype(kind))
    result: Value = FORMULAS[op].on_arrays(*values, **attributes)
    return result


def _cast(k: Trace, x: Value, dtype: np.dtype) -> Value:
    if dtype.kind == "b":
        return x if x.type is mask else x != 0
    goal = arrays.TYPES[dtype].compute
    if x.type is mask:
        return k.where(x, k.value(1, goal), k.value(0, goal))
    return k.to(goal, x)


def lanes_of(target: Any, program: Program) -> int:
    """As many elements as a register holds of the widest type that is computed with."""
    wide = any(type in (f64, i64) for type, _ in (*program.operands, *((t, ()) for _, t in program.results)))
    return int(target.lanes(f64 if wide else f32))


def _product(values: Sequence[Any]) -> Any:
    result: Any = 1
    for value in values:
        result = value * result
    return result


class Fused:
    """A program bound to the shapes of its operands. Calling it with places for everything runs it."""

    def __init__(
        self, program: Program, sizes: Sequence[int], strides: Sequence[Sequence[int]], numbers: Sequence[float]
    ) -> None:
        self._sizes, self._strides, self._numbers, self._program = sizes, strides, numbers, program
        self._kernel = compiler.kernel(nest, *program.params, program=program)
        self._pieces = program.pieces(sizes, lanes_of(self._kernel.target, program))

    def _packed(self, operands: Sequence[np.ndarray]) -> bytes:
        words: list[float] = list(self._sizes)
        for array, strides in zip(operands, self._strides, strict=False):
            words += [arrays.address(array), *strides]
        words += [arrays.address(array) for array in operands[len(self._strides) :]]
        return self._kernel.pack(*words, *self._numbers)

    def __call__(self, *operands: np.ndarray) -> None:
        pool.run(self._kernel, self._packed(operands), self._pieces)

    def prepare(self, operands: Sequence[np.ndarray]) -> Callable[[], object]:
        """The call, with arrays that stay where they are."""
        packed, kernel, pieces, run, held = self._packed(operands), self._kernel, self._pieces, pool.run, list(operands)
        return lambda: run(kernel, packed, pieces) or held  # which keeps the arrays where they are
