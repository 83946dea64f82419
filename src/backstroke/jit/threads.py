"""The thread pool: workers that sit in a compiled loop, and the call that spreads a kernel's pieces over them.

Work is cut into pieces by the problem, never by the number of threads: who does a piece changes nothing in its bits.
The caller works too. It takes a slot, writes kernel and arguments into it, and deals the pieces out as one range for
each thread. A range is one word (generation, next, end), from which pieces are drawn by compare-and-swap; whoever is
through with its own range helps with the others'. So a thread meets the same part of a tensor in every call, which its
caches like, nobody waits for a slow one, and nobody can draw from a job that is over. A worker that finds nothing spins
for some microseconds, then sleeps. Slots are few; a caller that finds none free does its work alone. Nothing here holds
Python's lock.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import compile as compiler
from . import waiting
from .types import i32, i64, pointer, scalar

if TYPE_CHECKING:
    from .compile import Function
    from .trace import Pointer, Trace, Value

# The pool's state, in 64-bit words; what is written often has a cache line of its own.
_LINE = 8
_EPOCH, _SLEEPERS, _CONSTANTS, _CPUS = (line * _LINE for line in range(4))
_ACTIVE, _WAIT, _WAKE, _WHERE, _PLACE, _WHO, _STEER = (_CONSTANTS + word for word in range(7))
_MOST_WORKERS = 255
_WORKERS = _CPUS + waiting.MASK_WORDS  # of each worker: its thread's number, and one more than the CPU it is kept off
_SLOTS = _WORKERS + 2 * (_MOST_WORKERS + 1)
_OWNER, _DONE, _WAITING, _JOB, _RANGES = (line * _LINE for line in range(5))
_KERNEL, _ARGUMENTS, _TOTAL, _STRIDE, _PARTS = (_JOB + word for word in range(5))
_MOST_PARTS = 64
_SLOT_WORDS, _SLOT_COUNT = _RANGES + _MOST_PARTS * _LINE, 8
_STATE_WORDS = _SLOTS + _SLOT_WORDS * _SLOT_COUNT
# A range: the upper 24 bits are its generation, then come 20 for the next turn and 20 for the end. A turn is `_STRIDE`
# neighbouring pieces.
_BITS, _FIELD = 20, (1 << 20) - 1
_TURNS_OF_A_PART = 256
_IDLE_SPINS, _FINISH_SPINS = 2000, 4000
MOST_THREADS = _MOST_WORKERS + 1


def _help(k: Trace, slot: Pointer, number: Value, wake: Value) -> Value:
    """Draw one turn from a slot, from our own range first, and do it; whether there was one."""
    drawn = k.var(-1, i64)
    parts = k.atomic_load(slot.at(_PARTS))
    with k.when(parts > 0):
        part = k.var(number % k.most(parts, 1))
        for _ in k.range(parts):
            with k.when(drawn < 0):
                word = slot.at(_RANGES + part.read() * _LINE)
                ticket = k.atomic_load(word)
                turn, end = (ticket >> _BITS) & _FIELD, ticket & _FIELD
                kernel, arguments = k.atomic_load(slot.at(_KERNEL)), k.atomic_load(slot.at(_ARGUMENTS))
                stride, total = k.atomic_load(slot.at(_STRIDE)), k.atomic_load(slot.at(_TOTAL))
                with k.when(turn < end):
                    drawn.set(0)  # whether or not we get it: there is something, so look again
                    with k.when(k.compare_and_swap(word, ticket, ticket + (1 << _BITS))):
                        first = turn * stride
                        for piece in k.range(first, k.least(first + stride, total)):
                            k.call(kernel, arguments, piece)
                        done = k.atomic_add(slot.at(_DONE), 1) + 1
                        with k.when((done == (total + stride - 1) // stride) & (k.atomic_load(slot.at(_WAITING)) != 0)):
                            waiting.wake(k, wake, slot.at(_DONE))
                with k.when(turn >= end):
                    part.set(k.where(part + 1 < parts, part + 1, 0))
    return drawn >= 0


def worker(k: Trace, state: Pointer, number: Value) -> None:
    """The life of one worker."""
    k.default_float_environment()
    with k.when(state[_WHO] != 0):
        k.atomic_store(state.at(_WORKERS + 2 * number), k.to(i64, k.call(state[_WHO], returns=i32)))
    with k.forever():
        seen = k.atomic_load(state.at(_EPOCH))
        idle = k.var(1, i64)
        with k.when(number < k.atomic_load(state.at(_ACTIVE))):
            for index in k.range(_SLOT_COUNT):
                slot = state.at(_SLOTS + index * _SLOT_WORDS)
                with k.forever() as leave:
                    helped = _help(k, slot, number + 1, state[_WAKE])
                    with k.when(helped):
                        idle.set(0)
                    leave(k.no(helped))
        with k.when(idle != 0):
            spins = k.var(0, i64)
            with k.forever() as leave:
                waiting.pause(k)
                spins += 1
                leave((spins == _IDLE_SPINS) | (k.atomic_load(state.at(_EPOCH)) != seen))
            with k.when(k.atomic_load(state.at(_EPOCH)) == seen):
                k.atomic_add(state.at(_SLEEPERS), 1)
                waiting.wait(k, state[_WAIT], state.at(_EPOCH), seen)
                k.atomic_add(state.at(_SLEEPERS), -1)


def run_pieces(k: Trace, state: Pointer, kernel: Value, arguments: Value, total: Value) -> None:
    """Do all pieces of a kernel, with the workers' help where there is some, and return when they are done."""
    mine = k.var(-1, i64)
    restore = k.default_float_environment()
    with k.when((total > 1) & (k.atomic_load(state.at(_ACTIVE)) > 0)):
        for index in k.range(_SLOT_COUNT):
            with k.when(mine < 0):
                with k.when(k.compare_and_swap(state.at(_SLOTS + index * _SLOT_WORDS + _OWNER), 0, 1)):
                    mine.set(index)
    with k.when(mine < 0):
        for piece in k.range(total):
            k.call(kernel, arguments, piece)
    with k.when(mine >= 0):
        slot = state.at(_SLOTS + mine.read() * _SLOT_WORDS)
        parts = k.least(k.least(k.atomic_load(state.at(_ACTIVE)) + 1, _MOST_PARTS), total)
        stride = total // (parts * _TURNS_OF_A_PART) + 1
        turns = (total + stride - 1) // stride
        for place, value in (
            (_KERNEL, kernel), (_ARGUMENTS, arguments), (_TOTAL, total), (_STRIDE, stride), (_DONE, 0), (_WAITING, 0),
            (_PARTS, parts),
        ):  # fmt: skip
            k.atomic_store(slot.at(place), value)
        for part in k.range(parts):
            word = slot.at(_RANGES + part * _LINE)
            generation = (k.atomic_load(word) >> 2 * _BITS) + 1
            first, end = turns * part // parts, turns * (part + 1) // parts
            k.atomic_store(word, (generation << 2 * _BITS) | (first << _BITS) | end)
        with k.when((mine == 0) & (k.atomic_load(state.at(_STEER)) != 0)):
            _steer(k, state)
        k.atomic_add(state.at(_EPOCH), 1)
        with k.when(k.atomic_load(state.at(_SLEEPERS)) > 0):
            waiting.wake(k, state[_WAKE], state.at(_EPOCH))
        with k.forever() as leave:
            leave(k.no(_help(k, slot, k.value(0, i64), state[_WAKE])))
        _wait_for_the_rest(k, state, slot, turns)
        k.atomic_store(slot.at(_OWNER), 0)
    restore()


