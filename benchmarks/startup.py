"""What the first moments cost: import, the first call from cold and from the disk cache, and a small call."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

import numpy as np

import backstroke as bs

_FIRST_CALL = """
import json, time
start = time.perf_counter()
import backstroke
imported = time.perf_counter()
import numpy as np
from backstroke.registry import OPS
op = next(op for op in OPS if op.name == "{op}")
arguments, keywords = op.example(np.random.default_rng(0), op.small, np.float32)
ready = time.perf_counter()
op.function(*arguments, **keywords)
first = time.perf_counter()
print(json.dumps([imported - start, first - ready]))
"""

_RESNET = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from backstroke.jit.compile import counts
from benchmarks.problems import PROBLEMS
for problem in PROBLEMS:
    if problem.group == "conv resnet_50":
        problem.entry.function(*problem.arguments(), **problem.keywords)
print(counts.seconds)
"""


def _once(op: str, folder: str, bytecode: str) -> tuple[float, float]:
    # A package that pip has installed has its bytecode beside it; here it goes to a folder of ours.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"BACKSTROKE_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": bytecode}
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_CALL.format(op=op)], env=environment, capture_output=True, text=True, check=True
    )
    imported, first = json.loads(done.stdout)
    return imported, first


def first_calls(ops: list[str], repeats: int = 5) -> dict[str, float]:
    """Seconds: import, and the slowest op's first call, cold and from the cache (medians of as many processes)."""
    imports, cold, warm = [], {}, {}
    with tempfile.TemporaryDirectory() as bytecode:
        for op in ops:
            colds, warms = [], []
            for turn in range(repeats + 1):  # the first one compiles what Python makes of the sources
                with tempfile.TemporaryDirectory() as folder:
                    os.chmod(folder, 0o700)
                    (imported, first), (_, again) = (_once(op, folder, bytecode) for _ in range(2))
                if turn:
                    imports.append(imported)
                    colds.append(first)
                    warms.append(again)
            cold[op], warm[op] = statistics.median(colds), statistics.median(warms)
    return {"import": statistics.median(imports), "cold": max(cold.values()), "from cache": max(warm.values())}


def resnet_kernels() -> dict[str, float]:
    """Seconds that the compiler takes for all kernels of ResNet-50's backward pass, cold and from the disk cache."""
    code = _RESNET.format(root=str(Path(__file__).resolve().parent.parent))
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        environment = {**os.environ, "BACKSTROKE_CACHE_DIR": folder}
        cold, warm = (
            float(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)
            for _ in range(2)
        )
    return {"resnet cold": cold, "resnet from cache": warm}


def call_overhead() -> float:
    """Seconds of a ReluGrad call on 16 elements: all of it, the kernel included."""
    x = np.ones(16, np.float32)
    bs.relu_grad(x, x)
    return min(timeit.repeat(lambda: bs.relu_grad(x, x), number=20_000, repeat=7)) / 20_000
