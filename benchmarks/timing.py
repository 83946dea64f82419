"""How things are timed: interleaved in one process, warmed up, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

Call = Callable[[], object]
# Other libraries' workers spin for some milliseconds after a call. Nobody is timed while another one's still do.
_PAUSE = 0.012
_ROUND = 0.02  # seconds of calls that a turn should have
_SLOW, _VERY_SLOW, _HOPELESS = 0.1, 0.7, 2.0  # a call of so many seconds gets three turns; one turn; no other call


def interleaved(calls: Sequence[Call], rounds: int = 7) -> list[float]:
    """The median seconds of each call. Each gets a turn in every round: a pause, a warm-up, then some calls."""
    jobs = [_Job(call, rounds) for call in calls]
    for turn in range(rounds):
        for job in jobs:
            if turn < job.turns:
                time.sleep(_PAUSE)
                job.turn()
    return [statistics.median(job.times) for job in jobs]


class _Job:
    """One call, how often it is done, and the seconds that it took."""

    def __init__(self, call: Call, rounds: int) -> None:
        self._call = call
        self.times: list[float] = []
        first = self._seconds()
        once = self._seconds() if first < _HOPELESS else first
        self.turns = rounds if once < _SLOW else 3 if once < _VERY_SLOW else 1 if once < _HOPELESS else 0
        if not self.turns:
            self.times.append(once)
        self._count = max(1, min(20_000, int(_ROUND / once)))
        self._warm = min(3, self._count) if once < _SLOW else 0

    def turn(self) -> None:
        for _ in range(self._warm):
            self._call()
        if self._count > 200:  # short calls: the clock itself would count, so many are timed together
            start = time.perf_counter()
            for _ in range(self._count):
                self._call()
            self.times.append((time.perf_counter() - start) / self._count)
        else:
            self.times += [self._seconds() for _ in range(self._count)]

    def _seconds(self) -> float:
        start = time.perf_counter()
        self._call()
        return max(time.perf_counter() - start, 1e-7)
