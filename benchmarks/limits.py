"""The machine's own limit, measured on the problem's own arrays in the same rounds: a kernel that only moves memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from backstroke import arrays
from backstroke.activation import kernels
from backstroke.jit import compile as compiler
from backstroke.jit.functions import where
from backstroke.jit.target import last_level_cache
from backstroke.jit.threads import pool
from backstroke.jit.types import f32, pointer, scalar

from .timing import Call


def larger(a: Any, b: Any) -> Any:
    """The least that can be done with two inputs."""
    return where(a > b, a, b)


def read_read_write(inputs: list[np.ndarray], out: np.ndarray) -> list[Call]:
    """Reads two arrays and writes a third, once with plain and once with streaming stores; the better one is the limit.

    Nothing where the arrays fit in a cache, or where they are not two inputs and an output of one size.
    """
    if len(inputs) != 2 or any(a.nbytes != out.nbytes for a in inputs) or 3 * out.nbytes < 2 * last_level_cache():
        return []
    size = out.nbytes // 4
    places = [arrays.address(a) for a in (*inputs, out)]

    def call(stream: bool) -> Call:
        params = [scalar(), *[pointer(f32)] * 3]
        kernel = compiler.kernel(kernels.elementwise, *params, formula=larger, type=f32, stream=stream)
        return lambda: pool.run(kernel, kernel.pack(size, *places), kernels.pieces(size))

    return [call(False), call(True)]
