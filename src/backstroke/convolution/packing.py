"""Weights in the order in which the nests read them, and gradients of weights back in the caller's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jit.types import Type, i32, i64
from .tiles import joined, least, some, whole, within

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value


@dataclass(frozen=True)
class Weights:
    """Where the weight of a group, an output and an input channel of the sweep, and a tap stands, in elements."""

    group: int
    output: int
    input: int
    tap: int


def pack(
    k: Trace, piece: Value, w: Pointer, packed: Pointer, *,
    weights: Weights, inputs: int, outputs: int, block: int, taps: tuple[tuple[int, int, int], ...], kernel: int,
    depth: int, unit: int,
) -> None:  # fmt: skip
    """`packed[group][slice of inputs][block of outputs]`: for each (tap of the kernel, origin, step over inputs) of
    `taps`, a block of `block` outputs for every input stands at `origin + input * step`. Outputs that are not there are
    zero.

    A piece is one block of one slice of one group; a slice is `depth` inputs, the last one what is left. With a `unit`
    of 2 neighbouring inputs are pairs, and `step` counts those.
    """
    lanes = k.target.lanes(packed.type)
    blocks, slices = -(-outputs // block), -(-inputs // depth)
    first, rest = piece % blocks * block, piece // blocks
    start, group = rest % slices * depth, rest // slices
    count = least(k, depth, inputs - start)
    each = len(taps) * block
    source = w.at(group * weights.group + first * weights.output + start * weights.input)
    goal = packed.at((group * inputs + start) // unit * (blocks * each) + piece % blocks * each * count // unit)
    goal = goal.viewed(i32) if unit == 2 else goal
    left = outputs - first
    if weights.output == 1:
        for channel in k.range(k.value(count, i64) // unit):
            for tap, origin, step in taps:
                for j in range(0, block, lanes):
                    at = some(k, j, left, lanes) if outputs % block else whole(j, lanes)
                    found = [
                        source.at((channel * unit + i) * weights.input + tap * weights.tap)[at] for i in range(unit)
                    ]
                    goal[whole(channel * step + (origin + j), lanes)] = joined(k, found)
        return

    def block_of(start: Value, high: Value) -> list[Value]:
        """A turned block: rows are outputs, columns neighbours in memory."""
        rows = []
        for i in range(lanes):
            row = source.at(k.least(j + i, left - 1) * weights.output)
            rows.append(row[within(k, start, 0, k.where(left > j + i, high, 0), lanes)])
        return k.turned(rows)

    for j in range(0, block, lanes):
        if weights.input == 1:
            for tap, origin, step in taps:
                for at in k.vectors(count, lanes=lanes):
                    first_tap = tap * weights.tap
                    columns = block_of(k.value(at.start + first_tap, i64), k.value(first_tap + count, i64))
                    for i in range(0, lanes, unit):
                        with k.when(at.start + i < k.value(count, i64)):
                            spot = whole((at.start + i) // unit * step + (origin + j), lanes)
                            goal[spot] = joined(k, columns[i : i + unit])
        else:
            assert weights.tap == 1
            for channel in k.range(k.value(count, i64) // unit):
                for low in range(0, kernel, lanes):
                    bases = [(channel * unit + i) * weights.input for i in range(unit)]
                    found_columns = [block_of(base + low, base + kernel) for base in bases]
                    for tap, origin, step in taps:
                        if low <= tap < low + lanes:
                            pair = [columns[tap - low] for columns in found_columns]
                            goal[whole(channel * step + (origin + j), lanes)] = joined(k, pair)


def unpack(
    k: Trace, piece: Value, partial: Pointer, dw: Pointer, db: Pointer, *,
    weights: Weights, inputs: int, outputs: int, block: int, kernel: int, chunks: int, chunk: int, biased: bool,
    type: Type,
) -> None:  # fmt: skip
    """Sum the chunks' gradients in order, and put them where the caller wants them.

    A piece is one block of outputs of one group: `partial[chunk][piece][input][tap][block]`, the bias' sums behind.
    """
    sums = partial.type
    lanes = k.target.lanes(sums)
    blocks = -(-outputs // block)
    group, first = piece // blocks, piece % blocks * block
    goal = dw.at(group * weights.group + first * weights.output)
    left = outputs - first
    rows = inputs * kernel
    source = partial.at(piece * ((rows + 1) * block))

    def total(place: Value | int) -> Value:
        result = source[whole(place, lanes)]
        for i in range(1, chunks):
            result = result + source.at(i * chunk)[whole(place, lanes)]
        return result

    def here(j: int) -> Lanes:
        return some(k, j, left, lanes) if outputs % block else whole(j, lanes)

    if biased:
        for j in range(0, block, lanes):
            db.at(group * outputs + first)[here(j)] = k.to(type.compute, total(rows * block + j))
    if not inputs:
        return
    if weights.output == 1:
        for channel in k.range(inputs):
            for tap in k.range(kernel):
                for j in range(0, block, lanes):
                    place = (channel * kernel + tap) * block + j
                    spot = goal.at(channel * weights.input + tap * weights.tap)
                    spot[here(j)] = k.to(type.compute, total(place))
        return
    # Input and tap run together there: a row of the caller's order is `rows` neighbours.
    assert (weights.tap, weights.input) == (1, kernel)
    for j in range(0, block, lanes):
        for at in k.vectors(rows, lanes=lanes):
            block_rows = []
            for i in range(lanes):
                row = k.least(at.start + i, k.value(rows - 1, i64))
                block_rows.append(k.to(type.compute, total(row * block + j)))
            for i, line in enumerate(k.turned(block_rows)):
                with k.when(left > j + i):
                    goal.at((j + i) * weights.output)[at] = line
