"""Elementwise gradients: a formula a line, and the one nest that runs them all.

The vector is `lanes` neighbouring elements; there is no tile, for nothing is used twice. A piece is `CHUNK` elements,
so what a thread gets depends on the problem alone, and no element knows its neighbours: the bits are the same for any
number of threads. Where the arrays are larger than the caches, stores go past them (`stream`).
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
    from ..jit.functions import ready, where

    return where(x > 0, ready(dy), 0.0)


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
    from ..jit.functions import exp_of_minus_abs, fma, where

    # With z = alpha x and u = exp(-|z|) the derivative is (1 + u (1 + z)) / (1 + u)^2 where z > 0 and
    # u (u + (1 + z)) / (1 + u)^2 where it is not: nothing overflows or cancels but two terms, which one fma adds.
    u, y = exp_of_minus_abs(x, alpha), fma(alpha, x, 1.0)
    return dy / fma(u, u + 2, 1.0) * fma(u, y, where(y > 1, 1.0, u * u))


def lanes_of(k: Trace, type: Type) -> int:
    """As many elements as a register holds as they lie in memory: 16-bit ones are computed in two registers."""
    return k.target.vector_bytes // type.bytes


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
    first, lanes = piece * CHUNK, lanes_of(k, type)
    last = k.least(first + CHUNK, size)
    for at in k.vectors(first, last, lanes=lanes, unroll=UNROLL, align=dx if stream else None):
        dx.store(at, formula(dy[at], x[at], *scalars), stream=stream)


# ---- the functions themselves ---------------------------------------------------------------------------------------


def relu(x: Any) -> Any:
    from ..jit.functions import where

    return where(x > 0, x, where(x == x, 0.0, x))


def leaky_relu(x: Any, alpha: Any) -> Any:
    from ..jit.functions import where

    return where(x > 0, x, alpha * x)


def sigmoid(x: Any, scale: Any = 1.0) -> Any:
    """sigmoid(scale x), by exp(-|scale x|) so that nothing overflows."""
    from ..jit.functions import exp_of_minus_abs, where

    u = exp_of_minus_abs(x, scale)
    return where(scale * x > 0, 1.0, u) / (1 + u)


def tanh(x: Any) -> Any:
    from ..jit import functions

    return functions.tanh(x)


def quick_gelu(x: Any, alpha: Any) -> Any:
    return x * sigmoid(x, alpha)


def mapped(
    k: Trace,
    piece: Value,
    size: Value,
    x: Pointer,
    y: Pointer,
    *scalars: Value,
    formula: Callable[..., Any],
    type: Type,
    stream: bool,
) -> None:
    first, lanes = piece * CHUNK, lanes_of(k, type)
    last = k.least(first + CHUNK, size)
    for at in k.vectors(first, last, lanes=lanes, unroll=UNROLL, align=y if stream else None):
        y.store(at, formula(x[at], *scalars), stream=stream)
