"""What the pool asks of the operating system: sleeping on a word of memory, and where a thread runs.

Linux has futexes, macOS its ulocks. `calls()` gives the addresses that the compiled loops call; where nothing fits it
gives none, and then one thread computes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from typing import TYPE_CHECKING, NamedTuple

from .types import i32, i64

if TYPE_CHECKING:
    from .trace import Pointer, Trace, Value

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_COMPARE_AND_WAIT, _WAKE_ALL = 1, 0x101
_EVERYBODY = 0x7FFFFFFF
MASK_WORDS = 16  # CPUs are told apart up to 64 times this


class Calls(NamedTuple):
    """Addresses of C functions; those that tell and set where threads run are 0 where there are none."""

    wait: int
    wake: int
    where: int = 0
    place: int = 0
    who: int = 0


@functools.cache
def calls() -> Calls | None:
    """The functions that wait and wake here, or None."""
    if sys.platform == "linux" and platform.machine() in _FUTEX:
        names = ("syscall", "syscall", "sched_getcpu", "sched_setaffinity", "gettid")
        return Calls(*map(_address, names))
    if sys.platform == "darwin":
        return Calls(_address("__ulock_wait"), _address("__ulock_wake"))
    return None


def allowed_cpus() -> list[int]:
    """The CPUs that threads of this process may be placed on; empty where threads cannot be placed."""
    found = calls()
    if found is None or not all(found) or not hasattr(os, "sched_getaffinity"):
        return []
    cpus = sorted(os.sched_getaffinity(0))
    return cpus if cpus[-1] < 64 * MASK_WORDS else []


def _address(name: str) -> int:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def wait(k: Trace, function: Value, word: Pointer, seen: Value) -> None:
    """Sleep while the lower half of `word` is that of `seen`; may also return for no reason."""
    zero, low = k.value(0, i64), k.to(i32, seen)
    if "darwin" in k.target.triple:
        k.call(function, k.value(_COMPARE_AND_WAIT, i32), word, k.unsigned(i64, low), k.value(0, i32), returns=i32)
        return
    number = k.value(_FUTEX.get(k.target.arch, 0), i64)
    k.call(function, number, word, k.value(_WAIT_PRIVATE, i64), k.unsigned(i64, low), zero, variadic=1, returns=i64)


def wake(k: Trace, function: Value, word: Pointer) -> None:
    """Wake all that sleep on `word`."""
    if "darwin" in k.target.triple:
        k.call(function, k.value(_WAKE_ALL, i32), word, k.value(0, i64), returns=i32)
        return
    number = k.value(_FUTEX.get(k.target.arch, 0), i64)
    k.call(function, number, word, k.value(_WAKE_PRIVATE, i64), k.value(_EVERYBODY, i64), variadic=1, returns=i64)


def keep_off(k: Trace, place: Value, thread: Value, cpus: Pointer, cpu: Value) -> None:
    """Let a thread run on all of `cpus` but one."""
    mask = k.stack(i64, MASK_WORDS)
    for word in range(MASK_WORDS):
        mask[word] = cpus[word]
    mask[cpu >> 6] = mask[cpu >> 6] & ((k.value(1, i64) << (cpu & 63)) ^ -1)
    k.call(place, k.to(i32, thread), k.value(8 * MASK_WORDS, i64), mask, returns=i32)


def pause(k: Trace) -> None:
    """Tell the CPU that a loop is only waiting."""
    import llvmlite.ir as ir

    if k.target.is_x86:
        k.intrinsic("x86.sse2.pause", ir.VoidType(), [])
    elif k.target.arch == "aarch64":
        k.intrinsic("aarch64.hint", ir.VoidType(), [ir.IntType(32)(1)])
