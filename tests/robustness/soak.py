"""Eight threads call every op at changing shapes and types, and memory stays flat: `python tests/robustness/soak.py`.

Every answer is compared bit for bit with the first one for the same arguments. Warm-up is the first fifth of the time.
The shapes are many but not endless: every kernel that is compiled stays in memory, by design.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import backstroke as bs
from backstroke.registry import OPS, Example, Op, results

THREADS = 8


def problems(op: Op) -> list[tuple[Example, np.dtype]]:
    """Some sizes below and above where outputs come from the pool, in two types."""
    small = op.small
    grown = [tuple(n * f for n in small.shape[:1]) + small.shape[1:] for f in (1, 2, 3, 5, 8)]
    return [(Example(shape, small.options), dtype) for shape in grown for dtype in op.dtypes[::3] or op.dtypes]


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(seconds: float) -> dict[str, Any]:
    """Run; -> how many calls, and memory at the start, after warm-up, at the end and at most in between."""
    start = resident()
    table = []
    for op in OPS:
        for example, dtype in problems(op):
            arguments, keywords = op.example(np.random.default_rng(0), example, dtype)
            want = [a.tobytes() for a in results(op.function(*arguments, **keywords))]
            table.append((op, arguments, keywords, want))
    end, calls, wrong = time.monotonic() + seconds, [0] * THREADS, []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() < end:
            op, arguments, keywords, want = table[int(rng.integers(len(table)))]
            found = results(op.function(*arguments, **keywords))
            if [a.tobytes() for a in found] != want:
                wrong.append(op.name)
            if rng.integers(500) == 0:
                bs.set_num_threads(int(rng.integers(1, 9)))
            calls[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 5)
    warm, seen = resident(), []
    while time.monotonic() < end:
        time.sleep(min(1.0, seconds / 50))
        seen.append(resident())
    for thread in threads:
        thread.join()
    third = max(1, len(seen) // 3)
    return {
        "seconds": seconds,
        "threads": THREADS,
        "problems": len(table),
        "calls": sum(calls),
        "wrong": wrong,
        "mebibytes at the start": start >> 20,
        "mebibytes after warm-up": warm >> 20,
        "mean mebibytes, first third after": sum(seen[:third]) // third >> 20,
        "mean mebibytes, last third": sum(seen[-third:]) // third >> 20,
        "most mebibytes": max(seen) >> 20,
    }


def flat(found: dict[str, Any]) -> bool:
    """The last third holds no more than 3 % and 16 MiB over the first."""
    first, last = found["mean mebibytes, first third after"], found["mean mebibytes, last third"]
    return bool(last <= first * 1.03 + 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    before = bs.get_num_threads()
    found = soak(parser.parse_args().seconds)
    bs.set_num_threads(before)
    print(json.dumps(found, indent=1))
    return int(bool(found["wrong"]) or not flat(found))


if __name__ == "__main__":
    sys.exit(main())
