"""Gradients of softmax and log-softmax: a sum along the axis, then a formula with that sum, for each slice.

Along the last axis (`along_rows`) the vector is a stretch of one row; a piece is some rows. Along another (`across`)
the vector is `lanes` neighbouring slices and the tile up to `LARGEST_TILE` such vectors, whose sums live in registers
while the kernel walks down the axis in strides: nothing is transposed or copied. Pieces share nothing. A row is summed
in blocks of at most `BLOCK` terms a lane, the blocks are joined without loss, and lanes by halves: the order depends on
the length and on the target, never on the threads, and the error is that of a sum of two dozen terms for any length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.stage import Stage
from ..jit.types import Type, i64

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value

CHUNK = 32768  # elements of a piece, where rows are short
STRANDS, BLOCK = 4, 16  # along a row, a block is BLOCK turns of STRANDS vectors
LARGEST_TILE = 8
SHORT = 512  # elements of a row that is not worth being streamed for itself
AHEAD = 8  # rows that `across` asks for before it needs them


def softmax_term(dy: Any, y: Any) -> Any:
    return dy * y


def softmax_grad(dy: Any, y: Any, total: Any) -> Any:
    return y * (dy - total)


def log_softmax_term(dy: Any, y: Any) -> Any:
    return dy


def log_softmax_grad(dy: Any, y: Any, total: Any) -> Any:
    from ..jit.functions import exp

    return dy - exp(y) * total


def rows_of_a_piece(length: Any) -> Any:
    """How many rows of that length a piece has."""
    return CHUNK // length + 1


def row_pieces(rows: Any, length: Any) -> Any:
    """How many pieces the rows are cut into."""
    return (rows + (rows_of_a_piece(length) - 1)) // rows_of_a_piece(length)


def tile_of(inner: int, lanes: int) -> int:
    """How many vectors of slices a tile has: so many that `inner` slices make tiles of one size, if that can be."""
    vectors = -(-inner // lanes)
    return -(-vectors // -(-vectors // LARGEST_TILE))


def tiles(inner: Any, width: int) -> Any:
    """How many tiles of `width` slices lie side by side."""
    return (inner + (width - 1)) // width


def along_rows(
    k: Trace, piece: Value, rows: Value, length: Value, dy: Pointer, y: Pointer, dx: Pointer, *,
    term: Callable[..., Any], grad: Callable[..., Any], type: Type, stream: bool,
) -> None:  # fmt: skip
    lanes, height = k.target.lanes(type), rows_of_a_piece(length)
    first = piece * height
    last = k.least(first + height, rows)

    def make(row: Value, dx_row: Pointer, stream: bool) -> None:
        dy_row, y_row = (p.at(row * length) for p in (dy, y))

        def term_at(at: Lanes) -> Value:
            return term(dy_row[at], y_row[at])  # type: ignore[no-any-return]

        total = _sum_of_row(k, length, term_at, lanes, type)
        for at in k.vectors(length, lanes=lanes, unroll=STRANDS, align=dx_row if stream else None):
            dx_row.store(at, grad(dy_row[at], y_row[at], total), stream=stream)

    if not stream:
        for row in k.range(first, last):
            make(row, dx.at(row * length), False)
        return
    with k.when(length <= SHORT):
        stage = Stage(k, dx.at(first * length), SHORT, stream=True)
        for row in k.range(first, last):
            make(row, stage.room(), False)
            stage.send(length)
        stage.finish()
    with k.when(length > SHORT):
        for row in k.range(first, last):
            make(row, dx.at(row * length), True)


def _sum_of_row(k: Trace, length: Value, term: Callable[[Lanes], Value], lanes: int, type: Type) -> Value:
    sums = [_Sum(k, lanes, type) for _ in range(STRANDS)]
    size = BLOCK * STRANDS * lanes
    for start in k.range(0, length, size):
        parts = [k.var(0.0, type.compute, lanes) for _ in range(STRANDS)]
        strand = itertools.cycle(parts)
        for at in k.vectors(start, k.least(start + size, length), lanes=lanes, unroll=STRANDS):
            partial = next(strand)
            partial += term(at)
        for joined, part in zip(sums, parts, strict=True):
            joined.add(part.read())
    totals = [each.total() for each in sums]
    return k.sum((totals[0] + totals[1]) + (totals[2] + totals[3]))


class _Sum:
    """A sum of block sums that keeps what each addition rounds off."""

    def __init__(self, k: Trace, lanes: int, type: Type) -> None:
        self._k = k
        self._sum, self._rest = (k.var(0.0, type.compute, lanes) for _ in range(2))

    def add(self, x: Value) -> None:
        old = self._sum.read()
        new = old + x
        added = new - old
        self._rest += (old - (new - added)) + (x - added)
        self._sum.set(new)

    def total(self) -> Value:
        """The sum; the rest counts only where infinities have not spoilt it."""
        total, rest = self._sum.read(), self._rest.read()
        return total + self._k.where(rest == rest, rest, 0.0)


def across(
    k: Trace, piece: Value, length: Value, inner: Value, lead: Value, dy: Pointer, y: Pointer, dx: Pointer, *,
    term: Callable[..., Any], grad: Callable[..., Any], type: Type, tile: int, stream: bool,
) -> None:  # fmt: skip
    """The first tile begins `lead` slices before the first, so that its vectors are aligned in dX where it is streamed.

    A tile takes a few cache lines of a row, and then of the next: too few for the hardware to see where this leads.
    """
    from ..jit.trace import Lanes

    lanes = k.target.lanes(type)
    width = tile * lanes
    side = tiles(inner + lead, width)
    column = piece % side * width - lead
    block = piece // side * (length * inner)
    line = max(1, 64 // (lanes * type.bytes))

    def ask(place: Value, spots: list[Lanes]) -> None:
        for at in spots[::line]:
            for p in (dy, y):
                k.prefetch(p.at(place + at.start))

    def walk(spots: list[Lanes], store: Callable[[Value, Lanes, Value], None]) -> None:
        sums = [_Sum(k, lanes, type) for _ in spots]
        for start in k.range(0, length, BLOCK):
            parts = [k.var(0.0, type.compute, lanes) for _ in spots]
            for j in k.range(start, k.least(start + BLOCK, length)):
                place = block + j * inner
                ask(place + AHEAD * inner, spots)
                for part, at in zip(parts, spots, strict=True):
                    part += term(dy.at(place)[at], y.at(place)[at])
            for joined, part in zip(sums, parts, strict=True):
                joined.add(part.read())
        totals = [each.total() for each in sums]
        for j in k.range(length):
            place = block + j * inner
            for total, at in zip(totals, spots, strict=True):
                store(place, at, grad(dy.at(place)[at], y.at(place)[at], total))

    whole = (column >= 0) & (column + width <= inner)
    with k.when(whole):
        spots = [Lanes(column + j * lanes, lanes, aligned=stream) for j in range(tile)]
        walk(spots, lambda place, at, value: dx.at(place).store(at, value, stream=stream))
    with k.when(k.no(whole)):
        numbers = k.iota(lanes) + column
        inside = [((numbers + j * lanes) >= 0) & ((numbers + j * lanes) < inner) for j in range(tile)]

        def store_part(place: Value, at: Lanes, value: Value) -> None:
            start = k.value(at.start, i64)
            full = (start >= 0) & (start + lanes <= inner)
            with k.when(full):
                dx.at(place).store(Lanes(start, lanes, aligned=stream), value, stream=stream)
            with k.when(k.no(full)):
                dx.at(place).store(at, value)

        walk([Lanes(column + j * lanes, lanes, mask) for j, mask in enumerate(inside)], store_part)


# ---- softmax itself: the largest number of a slice, a sum, a formula ------------------------------------------------


def exp_below(x: Any, top: Any) -> Any:
    from ..jit.functions import exact_difference, exp

    return exp(*exact_difference(x, top))


def softmax(x: Any, top: Any, total: Any) -> Any:
    return exp_below(x, top) / total


def log_softmax(x: Any, top: Any, total: Any) -> Any:
    from ..jit.functions import log

    return (x - top) - log(total)


def forward_along_rows(
    k: Trace, piece: Value, rows: Value, length: Value, x: Pointer, y: Pointer, *,
    formula: Callable[..., Any], type: Type, stream: bool,
) -> None:  # fmt: skip
    lanes, height = k.target.lanes(type), rows_of_a_piece(length)
    first = piece * height

    def present(at: Lanes, value: Value, otherwise: float) -> Value:
        return value if at.mask is None else k.where(at.mask, value, otherwise)

    for row in k.range(first, k.least(first + height, rows)):
        x_row, y_row = x.at(row * length), y.at(row * length)
        tops = k.var(-math.inf, type.compute, lanes)
        for at in k.vectors(length, lanes=lanes):
            tops.set(k.most(present(at, x_row[at], -math.inf), tops))
        top = -k.smallest(-tops)

        def term(at: Lanes, x: Pointer = x_row, top: Value = top) -> Value:
            return present(at, exp_below(x[at], k.spread(top, at.count)), 0.0)

        total = _sum_of_row(k, length, term, lanes, type)
        for at in k.vectors(length, lanes=lanes, unroll=STRANDS, align=y_row if stream else None):
            y_row.store(at, formula(x_row[at], *(k.spread(v, at.count) for v in (top, total))), stream=stream)


def forward_across(
    k: Trace, piece: Value, length: Value, inner: Value, x: Pointer, y: Pointer, *,
    formula: Callable[..., Any], type: Type,
) -> None:  # fmt: skip
    lanes = k.target.lanes(type)
    side = tiles(inner, lanes)
    column, block = piece % side * lanes, piece // side * (length * inner)
    for at in k.vectors(column, k.least(column + lanes, inner), lanes=lanes):
        top = k.var(-math.inf, type.compute, lanes)
        for j in k.range(length):
            top.set(k.most(x.at(block + j * inner)[at], top))
        total = _Sum(k, lanes, type)
        for j in k.range(length):
            total.add(exp_below(x.at(block + j * inner)[at], top))
        whole = total.total()
        for j in k.range(length):
            place = block + j * inner
            y.at(place).store(at, formula(x.at(place)[at], top, whole))
