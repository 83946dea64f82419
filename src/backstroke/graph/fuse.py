"""Which steps of a plan are one kernel: chains of elementwise nodes, and the sums over what they make.

Two groups of steps over the same space become one where no way leads from the one to the other through a third, where
sums are not read by who makes them, and where all sums of a group keep the same axes. A small group that only one other
reads (numbers for each channel, say) is computed there, once for each row.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..jit.types import Type
from .fused import Fused, Line, Program, type_of

Shape = tuple[int, ...]
MOST_LINES, MOST_OPERANDS = 96, 24


@dataclass(frozen=True)
class Part:
    """A node that can be part of a kernel: an elementwise op over `space`, or (op "") a sum over it.

    `takes` are names, or numbers that are known. `kept` are, of a sum, the axes of the space that it keeps.
    """

    op: str
    attributes: dict[str, Any]
    takes: list[str | float]
    space: Shape
    output: str
    dtype: np.dtype
    kept: tuple[bool, ...] | None = None


@dataclass
class Unit:
    """A step of the plan: what it runs, reads and writes; and what it is, where it can be part of a kernel."""

    run: Callable[..., object]
    reads: list[str]
    writes: list[str]
    part: Part | None = None


@dataclass(eq=False)
class _Group:
    units: list[int]
    space: Shape | None
    kept: tuple[bool, ...] | None = None  # without the axes of length 1
    reads: set[int] = field(default_factory=set)  # units that it reads from


def sum_part(x: str, shape: Shape, axes: Sequence[int], output: str, dtype: np.dtype) -> Part:
    """A sum over some axes."""
    return Part("", {}, [x], shape, output, dtype, tuple(i not in axes for i in range(len(shape))))


class Fusion:
    """Groups the units of a plan. `root` tells of a name the buffer that it is seen in; `whole` whether it is all of
    it, unchanged; `model` is an array with its shape, type and strides; `wanted` are buffers that are read at the end.
    """

    def __init__(
        self,
        units: list[Unit],
        root: Callable[[str], str],
        model: Callable[[str], np.ndarray],
        wanted: set[str],
        dense: Callable[[str], tuple[str, Unit | None]],
    ) -> None:
        self._units, self._root, self._model, self._wanted, self._dense = units, root, model, wanted, dense
        self._writer = {name: i for i, unit in enumerate(units) for name in unit.writes}
        self._sources = [self._sources_of(unit) for unit in units]
        self._readers: list[list[int]] = [[] for _ in units]
        for i, sources in enumerate(self._sources):
            for source in sources:
                self._readers[source].append(i)
        self._group = [_Group([i], self._space(unit), _kept(unit.part)) for i, unit in enumerate(units)]

    def _sources_of(self, unit: Unit) -> list[int]:
        found = (self._writer.get(self._root(name)) for name in unit.reads)
        return list(dict.fromkeys(i for i in found if i is not None))

    def _space(self, unit: Unit) -> Shape | None:
        part = unit.part
        if part is None or 0 in part.space or type_of(part.dtype) is None:
            return None
        types = [type_of(self._model(name).dtype) for name in unit.reads]
        return part.space if all(types) else None

    def run(self) -> list[Unit]:
        """The units of the plan, the fused ones in the place of their parts, in an order that works."""
        for i, unit in enumerate(self._units):
            for source in self._sources[i] if unit.part is not None else ():
                self._join(i, source)
        users: dict[str, list[int]] = {}
        for i, unit in enumerate(self._units):
            if unit.part is not None:
                for name in unit.reads:
                    users.setdefault(name, []).append(i)
        for same in users.values():
            for a, b in itertools.pairwise(same):
                self._join(a, b)
        for i in range(len(self._units)):
            self._inline(i)
        return [unit for group in self._ordered() for unit in self._made(group)]

    # ---- joining --------------------------------------------------------------------------------------------------

    def _join(self, a: int, b: int) -> None:
        one, other = self._group[a], self._group[b]
        if one is other or one.space is None or one.space != other.space:
            return
        if one.kept is not None and other.kept is not None and one.kept != other.kept:
            return
        self._merge(one, other, one.space)

    def _inline(self, i: int) -> None:
        """A small group whose only reader is a group over a larger space goes into it."""
        group = self._group[i]
        if group.space is None or group.kept is not None or group.units[0] != i:
            return
        readers = {id(self._group[r]): self._group[r] for u in group.units for r in self._readers[u]}
        readers.pop(id(group), None)
        if len(readers) != 1 or any(self._units[u].writes[0] in self._wanted for u in group.units):
            return
        (reader,) = readers.values()
        if reader.space is None or math.prod(reader.space) < 4 * math.prod(group.space):
            return
        padded = (1,) * (len(reader.space) - len(group.space)) + group.space
        if len(padded) == len(reader.space) and all(n in (1, m) for n, m in zip(padded, reader.space, strict=True)):
            self._merge(group, reader, reader.space)

    def _merge(self, one: _Group, other: _Group, space: Shape) -> None:
        both = sorted(one.units + other.units)
        inside = set(both)
        if len(both) > MOST_LINES or not all(self._direct(i, inside) for i in both) or self._detour(inside):
            return
        operands = {name for i in both for name in self._units[i].reads if self._writer.get(name) not in inside}
        if len(operands) > MOST_OPERANDS:
            return
        joined = _Group(both, space, one.kept if one.kept is not None else other.kept)
        for i in both:
            self._group[i] = joined

    def _direct(self, reader: int, inside: set[int]) -> bool:
        """Whether a unit reads what others in the group make only as they make it: no sums, and unchanged."""
        for name in self._units[reader].reads:
            writer = self._writer.get(self._root(name))
            if writer in inside and writer is not None:
                part = self._units[writer].part
                assert part is not None
                if part.kept is not None or name != part.output:
                    return False
        return True

    def _detour(self, inside: set[int]) -> bool:
        """Whether a way leads out of the group and back into it."""
        last = max(max(self._group[i].units) for i in inside)
        todo = [r for i in inside for r in self._readers[i] if r not in inside]
        seen: set[int] = set()
        while todo:
            unit = todo.pop()
            if unit in seen:
                continue
            members = self._group[unit].units
            seen.update(members)
            for member in members:
                for reader in self._readers[member]:
                    if reader in inside:
                        return True
                    if reader not in seen and min(self._group[reader].units) <= last:
                        todo.append(reader)
        return False

    # ---- making ---------------------------------------------------------------------------------------------------

    def _ordered(self) -> list[_Group]:
        groups = list({id(group): group for group in self._group}.values())
        waits = {id(g): {id(self._group[s]) for u in g.units for s in self._sources[u]} - {id(g)} for g in groups}
        then: dict[int, list[_Group]] = {}
        for group in groups:
            for source in waits[id(group)]:
                then.setdefault(source, []).append(group)
        ready = [(g.units[-1], n, g) for n, g in enumerate(groups) if not waits[id(g)]]
        heapq.heapify(ready)
        order = []
        number = len(groups)
        while ready:
            *_, group = heapq.heappop(ready)
            order.append(group)
            for following in then.get(id(group), []):
                waits[id(following)].discard(id(group))
                if not waits[id(following)]:
                    number += 1
                    heapq.heappush(ready, (following.units[-1], number, following))
        assert len(order) == len(groups), "groups of steps wait for each other"
        return order

    def _made(self, group: _Group) -> list[Unit]:
        if group.space is None:
            return [self._units[i] for i in group.units]
        return _Kernel(self, group).units()


class _Kernel:
    """Makes the program of one group."""

    def __init__(self, fusion: Fusion, group: _Group) -> None:
        assert group.space is not None
        self._f, self._space = fusion, group.space
        self._parts: list[Part] = []
        for i in group.units:
            part = fusion._units[i].part
            assert part is not None
            self._parts.append(part)
        inside = set(group.units)
        self._outside = {
            fusion._units[i].writes[0]
            for i in inside
            if fusion._units[i].writes[0] in fusion._wanted or any(r not in inside for r in fusion._readers[i])
        }
        self._copies: list[Unit] = []
        self._operands: dict[str, np.ndarray] = {}
        self._named: dict[str, str] = {}  # operand -> itself, or its dense copy

    def units(self) -> list[Unit]:
        """The kernel, and what makes its operands dense."""
        made = {part.output for part in self._parts if part.kept is None}
        inner = max((i for i, n in enumerate(self._space) if n > 1), default=0)
        for part in self._parts:
            for name in part.takes:
                if isinstance(name, str) and name not in made and name not in self._operands:
                    self._operands[name] = self._spread(name, inner)
        sizes, walks, kept = self._axes()
        numbers = self._known_numbers()
        count = len(self._operands)
        index: dict[str, int] = {name: i for i, name in enumerate(self._operands)}
        lines: list[Line] = []
        results: list[tuple[str, int, Type]] = []
        sums: list[tuple[str, int, Type]] = []
        for part in self._parts:
            takes = tuple(
                index[name] if isinstance(name, str) else count + numbers[name, self._number_type(part)]
                for name in part.takes
            )
            type = type_of(part.dtype)
            assert type is not None
            if part.kept is not None:
                sums.append((part.output, takes[0], type))
                continue
            attributes = tuple(sorted((k, v) for k, v in part.attributes.items() if k != "to"))
            index[part.output] = count + len(numbers) + len(lines)
            lines.append((part.op, () if part.op == "Cast" else attributes, takes, part.dtype.str))
            if part.output in self._outside:
                results.append((part.output, index[part.output], type))
        program = Program(
            len(sizes),
            tuple(
                (_type(x), tuple(bool(step) for step in walk))
                for x, walk in zip(self._operands.values(), walks, strict=True)
            ),
            tuple(type for _, type in numbers),
            tuple(lines),
            tuple((i, type) for _, i, type in results),
            tuple((i, type) for _, i, type in sums),
            kept,
        )
        strides = [[step for step in walk[:-1] if step] for walk in walks]
        run = Fused(program, sizes, strides, [number for number, _ in numbers])
        names = [self._named[name] for name in self._operands]
        writes = [name for name, *_ in (*results, *sums)]
        return [*self._copies, Unit(run, names, writes)]

    def _spread(self, name: str, inner: int) -> np.ndarray:
        """The operand over the whole space, with strides of 0 where it is repeated."""
        x = np.broadcast_to(self._f._model(name), self._space)
        self._named[name] = name
        if x.ndim and x.strides[inner] not in (0, x.itemsize) and self._space[inner] > 1:
            dense, copy = self._f._dense(name)
            if copy is not None:
                self._copies.append(copy)
            self._named[name] = dense
            x = np.broadcast_to(self._f._model(dense), self._space)
        return x

    def _axes(self) -> tuple[list[int], list[list[int]], tuple[bool, ...]]:
        """Sizes; the strides of each operand, in elements; the axes that sums keep. Axes of length 1 are left out, and
        neighbours that all walk alike are one."""
        kept_all = next((part.kept for part in self._parts if part.kept is not None), None)
        sizes: list[int] = []
        walks: list[list[int]] = [[] for _ in self._operands]
        kept: list[bool] = []
        steps = [[s // x.itemsize for s in x.strides] for x in self._operands.values()]
        for axis, n in enumerate(self._space):
            if n == 1:
                continue
            keep = kept_all is None or kept_all[axis]
            own = [s[axis] for s in steps]
            alike = bool(sizes) and kept[-1] == keep
            alike = alike and all(
                (not before[-1] and not step) or (step and before[-1] == n * step)
                for before, step in zip(walks, own, strict=True)
            )
            if alike:
                sizes[-1] *= n
                for walk, step in zip(walks, own, strict=True):
                    walk[-1] = step
            else:
                sizes.append(n)
                kept.append(keep)
                for walk, step in zip(walks, own, strict=True):
                    walk.append(step)
        if not sizes:
            return [1], [[1] for _ in walks], (kept_all is None or all(kept_all),)
        return sizes, walks, tuple(kept)

    def _known_numbers(self) -> dict[tuple[float, Type], int]:
        found: dict[tuple[float, Type], int] = {}
        for part in self._parts:
            for number in part.takes:
                if not isinstance(number, str):
                    found.setdefault((number, self._number_type(part)), len(found))
        return found

    def _number_type(self, part: Part) -> Type:
        """The type of a number among what a part takes: that of what it comes with."""
        names = [name for name in part.takes if isinstance(name, str)]
        dtypes = [self._dtype(name) for name in names]
        chosen = next((d for d in reversed(dtypes) if d.kind == "f"), part.dtype)
        type = type_of(chosen)
        assert type is not None
        return type.compute

    def _dtype(self, name: str) -> np.dtype:
        own = next((part.dtype for part in self._parts if part.output == name), None)
        return own if own is not None else self._f._model(name).dtype


def _type(x: np.ndarray) -> Type:
    type = type_of(x.dtype)
    assert type is not None
    return type


def _kept(part: Part | None) -> tuple[bool, ...] | None:
    """The axes that a sum keeps, without those of length 1."""
    if part is None or part.kept is None:
        return None
    return tuple(keep for keep, n in zip(part.kept, part.space, strict=True) if n > 1)
