"""What the first moments cost: import, the first call from cold and from the disk cache, and a small call."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import backstroke as bs
from backstroke.registry import OPS
from peers import Peer

ROOT = Path(__file__).resolve().parent.parent
_PROCESSES = 5

_FIRST_CALL = """
import json, sys, time
start = time.perf_counter()
import backstroke
imported = time.perf_counter()
import numpy as np
from backstroke.registry import OPS
op = next(op for op in OPS if op.name == sys.argv[1])
arguments, keywords = op.example(np.random.default_rng(0), op.small, np.float32)
ready = time.perf_counter()
op.function(*arguments, **keywords)
first = time.perf_counter()
print(json.dumps([imported - start, first - ready]))
"""

# Another system: its import; then all that it does between having the data and giving the first answer.
_FIRST_CALL_OF_A_PEER = """
import json, sys, time
import peers
from benchmarks.problems import Problem
from backstroke.registry import OPS
op = next(op for op in OPS if op.name == sys.argv[1])
problem = Problem(op.name, op.small.shape, "startup", op.small.options)
arguments = problem.arguments()
out = problem.output(arguments)
start = time.perf_counter()
peer = peers.named(sys.argv[2])
imported = time.perf_counter()
calls = peer.calls(problem, arguments, out)
if calls is None:
    print("null")
else:
    calls[0]()
    print(json.dumps([imported - start, time.perf_counter() - imported]))
"""

_RESNET = """
from backstroke.jit.compile import counts
from benchmarks.problems import PROBLEMS
for problem in PROBLEMS:
    if problem.group == "conv resnet_50":
        problem.entry.function(*problem.arguments(), **problem.keywords)
print(counts.seconds)
"""


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="backstroke-bytecode-")


def _process(code: str, *arguments: str, folder: str = "") -> Any:
    """What a fresh process prints that runs `code`; its objects are kept in `folder`."""
    # A package that pip has installed has its bytecode beside it; here it goes to a folder of ours.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = _bytecode().name
    if folder:
        environment["BACKSTROKE_CACHE_DIR"] = folder
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def first_calls(op: str, everybody: list[Peer]) -> dict[str, Any]:
    """Seconds: our import, our first call cold and from the disk cache (medians), and the other systems'."""
    imports, colds, warms = [], [], []
    for turn in range(_PROCESSES + 1):  # the first one compiles what Python makes of the sources
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o700)
            (imported, first), (_, again) = (_process(_FIRST_CALL, op, folder=folder) for _ in range(2))
        if turn:
            imports.append(imported)
            colds.append(first)
            warms.append(again)
    median = statistics.median
    others = {}
    for peer in everybody:
        if peer.name in ("backstroke", "numpy"):
            continue
        if _process(_FIRST_CALL_OF_A_PEER, op, peer.name):  # it has the op
            found = [_process(_FIRST_CALL_OF_A_PEER, op, peer.name) for _ in range(3)]
            others[peer.name] = [median(times) for times in zip(*found, strict=True)]
    return {
        "op": op,
        "import": median(imports),
        "cold": median(colds),
        "from cache": median(warms),
        "peers": {name: {"import": imported, "first": first} for name, (imported, first) in others.items()},
    }


def resnet_kernels(_: list[Peer]) -> dict[str, Any]:
    """Seconds that the compiler takes for all kernels of ResNet-50's backward pass, cold and from the disk cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        cold, warm = (float(_process(_RESNET, folder=folder)) for _ in range(2))
    return {"cold": cold, "from cache": warm}


def call_overhead(_: list[Peer]) -> dict[str, Any]:
    """Seconds of a ReluGrad call on 16 elements: all of it, the kernel included."""
    x = np.ones(16, np.float32)
    bs.relu_grad(x, x)
    return {"seconds": min(timeit.repeat(lambda: bs.relu_grad(x, x), number=20_000, repeat=7)) / 20_000}


OVERHEAD, RESNET = "startup: a small call", "startup: ResNet-50"
STARTS: dict[str, Callable[[list[Peer]], dict[str, Any]]] = {
    OVERHEAD: call_overhead,
    RESNET: resnet_kernels,
    **{f"startup: {op.name}": functools.partial(first_calls, op.name) for op in OPS},
}
QUICK = (OVERHEAD, "startup: sigmoid_grad")
