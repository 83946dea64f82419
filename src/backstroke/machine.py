"""What the library uses of the machine, and how to change it."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from . import memory
from .jit import cache
from .jit import compile as compiler
from .jit.target import current
from .jit.threads import MOST_THREADS, pool
from .version import __version__


def set_num_threads(n: int) -> None:
    """Compute with `n` threads from now on, the calling one among them. The results have the same bits for every `n`.

    The default is `BACKSTROKE_NUM_THREADS`, else the number of CPUs that this process may use.
    """
    if isinstance(n, (bool, np.bool_)) or not hasattr(n, "__index__"):
        raise TypeError(f"n is a {type(n).__name__}; expected a whole number of threads")
    if not 1 <= n.__index__() <= MOST_THREADS:
        raise ValueError(f"n is {n}; expected 1 to {MOST_THREADS} threads")
    pool.threads = n.__index__()


def get_num_threads() -> int:
    """The number of threads that compute."""
    return pool.threads


def set_memory_limit(size: int) -> None:
    """Hold at most `size` bytes of memory for large outputs; 0 holds none.

    The default is `BACKSTROKE_POOL_BYTES`, else a quarter of the memory that this process may use.
    """
    if isinstance(size, (bool, np.bool_)) or not hasattr(size, "__index__"):
        raise TypeError(f"size is a {type(size).__name__}; expected a whole number of bytes")
    if size.__index__() < 0:
        raise ValueError(f"size is {size}; expected 0 or more bytes")
    memory.pool.limit = size.__index__()


def empty_cache() -> None:
    """Give the memory that is held for outputs, and not in use, back to the operating system."""
    memory.pool.clear()


def info() -> dict[str, Any]:
    """What runs here, as a dictionary: versions, target, threads, caches. For bug reports and the curious."""
    target, folder = current(), cache.folder()
    return {
        "backstroke": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "target": target.name,
        "cpu": target.cpu,
        "vector_bytes": target.vector_bytes,
        "threads": pool.threads,
        "why_one_thread": pool.why_one,
        "object_cache": str(folder) if folder else "off",
        "object_cache_trouble": cache.trouble(),
        "kernels_compiled": compiler.counts.compiled,
        "kernels_from_cache": compiler.counts.loaded,
        "compile_seconds": round(compiler.counts.seconds, 4),
        "memory": memory.pool.info(),
    }