def _steer(k: Trace, state: Pointer) -> None:
    """Keep the workers off the caller's CPU.

    A worker that wakes there shares that CPU with the caller until the system moves one of them, which can take longer
    than a hundred calls.
    """
    here = k.to(i64, k.call(state[_WHERE], returns=i32))
    for number in k.range(k.atomic_load(state.at(_ACTIVE))):
        who, off = state.at(_WORKERS + 2 * number), state.at(_WORKERS + 2 * number + 1)
        with k.when((k.atomic_load(who) != 0) & (k.atomic_load(off) != here + 1) & (here >= 0)):
            k.atomic_store(off, here + 1)
            waiting.keep_off(k, state[_PLACE], k.atomic_load(who), state.at(_CPUS), here)


def _wait_for_the_rest(k: Trace, state: Pointer, slot: Pointer, turns: Value) -> None:
    spins = k.var(0, i64)
    with k.forever() as leave:
        leave((k.atomic_load(slot.at(_DONE)) == turns) | (spins == _FINISH_SPINS))
        waiting.pause(k)
        spins += 1
    k.atomic_store(slot.at(_WAITING), 1)
    with k.forever() as leave:
        done = k.atomic_load(slot.at(_DONE))
        leave(done == turns)
        waiting.wait(k, state[_WAIT], slot.at(_DONE), done)


