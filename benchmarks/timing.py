"""How things are timed: interleaved in one process, warmed up, on a quiet machine; of each call its best turn's median.

Two threads of OpenMP that the system puts on one CPU take turns of four milliseconds there: each waits for the other by
spinning. A call of five microseconds then takes eight milliseconds, until the system moves one of them. That happens
when anything else runs at the time, a neighbour's process or the last peer's spinning threads; it says nothing of the
library. So a turn waits until nothing else runs. A turn for which that never came, and in which the system took the CPU
from one of our threads again and again, is taken anew, some times, and a call that had no other is marked: no ratio is
made of it. And of the medians of the turns the least one counts, for everybody alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Call = Callable[[], object]
# Other libraries' workers spin after a call, OpenMP's for 8 milliseconds. Nobody is timed while they still do.
_PAUSE = 0.012
_ROUND = 0.02  # seconds of calls that a turn should have
_SLOW, _VERY_SLOW, _HOPELESS = 0.1, 0.7, 2.0  # a call of so many seconds gets three turns; one turn; no other call
_OFTEN = 30  # times a second that a thread of ours lost its CPU; undisturbed it is a few, on a shared CPU hundreds
_LOAD = Path("/proc/loadavg")


class Taken(NamedTuple):
    """The seconds of a call, and whether every one of its turns was disturbed: then they say little."""

    seconds: float
    disturbed: bool


def interleaved(calls: Sequence[Call], rounds: int = 7) -> list[Taken]:
    """The time of each call. Each gets a turn in every round: a pause, a warm-up, then some calls."""
    jobs = [_Job(call, rounds) for call in calls]
    for turn in range(rounds):
        for job in jobs:
            if turn < job.turns:
                job.turn()
    return [job.taken for job in jobs]


def pause(patience: int) -> bool:
    """Wait until nobody's threads spin any more; after so many pauses a busy machine is taken as it is.

    Whether it is quiet.
    """
    for _ in range(patience):
        time.sleep(_PAUSE)
        if _running() <= 1:  # we ourselves
            return True
    return False


def _running() -> int:
    """How many threads run or want to run, on the whole machine; 0 where the system does not say."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return 0


def _preempted() -> int:
    """How often the system has taken a CPU from a thread of this process that would have gone on."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Job:
    """One call, how often it is done, and the median seconds of its turns: the undisturbed ones, and the others."""

    def __init__(self, call: Call, rounds: int) -> None:
        self._call, self._patience = call, rounds
        self._medians: dict[bool, list[float]] = {False: [], True: []}
        self._once, self._disturbed = float("inf"), False
        self._quiet = pause(self._patience)
        self._measure(1)
        if self._once < _HOPELESS or self._disturbed:
            self._quiet = pause(self._patience)
            self._measure(3 if self._once < _SLOW else 1)
        once = self._once
        self.turns = rounds if once < _SLOW else 3 if once < _VERY_SLOW else 1 if once < _HOPELESS else 0
        self._again = self.turns  # that many may be taken anew
        if self.turns:  # those were cold
            self._medians = {False: [], True: []}

    @property
    def taken(self) -> Taken:
        """The best undisturbed turn, or where there is none the best."""
        best = min(self._medians[False] or self._medians[True])
        return Taken(best, not self._medians[False])

    def turn(self) -> None:
        self._quiet = pause(self._patience)
        while not self._turn() and self._again:
            self._again -= 1
            self._quiet = pause(self._patience)

    def _turn(self) -> bool:
        """Whether nothing disturbed it."""
        count = max(1, min(20_000, int(_ROUND / self._once)))
        for _ in range(min(3, count) if self._once < _SLOW else 0):
            self._call()
        self._measure(count)
        return not self._disturbed

    def _measure(self, count: int) -> None:
        start, before = time.perf_counter(), _preempted()
        # Of short calls the clock itself would count, so many are timed together.
        parts = [self._time(count // 5) for _ in range(5)] if count > 200 else [self._time() for _ in range(count)]
        preempted, took = _preempted() - before, time.perf_counter() - start
        # Where nobody else runs it is the library itself that hands its work from thread to thread.
        self._disturbed = not self._quiet and preempted > max(1, _OFTEN * took)
        median = statistics.median(parts)
        self._medians[self._disturbed].append(median)
        self._once = min(self._once, median)

    def _time(self, count: int = 1) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self._call()
        return max((time.perf_counter() - start) / count, 1e-7)
