"""Results on their way past the caches: made in memory that stays in the first cache, streamed out by whole lines.

A store past the caches wants a whole aligned line. Rows seldom begin at one, and an array of the caller's seldom does:
NumPy aligns to 16 bytes. So what is to be streamed is put on a stage first. Whole lines leave it at once, the rest of
the last one stays until more comes: only the two ends of what a stage carries are written in part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .types import Type, i16, i32, i64

if TYPE_CHECKING:
    from .trace import Lanes, Pointer, Trace, Value

_BYTES, _MOST_BYTES = 1 << 10, 64 << 10
_RAW = {2: i16, 4: i32, 8: i64}


def group(unit: int, type: Type) -> int:
    """How many units of so many elements are best staged at a time: few, so that computing goes on meanwhile."""
    return max(1, _BYTES // (unit * type.bytes))


def raw(type: Type) -> Type:
    """What elements are while they are only moved."""
    return _RAW[type.bytes]


def too_long(unit: int, type: Type) -> bool:
    """Whether even one unit is too much."""
    return unit * type.bytes > _MOST_BYTES


class Stage:
    """Takes what belongs at `target` and behind it in turn, at most `most` elements at a time.

    `room()` says where to put them, `send(count)` takes them over, and after the last `finish()` is due. Without
    `stream` the room is in the target itself.
    """

    def __init__(self, k: Trace, target: Pointer, most: int, *, stream: bool) -> None:
        self._k, self._stream, self._type = k, stream, target.type
        self._raw = raw(target.type)
        self._line = k.target.vector_bytes // target.type.bytes
        if not stream:
            self._place = k.var(target.address)
            return
        memory = k.stack(target.type, most + 2 * self._line)
        self._memory, self._lines = memory, k.dereference(memory.address, self._raw)
        others = (target.address & (k.target.vector_bytes - 1)) // target.type.bytes
        # The next line's address; how many elements are on the stage; how many of the first line belong to others.
        self._place = k.var(target.address - others * target.type.bytes)
        self._filled, self._others = k.var(others), k.var(others)

    def room(self) -> Pointer:
        """Where the next elements go."""
        if not self._stream:
            return self._k.dereference(self._place.read(), self._type)
        return self._memory.at(self._filled.read())

    def send(self, count: Value | int) -> None:
        """So many elements have been put there."""
        k, line = self._k, self._line
        if not self._stream:
            self._place += k.value(count, i64) * self._type.bytes
            return
        from .trace import Lanes

        total = self._filled + count
        whole = total // line * line
        target, first = k.dereference(self._place.read(), self._raw), k.var(0, i64)
        with k.when((self._others > 0) & (whole > 0)):
            target[self._some(self._others.read(), line)] = self._lines[Lanes(0, line)]
            self._others.set(0)
            first.set(line)
        for at in k.range(first.read(), whole, line):
            found = self._lines.load(Lanes(at, line), align=k.target.vector_bytes)
            target.store(Lanes(at, line, aligned=True), found, stream=True)
        self._lines[Lanes(0, line)] = self._lines[Lanes(whole, line)]
        self._place += whole * self._type.bytes
        self._filled.set(total - whole)

    def finish(self) -> None:
        """Write what is left."""
        if self._stream:
            with self._k.when(self._filled > self._others):
                at = self._some(self._others.read(), self._filled.read())
                self._k.dereference(self._place.read(), self._raw)[at] = self._lines[at]

    def _some(self, first: Value, end: Value | int) -> Lanes:
        """The elements of a line from the first to the end."""
        from .trace import Lanes

        k, lane = self._k, self._k.iota(self._line)
        return Lanes(0, self._line, (lane >= k.spread(first, self._line)) & (lane < end))


class Leaving:
    """Takes what is whole already, and lets it leave by whole lines, a few at a time.

    All at once, it would keep the core from anything else. Without `stream` it goes through the caches.
    """

    def __init__(self, k: Trace, source: Pointer, *, stream: bool) -> None:
        kind = raw(source.type)
        self._stream = stream
        self._k, self._source, self._line = k, source.viewed(kind), k.target.vector_bytes // kind.bytes
        # Where it goes, the next element, the one after the last whole line.
        self._target, self._next, self._end = k.var(0, i64), k.var(0, i64), k.var(0, i64)

    def take(self, start: Value | int, target: Pointer, count: Value | int) -> None:
        """`count` elements of the source, once all that was taken before has left."""
        k, kind = self._k, self._source.type
        to, source = target.viewed(kind), self._source.at(start)
        others = (target.address & (k.target.vector_bytes - 1)) // kind.bytes
        first = k.least(k.where(others > 0, self._line - others, 0), count)
        end = first + (count - first) // self._line * self._line
        for at in (k.some(0, first, self._line), k.some(end, count - end, self._line)):
            to[at] = source[at]
        self._target.set(to.address - k.value(start, i64) * kind.bytes)
        self._next.set(first + start)
        self._end.set(end + start)

    def go(self, lines: int | None = None) -> None:
        """So many lines leave, or all."""
        from .trace import Lanes

        k = self._k
        target = k.dereference(self._target.read(), self._source.type)
        end = k.least(self._next + lines * self._line, self._end) if lines else self._end.read()
        for at in k.range(self._next.read(), end, self._line):
            target.store(Lanes(at, self._line, aligned=True), self._source[Lanes(at, self._line)], stream=self._stream)
        self._next.set(end)
