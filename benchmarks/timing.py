"""How things are timed: interleaved in one process, warmed up, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

Call = Callable[[], object]
# Other libraries' workers spin for some milliseconds after a call. Nobody is timed while another one's still do.
_PAUSE = 0.012
_ROUND = 0.02


def interleaved(calls: Sequence[Call], rounds: int = 7) -> list[float]:
    """The median seconds of each call. Each gets a turn in every round: a pause, a warm-up, then some calls."""
    counts = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        counts.append(max(3, min(20_000, int(_ROUND / once))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, count, taken in zip(calls, counts, times, strict=True):
            time.sleep(_PAUSE)
            for _ in range(min(3, count)):
                call()
            if count > 200:  # short calls: the clock itself would count, so many are timed together
                start = time.perf_counter()
                for _ in range(count):
                    call()
                taken.append((time.perf_counter() - start) / count)
                continue
            for _ in range(count):
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]
