"""Warm memory for outputs: blocks that an array gives back when it dies, and the next output gets.

Most of the time that a large fresh output costs goes to the operating system, which must find and clear its pages. A
block here is mapped once, on huge pages where there are any, and lent again and again. An array holds its block
through a `Lease`; every view of the array, and whatever else was made of its memory, holds the lease too, so a block
comes back only when nobody can see it any more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import OrderedDict, deque
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from .jit.target import last_level_cache

SMALLEST = 256 << 10  # below this, the C library's own recycling does as well
_PAGE, _HUGE = 64 << 10, 2 << 20


class _Block:
    """A mapping, and the aligned part of it that is lent."""

    __slots__ = ("address", "capacity", "map")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        spare = _HUGE if capacity >= _HUGE else 0
        # A private mapping, or a forked child would write into its parent's arrays; Windows knows no other.
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self.map = mmap.mmap(-1, capacity + spare, **flags)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.address = start + (-start % _HUGE if spare else 0)
        if spare and hasattr(mmap, "MADV_HUGEPAGE"):
            self.map.madvise(mmap.MADV_HUGEPAGE)


class MemoryPool:
    """Lends blocks to arrays. At most `limit` bytes are held, lent or not; beyond that, arrays are ordinary ones."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        # A signal handler or a finalizer may come back here in the middle of any method.
        self._lock = RLock()
        self._idle: OrderedDict[int, _Block] = OrderedDict()  # by address, the longest idle first
        # A lease may die anywhere, also while the lock is held: it only comes here.
        self._returned: deque[Any] = deque()
        self._held = 0
        self._lease_types: dict[int, type[Any]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """As `numpy.empty`, from the pool where the array is large."""
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        block = self._borrow(size) if size >= SMALLEST and not dtype.hasobject else None
        if block is None:
            return np.empty(shape, dtype)
        lease = self._lease_type(block.capacity).from_address(block.address)
        lease.block = block
        result: np.ndarray = np.ndarray(shape, dtype, buffer=lease)
        return result

    def _borrow(self, size: int) -> _Block | None:
        unit = _HUGE if size >= _HUGE else _PAGE
        capacity = -(-size // unit) * unit
        with self._lock:
            self._collect()
            if capacity > self.limit:
                return None
            for address, idle in reversed(list(self._idle.items())):
                if capacity <= idle.capacity <= capacity + capacity // 4 and self._idle.pop(address, None) is idle:
                    return idle
            self._shrink(self.limit - capacity)
            if self._held + capacity > self.limit:
                return None
            self._held += capacity
            try:
                return _Block(capacity)
            except (OSError, OverflowError, ValueError):  # no room: let NumPy try, and say so in its words
                self._held -= capacity
                return None

    def _collect(self) -> None:
        with suppress(IndexError):
            while True:
                block = getattr(self._returned.popleft(), "block", None)
                if block is not None:  # a copy of a lease has memory of its own
                    self._idle[block.address] = block
        self._shrink(self.limit)

    def _shrink(self, limit: int) -> None:
        """Drop idle blocks until no more than `limit` bytes are held."""
        with suppress(KeyError):
            while self._held > limit:
                _, block = self._idle.popitem(last=False)
                self._held -= block.capacity

    def _lease_type(self, capacity: int) -> type[Any]:
        """Lease types are made by capacity; there are few capacities."""
        kind = self._lease_types.get(capacity)
        if kind is None:
            described = {"__del__": _method(self._returned.append), "__slots__": ("block",)}
            kind = type("Lease", (ctypes.c_char * capacity,), described)
            self._lease_types[capacity] = kind
        return kind

    @property
    def limit(self) -> int:
        """The most bytes that are held; `BACKSTROKE_POOL_BYTES`, else a quarter of the memory."""
        if self._limit is None:
            text = os.environ.get("BACKSTROKE_POOL_BYTES", "").strip()
            if text and not text.isdecimal():
                raise ValueError(f"BACKSTROKE_POOL_BYTES is {text!r}; expected a number of bytes")
            self._limit = int(text) if text else memory_size() // 4
        return self._limit

    @limit.setter
    def limit(self, count: int) -> None:
        with self._lock:
            self._limit = count
            self._collect()

    def clear(self) -> None:
        """Give all idle blocks back to the operating system."""
        with self._lock:
            self._collect()
            self._shrink(0)

    def info(self) -> dict[str, int]:
        """Bytes held, bytes of that idle, and the limit."""
        with self._lock:
            self._collect()
            idle = sum(block.capacity for block in self._idle.values())
            return {"held_bytes": self._held, "idle_bytes": idle, "limit_bytes": self.limit}

    def after_fork(self) -> None:
        """In a child: the lock may have been held by a thread that is not here."""
        self._lock = RLock()


# Makes a method of a built-in. A `__del__` that is Python code is where a Ctrl-C that came during a kernel would be
# raised, and ignored.
_method = ctypes.pythonapi.PyInstanceMethod_New
_method.argtypes, _method.restype = [ctypes.py_object], ctypes.py_object


def memory_size() -> int:
    """The memory that this process may use: the machine's, or its control group's where that is less."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 8 << 30
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            size = min(size, int(text))
    return size


def large_output(inputs: float) -> int:
    """From how many bytes on an output, with so many inputs of its size, is better written past the caches."""
    return int(last_level_cache() / (inputs + 1))


pool = MemoryPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.after_fork)
