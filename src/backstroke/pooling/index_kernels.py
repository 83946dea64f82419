"""The gradient of maxima from their indices: each dY is added to the element of dX that its index names.

Any index may name any element, but most come in order: windows of neighbours lie together. A survey reads every index
once, before anything is written, and leaves how far each is from the least of its chunk. A piece is a segment of dX; it
walks the chunks that reach into it, in order, so the bits do not depend on the threads. `slide` adds them up in a small
ring of memory that moves along dX, and what no later chunk can reach goes out behind it, by whole vectors, past the
caches: memory is written while sums are made. Where indices jump further than the ring, or dX stays in the caches
anyway, `scatter` adds up whole segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..jit.types import Type, i64
from .mean_kernels import LINE, whole_lanes
from .sums import clear, deliver

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

CHUNK = 128  # gradients whose places are kept as distances from the least of them
BLOCK = 16  # chunks that are found together
AHEAD = 512  # so many gradients ahead they are asked for
LEAST_RING = 4096  # elements
FAR = 2**62


# ---- what the nests tell each other ---------------------------------------------------------------------------------


def chunks_of(count: int) -> int:
    return -(-count // CHUNK)


def blocks_of(count: int) -> int:
    return -(-chunks_of(count) // BLOCK)


def near_bytes(count: int, near: Type) -> int:
    """Bytes that the distances of `count` gradients take."""
    return chunks_of(count) * CHUNK * near.bytes


def work_words(count: int, segments: int, near: Type) -> int:
    """Words of memory that the nests of one call share, for `count` gradients."""
    ranges = 2 * chunks_of(count) + 3 * blocks_of(count) + 2 * segments + 1
    return (LINE + near_bytes(count, near)) // i64.bytes + ranges


class _Work:
    """The shared memory of a call."""

    def __init__(self, k: Trace, work: Pointer, chunks: Value, segments: Value, near: Type) -> None:
        self.count = (chunks + (BLOCK - 1)) // BLOCK
        # How far each index is from the least of its chunk; the least and the largest of each chunk, and of each block.
        self.near = k.dereference((work.address + (LINE - 1)) & -LINE, near)
        self.ranges = self.near.at(chunks * CHUNK).viewed(i64)
        self.blocks = self.ranges.at(2 * chunks)
        # The least of each block and all behind it; the first and the last block that reach into each segment.
        self.settled = self.blocks.at(2 * self.count)
        self.spans = self.settled.at(self.count)
        # The elements of a ring that can follow the indices, or 0.
        self.ring = self.spans.at(2 * segments)


def survey(
    k: Trace, piece: Value, dy: Pointer, indices: Pointer, work: Pointer, dx: Pointer, status: Pointer, size: Value,
    dx_size: Value, chunks: Value, segments: Value, *_: Any, near: Type, stream: bool,
) -> None:  # fmt: skip
    """Ranges and distances of a block. What another thread makes of the indices later does no harm."""
    from ..jit.trace import Lanes

    lanes = k.target.vector_bytes // i64.bytes
    shared = _Work(k, work, chunks, segments, near)
    least, most = k.var(FAR, i64), k.var(-FAR, i64)
    first = piece * BLOCK
    for chunk in k.range(first, k.least(first + BLOCK, chunks)):
        start = chunk * CHUNK
        low, high = k.var(0, i64), k.var(0, i64)
        whole = start + CHUNK <= size
        with k.when(whole):
            found = [indices[whole_lanes(start + i, lanes)] for i in range(0, CHUNK, lanes)]
            low.set(k.smallest(_folded(found, k.least)))
            high.set(0 - k.smallest(0 - _folded(found, k.most)))
            distances = [k.to(near, each - low) for each in found]
            for i, each in enumerate(_joined(k, distances, k.target.lanes(near))):
                line = Lanes(start + i * each.lanes, each.lanes, aligned=True)
                shared.near.store(line, each, stream=stream)
        with k.when(k.no(whole)):
            low.set(indices[start])
            high.set(low)
            for at in k.range(start + 1, size):
                index = indices[at]
                low.set(k.least(low, index))
                high.set(k.most(high, index))
        shared.ranges[2 * chunk], shared.ranges[2 * chunk + 1] = low, high
        least.set(k.least(least, low))
        most.set(k.most(most, high))
    shared.blocks[2 * piece], shared.blocks[2 * piece + 1] = least, most


def _folded(values: list[Value], join: Callable[[Value, Value], Value]) -> Value:
    """All values joined, by halves."""
    while len(values) > 1:
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _joined(k: Trace, vectors: list[Value], lanes: int) -> list[Value]:
    """The same elements in vectors of so many lanes."""
    while vectors[0].lanes < lanes:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [k.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
    return vectors


def assign(
    k: Trace, piece: Value, dy: Pointer, indices: Pointer, work: Pointer, dx: Pointer, status: Pointer, size: Value,
    dx_size: Value, chunks: Value, segments: Value, segment: Value, ring: Value, *_: Any, near: Type, direct: bool,
) -> None:  # fmt: skip
    """Which blocks reach into which segment, and how large a ring can follow them, if one of `ring` can. The status
    tells of an index that is out of range. One piece."""
    shared = _Work(k, work, chunks, segments, near)
    for s in k.range(segments):
        shared.spans[2 * s] = shared.count
        shared.spans[2 * s + 1] = k.value(-1, i64)
    # The lowest place that is still open while a block is added, and how far above it the blocks so far reach.
    top, still_open, reach = k.var(0, i64), k.var(0, i64), k.var(0, i64)
    if not direct:
        least = k.var(FAR, i64)
        for i in k.range(shared.count):
            block = shared.count - 1 - i
            least.set(k.least(least, shared.blocks[2 * block]))
            shared.settled[block] = least
        still_open.set(least)
    for block in k.range(shared.count):
        low, high = shared.blocks[2 * block], shared.blocks[2 * block + 1]
        inside = (low >= 0) & (high < dx_size)
        with k.when(k.no(inside)):
            status[0] = k.value(1, i64)
        with k.when(inside):
            for s in k.range(low // segment, high // segment + 1):
                shared.spans[2 * s] = k.least(shared.spans[2 * s], block)
                shared.spans[2 * s + 1] = block
            if not direct:
                top.set(k.most(top, high))
                reach.set(k.most(reach, top - still_open))
                still_open.set(shared.settled[block])
    if not direct:
        fitting = k.var(LEAST_RING, i64)
        with k.forever() as leave:
            leave((fitting >= reach + 2 * LINE) | (fitting > ring))
            fitting.set(fitting * 2)
        shared.ring[0] = k.where(fitting <= ring, fitting, 0)


# ---- sums -----------------------------------------------------------------------------------------------------------


def _walk(
    k: Trace, shared: _Work, number: Value, chunks: Value, first: Value, end: Value,
    add: Callable[[Value, Value, Value], None], begin: Callable[[Value], None] | None = None,
) -> None:  # fmt: skip
    """`add(chunk, low, high)` for all chunks that reach into a segment, and `begin(block)` before those of a block."""

    def reaches(low: Value, high: Value) -> Value:
        return (low < end) & (high >= first)

    for block in k.range(shared.spans[2 * number], shared.spans[2 * number + 1] + 1):
        with k.when(reaches(shared.blocks[2 * block], shared.blocks[2 * block + 1])):
            if begin:
                begin(block)
            for chunk in k.range(block * BLOCK, k.least(block * BLOCK + BLOCK, chunks)):
                low, high = shared.ranges[2 * chunk], shared.ranges[2 * chunk + 1]
                with k.when(reaches(low, high)):
                    add(chunk, low, high)


def _add_chunk(k: Trace, dy: Pointer, distances: Pointer, spot_of: Callable[[Value], Pointer]) -> None:
    """Add a chunk of gradients, each to its spot.

    Between two chunks other memory is touched for a while, so that the hardware's own prefetching is not enough.
    """
    line = LINE // dy.type.bytes
    for begin in k.range(0, CHUNK, line):
        k.prefetch(distances.at(begin + AHEAD))
        k.prefetch(dy.at(begin + AHEAD))
        for i in range(line):
            spot = spot_of(k.unsigned(i64, distances[begin + i]))
            spot[0] = spot[0] + k.to(spot.type, dy[begin + i])


class _Sums:
    """The sums of the places `first` to `end` - 1, at `spot_of(place)`; what belongs elsewhere is put nowhere."""

    def __init__(
        self, k: Trace, shared: _Work, dy: Pointer, indices: Pointer, size: Value, first: Value, end: Value,
        spot_of: Callable[[Value], Pointer], runs: Callable[[Value, Value], Value] | None = None,
    ) -> None:  # fmt: skip
        """`runs(low, high)`: whether the spots from one place to another lie one after the other, if not all do."""
        self.k, self.shared, self.dy, self.indices, self.size = k, shared, dy, indices, size
        self.first, self.end, self.spot_of, self.runs = first, end, spot_of, runs
        self.nowhere = k.stack(spot_of(first).type, 1)

    def add(self, chunk: Value, low: Value, high: Value) -> None:
        k, start = self.k, chunk * CHUNK
        dy, distances = self.dy.at(start), self.shared.near.at(start)
        known = (start + CHUNK <= self.size) & (high - low < (1 << distances.type.bits))
        inside = (low >= self.first) & (high < self.end)
        if self.runs:
            inside &= self.runs(low, high)

        def checked(distance: Value) -> Pointer:
            place = low + distance
            spot = k.where(self._is_ours(place), self.spot_of(place).address, self.nowhere.address)
            return k.dereference(spot, self.nowhere.type)

        with k.when(known & inside):
            _add_chunk(k, dy, distances, self.spot_of(low).at)
        with k.when(known & k.no(inside)):
            _add_chunk(k, dy, distances, checked)
        with k.when(k.no(known)):
            for at in k.range(k.least(CHUNK, self.size - start)):
                place = self.indices[start + at]
                with k.when(self._is_ours(place)):
                    spot = self.spot_of(place)
                    spot[0] = spot[0] + k.to(spot.type, dy[at])

    def _is_ours(self, place: Value) -> Value:
        return self.k.below(place - self.first, self.end - self.first)


def scatter(
    k: Trace, piece: Value, dy: Pointer, indices: Pointer, work: Pointer, dx: Pointer, status: Pointer, size: Value,
    dx_size: Value, chunks: Value, segments: Value, segment: Value, ring: Value, room: Value, flags: Pointer,
    slots: Value, memory: Pointer, *,
    near: Type, direct: bool, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """A segment of dX at a time: with `direct` added up where it lies, otherwise in scratch memory, and only where
    `slide` has not done it."""
    shared = _Work(k, work, chunks, segments, near)
    first = piece * segment
    count = k.least(segment, dx_size - first)

    def fill(totals: Pointer) -> None:
        clear(k, totals, count)
        every = _Sums(
            k, shared, dy, indices, size, first, first + count, lambda place: totals.at(place - first)
        )  # fmt: skip
        _walk(k, shared, piece, chunks, first, first + count, every.add)

    if direct:
        fill(dx.at(first))
        return
    with k.when(shared.ring[0] == 0):
        with k.borrowed(flags, slots, memory, room) as totals:
            fill(totals)
            deliver(k, totals, dx.at(first), count, stream)


# ---- sums in a ring -------------------------------------------------------------------------------------------------


def slide(
    k: Trace, piece: Value, dy: Pointer, indices: Pointer, work: Pointer, dx: Pointer, status: Pointer, size: Value,
    dx_size: Value, chunks: Value, segments: Value, segment: Value, ring: Value, room: Value, flags: Pointer,
    slots: Value, memory: Pointer, *,
    near: Type, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """A segment of dX at a time, where the indices are orderly."""
    shared = _Work(k, work, chunks, segments, near)
    first = piece * segment
    end = k.least(first + segment, dx_size)
    with k.when(shared.ring[0] != 0):
        with k.borrowed(flags, slots, memory, room) as totals:
            moving = _Ring(k, totals, shared.ring[0], dx, first, end, stream)
            every = _Sums(k, shared, dy, indices, size, first, end, moving.spot_of, moving.runs)

            def add(chunk: Value, low: Value, high: Value) -> None:
                every.add(chunk, low, high)
                moving.follow()

            def begin(block: Value) -> None:
                moving.aim(shared.settled[k.most(block - 1, 0)])
                moving.catch_up()
                moving.aim(shared.settled[block])

            _walk(k, shared, piece, chunks, first, end, add, begin)
            moving.finish()


class _Ring:
    """Sums of a stretch of dX that moves on. What it has passed goes out, and zeros are left there.

    An element of dX that begins a line of memory has a place in the ring that is a multiple of the lanes, so whole
    vectors of the one are whole vectors of the other.
    """

    def __init__(
        self, k: Trace, totals: Pointer, size: Value, dx: Pointer, first: Value, end: Value, stream: bool
    ) -> None:
        self._k, self._totals, self._size, self._dx, self._stream = k, totals, size, dx, stream
        self._lanes, self._first, self._end = k.target.lanes(totals.type), first, end
        self._shift = (dx.address // dx.type.bytes) & (self._lanes - 1)
        clear(k, totals, size)
        # All before `passed` is out, which begins a line; all before `aim` may go.
        self._passed = k.var(first - ((first + self._shift) & (self._lanes - 1)))
        self._aim, self._pace = k.var(first), k.var(0, i64)

    def spot_of(self, place: Value) -> Pointer:
        return self._totals.at((place + self._shift) & (self._size - 1))

    def runs(self, low: Value, high: Value) -> Value:
        """Whether the spots from one place to another lie one after the other."""
        return ((low + self._shift) & (self._size - 1)) + (high - low) < self._size

    def aim(self, settled: Value) -> None:
        """All before this place may go, with the chunks of a block."""
        k = self._k
        self._aim.set(k.least(settled, self._end))
        self._pace.set((k.most(self._aim - self._passed, 0) // BLOCK + (self._lanes - 1)) & -self._lanes)

    def follow(self) -> None:
        """A part of it goes: whole vectors."""
        self._go(self._pace.read())

    def catch_up(self) -> None:
        """All of it goes, but for what is less than a vector."""
        self._go(self._k.value(FAR, i64))

    def finish(self) -> None:
        """All goes."""
        k = self._k
        self._aim.set(self._end)
        self.catch_up()
        with k.when(self._passed < self._end):
            self._go_in_part()

    def _go(self, most: Value) -> None:
        k, lanes = self._k, self._lanes
        with k.when((self._passed < self._first) & (self._passed + lanes <= self._aim)):
            self._go_in_part()
        count = k.least(k.most(self._aim - self._passed, 0) & -lanes, most)
        # LLVM would call the C library for zeros that it sees.
        zeros = k.opaque(k.value(0.0, self._totals.type, lanes))
        passed = self._passed.read()
        for start in k.range(0, count, lanes):
            spot = self.spot_of(passed + start)
            sums = self._rounded(spot[whole_lanes(0, lanes)])
            at = replace(whole_lanes(passed + start, lanes), aligned=True)
            self._dx.store(at, sums, stream=self._stream)
            spot[whole_lanes(0, lanes)] = zeros
        self._passed += count

    def _go_in_part(self) -> None:
        """A vector at an end of the segment: what of it is in there."""
        k, lanes = self._k, self._lanes
        passed = self._passed.read()
        places = k.iota(lanes) + k.spread(passed, lanes)
        at = replace(whole_lanes(0, lanes), mask=(places >= self._first) & (places < self._end))
        spot = self.spot_of(passed)
        self._dx.at(passed)[at] = self._rounded(spot[at])
        spot[at] = k.value(0.0, spot.type, lanes)
        self._passed += lanes

    def _rounded(self, sums: Value) -> Value:
        return self._k.to(self._dx.type.compute, sums)
