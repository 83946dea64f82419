"""Gradients of softmax and log-softmax: a sum along the axis, then a formula with that sum, for each slice.

Along the last axis (`along_rows`) the vector is a stretch of one row; a piece is some rows. Along another (`across`) the
vector is `lanes` neighbouring slices, the tile `TILE` such vectors whose sums live in registers while the kernel walks
down the axis in strides: nothing is transposed or copied. Pieces share nothing. A row is summed in blocks, and each
block in four strands of `lanes` partial sums, which are joined by halves: the order depends on the length of the row
and on the target, never on the threads, and the error stays that of a sum of some dozen terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.types import Type

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

CHUNK = 32768  # elements of a piece, where rows are short
STRANDS, BLOCK = 4, 16  # a block is BLOCK turns of STRANDS vectors
TILE = 8


def softmax_term(dy: Any, y: Any) -> Any:
    return dy * y


def softmax_grad(dy: Any, y: Any, total: Any) -> Any:
    return y * (dy - total)


def log_softmax_term(dy: Any, y: Any) -> Any:
    return dy


def log_softmax_grad(dy: Any, y: Any, total: Any) -> Any:
    from ..jit.functions import exp

    return dy - exp(y) * total


Formulas = tuple[Callable[..., Any], Callable[..., Any]]


def rows_of_a_piece(length: Any) -> Any:
    """How many rows of that length a piece has."""
    return CHUNK // length + 1


def row_pieces(rows: Any, length: Any) -> Any:
    """How many pieces the rows are cut into."""
    return (rows + (rows_of_a_piece(length) - 1)) // rows_of_a_piece(length)


def tiles(lanes: int, inner: int) -> int:
    """How many tiles lie side by side."""
    return -(-inner // (TILE * lanes))


def along_rows(
    k: Trace, piece: Value, rows: Value, length: Value, dy: Pointer, y: Pointer, dx: Pointer, *,
    term: Callable[..., Any], grad: Callable[..., Any], type: Type,
) -> None:  # fmt: skip
    lanes, height = k.target.lanes(type), rows_of_a_piece(length)
    first = piece * height
    for row in k.range(first, k.least(first + height, rows)):
        dy_row, y_row, dx_row = (p.at(row * length) for p in (dy, y, dx))
        total = _sum_of_row(k, length, lambda at: term(dy_row[at], y_row[at]), lanes, type)
        for at in k.vectors(length, lanes=lanes, unroll=STRANDS):
            dx_row[at] = grad(dy_row[at], y_row[at], total)


def _sum_of_row(k: Trace, length: Value, term: Callable[..., Any], lanes: int, type: Type) -> Value:
    sums = [k.var(0.0, type.compute, lanes) for _ in range(STRANDS)]
    size = BLOCK * STRANDS * lanes
    for start in k.range(0, length, size):
        parts = [k.var(0.0, type.compute, lanes) for _ in range(STRANDS)]
        strand = itertools.cycle(parts)
        for at in k.vectors(start, k.least(start + size, length), lanes=lanes, unroll=STRANDS):
            next(strand).__iadd__(term(at))
        for joined, part in zip(sums, parts, strict=True):
            joined += part
    return k.sum((sums[0] + sums[1]) + (sums[2] + sums[3]))


def across(
    k: Trace, piece: Value, outer: Value, length: Value, inner: Value, dy: Pointer, y: Pointer, dx: Pointer, *,
    term: Callable[..., Any], grad: Callable[..., Any], type: Type,
) -> None:  # fmt: skip
    lanes = k.target.lanes(type)
    width = TILE * lanes
    side = (inner + (width - 1)) // width
    block, column = piece // side * (length * inner), piece % side * width
    full = column + width <= inner
    with k.when(full):
        _columns(k, length, inner, [(p.at(block + column)) for p in (dy, y, dx)], TILE, term, grad, type)
    with k.when((inner - column < width) & (column < inner)):
        for at in k.vectors(column, inner, lanes=lanes):
            places = [p.at(block) for p in (dy, y, dx)]
            _columns(k, length, inner, places, 1, term, grad, type, at)


def _columns(
    k: Trace, length: Value, inner: Value, places: list[Pointer], vectors: int,
    term: Callable[..., Any], grad: Callable[..., Any], type: Type, only: Any = None,
) -> None:  # fmt: skip
    """Sum `vectors` neighbouring vectors of slices down the axis, then go down again with the sums."""
    from ..jit.trace import Lanes

    lanes = k.target.lanes(type)
    spots = [only] if only is not None else [Lanes(j * lanes, lanes) for j in range(vectors)]
    sums = [k.var(0.0, type.compute, lanes) for _ in spots]
    size = BLOCK * STRANDS
    for start in k.range(0, length, size):
        parts = [k.var(0.0, type.compute, lanes) for _ in spots]
        for j in k.range(start, k.least(start + size, length)):
            dy_row, y_row = (p.at(j * inner) for p in places[:2])
            for part, at in zip(parts, spots, strict=True):
                part += term(dy_row[at], y_row[at])
        for joined, part in zip(sums, parts, strict=True):
            joined += part
    for j in k.range(length):
        dy_row, y_row, dx_row = (p.at(j * inner) for p in places)
        for total, at in zip(sums, spots, strict=True):
            dx_row[at] = grad(dy_row[at], y_row[at], total)
