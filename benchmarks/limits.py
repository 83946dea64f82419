"""The machine's own limits, measured in the same rounds: a kernel that only moves memory, on the problem's own arrays,
and one that only multiplies and adds, in registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from backstroke import arrays
from backstroke.activation import kernels
from backstroke.jit import compile as compiler
from backstroke.jit.functions import where
from backstroke.jit.target import current, last_level_cache
from backstroke.jit.threads import pool
from backstroke.jit.trace import Lanes
from backstroke.jit.types import f32, pointer, scalar
from backstroke.registry import moved_bytes, results

from .timing import Call

if TYPE_CHECKING:
    from backstroke.jit.trace import Pointer, Trace, Value

    from .problems import Problem


LARGE = 32 << 20  # bytes of an output that goes past the caches


def larger(a: Any, b: Any) -> Any:
    """The least that can be done with two inputs."""
    return where(a > b, a, b)


@dataclass(frozen=True)
class Limit:
    """What to time, and what its time is to be multiplied by to be the least that the problem could take."""

    call: Call
    scale: float = 1.0


def limits(problem: Problem, inputs: list[Any], out: Any) -> list[Limit]:
    """The kernels whose best time is the limit of a problem."""
    if problem.entry.family == "convolution":
        call, operations = multiply_add()
        return [Limit(call, problem.operations / operations)]
    return [Limit(call) for call in read_read_write(inputs, out)]


def register_tiles(
    k: Trace, piece: Value, a: Pointer, b: Pointer, sums: Pointer, *, rows: int, vectors: int, depth: int, turns: int
) -> None:
    """Products of A [depth, rows] and B [depth, vectors], both in the L1 cache, added to a tile in registers."""
    lanes = k.target.lanes(f32)
    tile = sums.at(piece * (rows * vectors * lanes))
    for _ in k.range(turns):
        places = [(i, j, tile.at((i * vectors + j) * lanes)) for i in range(rows) for j in range(vectors)]
        totals = [k.var(place[Lanes(0, lanes)]) for *_, place in places]
        for step in k.range(depth):
            strip = [b.at((step * vectors + j) * lanes)[Lanes(0, lanes)] for j in range(vectors)]
            column = [a[step * rows + i] for i in range(rows)]
            for total, (i, j, _) in zip(totals, places, strict=True):
                total.set(k.muladd(column[i], strip[j], total.read()))
        for total, (*_, place) in zip(totals, places, strict=True):
            place.store(Lanes(0, lanes), total.read())


@functools.cache
def multiply_add() -> tuple[Call, int]:
    """A call that does nothing but multiply and add on all threads, and its number of operations."""
    goal = current()
    rows, vectors = (8, 3) if goal.registers >= 32 else (4, 3)
    depth, turns, pieces, lanes = 128, 256, 64, goal.lanes(f32)
    a, b = np.ones(depth * rows, np.float32), np.ones(depth * vectors * lanes, np.float32)
    sums = np.zeros(pieces * rows * vectors * lanes, np.float32)
    kernel = compiler.kernel(register_tiles, *[pointer(f32)] * 3, rows=rows, vectors=vectors, depth=depth, turns=turns)
    packed = kernel.pack(*(arrays.address(x) for x in (a, b, sums)))
    run = functools.partial(pool.run, kernel, packed, pieces)
    return lambda: run() or (a, b, sums), 2 * rows * vectors * lanes * depth * turns * pieces


def read_read_write(inputs: list[Any], out: Any) -> list[Call]:
    """Reads two arrays and writes a third, once with plain and once with streaming stores; the better one is the limit.

    These are the problem's own arrays, or where it has others, three of as many bytes together. Nothing where they fit
    in a cache.
    """
    total = moved_bytes(inputs, out)
    if total < 2 * last_level_cache() and max(a.nbytes for a in results(out)) <= LARGE:
        return []
    own = [a for a in (*inputs, *results(out)) if isinstance(a, np.ndarray)]
    if len(own) != 3 or any(a.nbytes != own[0].nbytes for a in own):
        own = [np.ones(total // 12, np.float32) for _ in range(3)]
    size = own[0].nbytes // 4
    places = [arrays.address(a) for a in own]

    def call(stream: bool) -> Call:
        params = [scalar(), *[pointer(f32)] * 3]
        kernel = compiler.kernel(kernels.elementwise, *params, formula=larger, type=f32, stream=stream)
        run = functools.partial(pool.run, kernel, kernel.pack(size, *places), kernels.pieces(size))
        return lambda: run() or own  # which keeps the arrays alive

    return [call(False), call(True)]