def available() -> int:
    """The CPUs that this process may use: its affinity, and the quota of its control group."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, min(count, quota or count))


def _quota(membership: Path, root: Path) -> int | None:
    """The smallest CPU quota from our control group up to the root, in whole CPUs."""
    least = None
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = (root if not controllers else root / controllers) / group.lstrip("/")
        for folder in (place, *place.parents):
            cpus = _quota_of(folder)
            if cpus is not None:
                least = min(cpus, least or cpus)
            if folder == root:
                break
    return least


def _quota_of(folder: Path) -> int | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if quota in ("max", "-1") else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _wanted() -> int:
    text = os.environ.get("BACKSTROKE_NUM_THREADS", "").strip()
    if not text:
        return available()
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise ValueError(f"BACKSTROKE_NUM_THREADS is {text!r}; expected a whole number from 1 to {MOST_THREADS}")
    return int(text)


class Pool:
    """The workers of this process. They start when work first comes, and again in a child after a fork."""

    def __init__(self) -> None:
        self._threads: int | None = None
        self._forget()

    def _forget(self) -> None:
        """As new: also what a forked child does, for its parent's workers are not there."""
        self._lock = threading.RLock()  # a signal handler may come back here
        self._workers = 0
        self._state: ctypes.Array[ctypes.c_int64] | None = None
        self._entry: tuple[int, int] | None = None
        self._call: Callable[[int, int, bytes, int], None] | None = None

    @property
    def threads(self) -> int:
        """How many threads compute."""
        if self._threads is None:
            self._threads = _wanted()
        return self._threads if waiting.calls() else 1

    @threads.setter
    def threads(self, count: int) -> None:
        self._threads = count
        with self._lock:
            if self._state is not None:
                self._hire()

    @property
    def why_one(self) -> str:
        """Why only one thread ever computes here; empty where that is not so."""
        return "" if waiting.calls() else "no way of sleeping on memory is known for this platform"

    @property
    def at_work(self) -> bool:
        """Whether there are all the workers that are wanted."""
        return self._state is not None and self._workers >= self.threads - 1

    def ready(self) -> bool:
        """Hire the workers that are wanted; whether they all are there."""
        self.entry()
        if not self.at_work:
            with self._lock:
                self._hire()
        return self.at_work

    def run(self, kernel: Function, arguments: bytes, pieces: int) -> None:
        """Do `pieces` pieces of a kernel."""
        state = self.entry()[1]
        if pieces > 1 and not self.at_work:
            with self._lock:
                self._hire()
        assert self._call is not None
        self._call(state, kernel.address, arguments, pieces)

    def entry(self) -> tuple[int, int]:
        """Where `run_pieces` lies, and the state that it takes first."""
        if self._entry is None:
            with self._lock:
                if self._entry is None:
                    self._entry = self._start()
        return self._entry

    def _start(self) -> tuple[int, int]:
        memory = (ctypes.c_int64 * (_STATE_WORDS + _LINE))()
        state = (ctypes.c_int64 * _STATE_WORDS).from_buffer(memory, -ctypes.addressof(memory) % 64)
        compiler.keep(state)
        state[_WAIT : _WHO + 1] = list(waiting.calls() or (0,) * 5)
        for cpu in waiting.allowed_cpus():
            state[_CPUS + cpu // 64] |= (1 << cpu % 64) - (1 << 64 if cpu % 64 == 63 else 0)
        self._state = state
        code = compiler.function(run_pieces, pointer(i64), scalar(), scalar(), scalar())
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
        self._call = prototype(code.address)
        return code.address, ctypes.addressof(state)

    def _hire(self) -> None:
        """As many workers as are wanted; where there are more already, those stay asleep."""
        assert self._state is not None
        wanted = self.threads - 1
        if wanted > self._workers:
            code = compiler.function(worker, pointer(i64), scalar())
            life = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address)
            compiler.keep(life)
            try:
                while self._workers < wanted:
                    _thread.start_new_thread(life, (ctypes.addressof(self._state), self._workers))
                    self._workers += 1
            except RuntimeError:  # the system gives no more threads: those that there are will do
                wanted = self._workers
        self._state[_STEER] = wanted > 0 and wanted < len(waiting.allowed_cpus())
        self._state[_ACTIVE] = wanted


pool = Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool._forget)
