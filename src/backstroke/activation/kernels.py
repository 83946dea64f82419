"""Elementwise gradients: a formula a line, and the one nest that runs them all.

The vector is `lanes` neighbouring elements; there is no tile, for nothing is used twice. A piece is `CHUNK` elements,
so what a thread gets depends on the problem alone, and no element knows its neighbours: the bits are the same for any
number of threads. Where the output is larger than the caches, and the CPU gains by it, stores go past them; for that
the first vector is a partial one that reaches up to the next aligned address of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..jit.types import Type

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

CHUNK = 32768
UNROLL = 4


def pieces(size: Any) -> Any:
    """How many pieces the work is cut into."""
    return (size + (CHUNK - 1)) // CHUNK


def relu_grad(dy: Any, x: Any) -> Any:
    from ..jit.functions import where

    return where(x > 0, dy, 0.0)


def leaky_relu_grad(dy: Any, y: Any, alpha: Any) -> Any:
    from ..jit.functions import where

    return where(y > 0, dy, alpha * dy)


def sigmoid_grad(dy: Any, y: Any) -> Any:
    from ..jit.functions import fma, largest, where

    # y (1 - y) with one rounding; where y is infinite, y - y y must be -inf as y (1 - y) is, not NaN.
    return dy * fma(-y, y, where(y > largest(y), largest(y), y))


def tanh_grad(dy: Any, y: Any) -> Any:
    from ..jit.functions import fma

    return dy * fma(-y, y, 1.0)


def quick_gelu_grad(dy: Any, x: Any, alpha: Any) -> Any:
    from ..jit.functions import exp, fma

    s = 1 / (1 + exp(-(alpha * x)))
    return dy * s * fma(alpha * x, 1 - s, 1.0)


def elementwise(
    k: Trace,
    piece: Value,
    size: Value,
    dy: Pointer,
    x: Pointer,
    dx: Pointer,
    *scalars: Value,
    formula: Callable[..., Any],
    type: Type,
    stream: bool,
) -> None:
    lanes = k.target.lanes(type)
    head: Value | int = 0
    if stream:
        head = k.least((0 - dx.address & (lanes * type.bytes - 1)) // type.bytes, size)
        with k.when(piece == 0):
            at = k.some(0, head, lanes)
            dx[at] = formula(dy[at], x[at], *scalars)
    first = piece * CHUNK + head
    for at in k.vectors(first, k.least(first + CHUNK, size), lanes=lanes, unroll=UNROLL):
        align = lanes * type.bytes if stream and at.mask is None else 1
        dx.store(at, formula(dy[at], x[at], *scalars), align=align, stream=stream)
