"""What several test modules share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from backstroke.jit import compile as compiler
from backstroke.jit import types
from backstroke.jit.threads import pool

TYPES: dict[np.dtype, types.Type] = {
    np.dtype(np.float32): types.f32,
    np.dtype(np.float64): types.f64,
    np.dtype(np.float16): types.f16,
    np.dtype(ml_dtypes.bfloat16): types.bf16,
    np.dtype(np.int64): types.i64,
    np.dtype(np.int32): types.i32,
    np.dtype(np.int16): types.i16,
    np.dtype(np.int8): types.i8,
}


def run(build: Callable[..., None], *arguments: Any, pieces: int = 1, **constants: Any) -> None:
    """Compile `build(k, piece, *arguments)` for the current target and do its pieces; arrays go in as pointers."""
    params, words = [], []
    for x in arguments:
        if isinstance(x, np.ndarray):
            assert x.flags.c_contiguous
            params.append(types.pointer(TYPES[x.dtype]))
            words.append(x.__array_interface__["data"][0])
        else:
            params.append(types.scalar(types.f64 if isinstance(x, float) else types.i64))
            words.append(x)
    kernel = compiler.kernel(build, *params, **constants)
    pool.run(kernel, kernel.pack(*words), pieces)


def python(code: str, *, timeout: float = 60, **environment: str) -> str:
    """What a fresh interpreter prints that runs `code`; it must end well and say nothing on stderr."""
    done = try_python(code, timeout=timeout, **environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


def try_python(code: str, *, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that runs `code`."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
