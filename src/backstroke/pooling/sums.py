"""Sums of a segment of dX in scratch memory: zeros before, rounded and on their way after."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value


def clear(k: Trace, totals: Pointer, count: Value) -> None:
    """Zeros."""
    lanes = k.target.lanes(totals.type)
    # LLVM would call the C library for zeros that it sees, and that may put them past the caches.
    zeros = k.opaque(k.value(0.0, totals.type, lanes))
    for at in k.vectors(count, lanes=lanes, unroll=4):
        totals[at] = zeros


def deliver(k: Trace, totals: Pointer, dx: Pointer, count: Value, stream: bool) -> None:
    """The sums, rounded to the type of dX."""
    lanes = k.target.lanes(totals.type)
    for at in k.vectors(count, lanes=lanes, unroll=4, align=dx if stream else None):
        dx.store(at, k.to(dx.type.compute, totals[at]), stream=stream)
