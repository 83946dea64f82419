"""The gradient of an average over small planes: as many planes at a time as a vector has lanes, turned on their side.

Rows of some elements fill no vector, and finding their windows costs more than adding them. So dY of a group of planes
is turned first (squares of a vector's lanes, by shuffles): then one lane is one plane, every geometry is as good as
another, and a row is added up without a mask or an index: which windows see a column is known while the kernel is
compiled. What comes out is turned back. A piece is some groups of planes, or a band of rows of one group.
Sums are taken in the order of `mean_kernels`: the rows over a row first, then the columns, both ascending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..geometry import Geometry
from ..jit.stage import Leaving
from ..jit.types import Type, i64
from .mean_kernels import LINE, count_of, whole_lanes

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value, Var

MOST_COLUMNS = 64  # of a row, which is traced column by column; half of it where there is less than
MUCH = 1 << 20  # elements
WAY = 4096  # bytes after which the first cache begins anew
TOTALS = 16  # columns that are summed at a time, in registers


def scratch_size(span: int, band: int, lanes: int) -> int:
    """Elements of scratch memory for so many positions of dY and of dX: both turned, and dX turned back."""
    return (span + lanes + 2 * (band + lanes)) * lanes


def mean_grad_turned(
    k: Trace, piece: Value, dy: Pointer, dx: Pointer, status: Pointer, weights: Pointer, classes: Pointer,
    over: Pointer, spans: Pointer, items: Value, flags: Pointer, slots: Value, memory: Pointer, *,
    geometry: Geometry, band: int, batch: int, reach: int, span: int, uniform: float, forms: Forms, type: Type,
    sums: Type, stream: bool,
) -> None:  # fmt: skip
    """`over` has for each row of dX, behind one word, how many rows of dY see it, at most `reach`, and which; `spans`
    for each band of rows the positions of dY that it needs, at most `span`."""
    inputs, outputs = geometry.input_size, geometry.output_size
    lanes, width = k.target.lanes(sums), inputs[2]
    rows, size = inputs[0] * inputs[1], count_of(outputs)
    bands, groups = -(-rows // band), (items + (lanes - 1)) // lanes
    # Lines of planes that lie so far apart are in each other's way in the first cache: they are written one by one.
    staged = stream or rows * width * type.bytes % WAY == 0
    first = piece % bands * band
    end = k.least(first + band, rows) if rows % band else first + band
    with k.borrowed(flags, slots, memory, scratch_size(span, band * width, lanes)) as scratch:
        goal = scratch.at((span + lanes) * lanes)
        flat = goal.at((band * width + lanes) * lanes).viewed(type)
        low, high = spans[piece % bands * 2], spans[piece % bands * 2 + 1]
        leaving = Leaving(k, flat, stream=stream)
        begin = piece // bands * batch
        for group in k.range(begin, k.least(begin + batch, groups)):
            item = group * lanes
            count = k.least(items - item, lanes)
            _turn(k, dy.at(item * size + low), scratch, size, high - low, count, lanes, forms)
            ahead = dy.at((item + lanes) * size)
            for index in k.range(first, end):
                if bands == 1:  # the next group's planes are on their way while this one's are added up
                    for line in range(0, -(-size * lanes // rows), LINE // type.bytes):
                        k.prefetch(ahead.at(index * -(-size * lanes // rows) + line))
                row = _row_sums(k, scratch, low, index, over, reach, weights, classes, outputs[2], uniform, lanes)
                if staged and bands == 1:
                    leaving.go(-(-lanes * width * type.bytes // k.target.vector_bytes))
                to = goal.at((index - first) * (width * lanes))
                nothing = k.value(0.0, sums, lanes)
                for column, windows in enumerate(geometry.covering(2).tolist()):
                    values = [row[window].read() for window in windows if window >= 0]
                    to[whole_lanes(column * lanes, lanes)] = sum(values[1:], values[0]) if values else nothing
            each, place = (end - first) * width, dx.at((item * rows + first) * width)
            if not staged:
                _turn_back(k, goal, place, rows * width, each, count, lanes, forms)
                continue
            leaving.go()
            _turn_back(k, goal, flat, each, each, count, lanes, forms)
            if bands == 1:
                leaving.take(0, place, count * each)
            else:
                for i in k.range(count):
                    leaving.take(i * each, place.at(i * (rows * width)), each)
                    leaving.go()
        if staged:
            leaving.go()


def _row_sums(
    k: Trace, turned: Pointer, low: Value, index: Value, over: Pointer, reach: int, weights: Pointer, classes: Pointer,
    columns: int, uniform: float, lanes: int,
) -> list[Var]:  # fmt: skip
    """The sums over the leading axes for a row of dX, scaled: a vector for each column of dY."""
    totals = [k.var(0.0, turned.type, lanes) for _ in range(columns)]
    lines = over.at(index * (reach + 2))
    for start in range(0, columns, TOTALS):
        for m in k.range(lines[1]):
            line = lines[m + 2]
            source, scales = turned.at((line * columns - low) * lanes), weights.at(classes[line] * columns)
            for column in range(start, min(start + TOTALS, columns)):
                value, total = source[whole_lanes(column * lanes, lanes)], totals[column]
                total.set(total + value if uniform else k.muladd(value, scales[column], total))
    if uniform:
        for total in totals:
            total.set(total * uniform)
    return totals


def _turn(
    k: Trace, source: Pointer, to: Pointer, pitch: int, size: Value, count: Value, lanes: int, forms: Forms
) -> None:
    """`size` positions of `count` planes, `pitch` apart, as one vector for each position."""
    for full, at in forms.squares(k, size, count, lanes):
        # A plane that is not there is the last one once more.
        starts = [i * pitch if full else k.least(i, count - 1) * pitch for i in range(lanes)]
        block = [k.to(to.type, source.at(start)[at]) for start in starts]
        for i, column in enumerate(k.turned(block)):
            to[whole_lanes((at.start + i) * lanes, lanes)] = column


def _turn_back(
    k: Trace, turned: Pointer, to: Pointer, pitch: Value | int, size: Value | int, count: Value, lanes: int,
    forms: Forms,
) -> None:  # fmt: skip
    """The inverse of `_turn`."""
    for full, at in forms.squares(k, size, count, lanes):
        block = [turned[whole_lanes((at.start + i) * lanes, lanes)] for i in range(lanes)]
        for i, plane in enumerate(k.turned(block)):
            value = k.to(to.type.compute, plane)
            if full:
                to.at(pitch * i)[at] = value
            else:
                with k.when(count > i):
                    to.at(pitch * i)[at] = value


@dataclass(frozen=True)
class Forms:
    """In which forms squares are traced. Shuffles take long to compile: where there is little to do, there is one form
    for all, under a mask."""

    ragged: bool  # whether there are groups that are not full
    one: bool

    def squares(self, k: Trace, size: Value | int, count: Value, lanes: int) -> Iterator[tuple[bool, Lanes]]:
        """For every `lanes` of `size` positions of a group of `count` planes: (whether it is full, the positions)."""
        if self.one:
            for start in k.range(0, size, lanes):
                yield False, k.some(start, k.value(size, i64) - start, lanes)
            return
        for full in (True, False) if self.ragged else (True,):
            with k.when(count == lanes if full else count < lanes):
                for at in k.vectors(0, size, lanes=lanes):
                    yield full, at
