"""valgrind's memcheck over a small run of every kernel: `python tests/robustness/memcheck.py`.

valgrind 3.19 knows no AVX-512, so the kernels are those of x86-64-v3. They are compiled beforehand, outside valgrind,
and loaded from the object cache. Every op runs on the registry's small problem in every type, on one thread and on two,
and with outputs that count as too large for the caches; convolution with each of its algorithms in both layouts.
Outputs and inputs lie in blocks of exactly their size, so that one byte read or written beyond is an error. Errors of
Python and the libraries that are not ours to mend are in `valgrind.supp`, each with its reason.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = "x86-64-v3"
SHAPES = [(2, 6, 7, 9)]
WINDOWS: list[dict[str, Any]] = [
    {"outputs": 13, "kernel": (3, 3), "pads": 1},
    {"outputs": 9, "kernel": (1, 1)},
    {"outputs": 6, "kernel": (3, 2), "pads": 1, "strides": 2, "group": 6},
]


def run_every_kernel() -> None:
    """What runs under valgrind."""
    import ctypes

    import numpy as np

    import backstroke as bs
    from backstroke import known, memory
    from backstroke.convolution.choices import ALGORITHMS
    from backstroke.registry import OPS, Example, Op, results

    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

    def exact(a: np.ndarray) -> np.ndarray:
        """The array in a block of its own, on whose end valgrind keeps watch."""
        place = libc.malloc(max(1, a.nbytes))
        block = (ctypes.c_char * a.nbytes).from_address(place)
        copy: np.ndarray = np.frombuffer(block, a.dtype if a.dtype.name != "bfloat16" else np.uint16, a.size)
        copy = copy.view(a.dtype).reshape(a.shape)
        copy[...] = a
        return copy

    def run(op: Op, example: Example, dtype: np.dtype) -> None:
        arguments, keywords = op.example(np.random.default_rng(0), example, dtype)
        arguments = [exact(a) if isinstance(a, np.ndarray) else a for a in arguments]
        answer = op.function(*arguments, **keywords)
        outs = tuple(exact(np.zeros_like(a)) for a in results(answer))
        op.function(*arguments, **keywords, out=outs if isinstance(answer, tuple) else outs[0])
        for mine, other in zip(outs, results(answer), strict=True):
            assert mine.tobytes() == other.tobytes()

    count = 0
    for threads, every_output_is_large in ((1, False), (2, False), (2, True)):
        bs.set_num_threads(threads)
        if every_output_is_large:
            memory.large_output = lambda inputs: 0
            known.forget()
        for op in OPS:
            for dtype in op.dtypes:
                run(op, op.small, dtype)
                count += 1
    for algorithm in ALGORITHMS:
        os.environ["BACKSTROKE_CONV_ALGORITHM"] = algorithm
        for op, shape, options in itertools.product((op for op in OPS if op.family == "convolution"), SHAPES, WINDOWS):
            for layout in ("NCX", "NXC"):
                n, c, *size = shape
                there = shape if layout == "NCX" else (n, *size, c)
                run(op, Example(there, {**options, "layout": layout}), np.dtype(np.float32))
                count += 1
    info = bs.info()
    print(f"{count} runs of {len(OPS)} ops, {info['kernels_from_cache']} kernels, compiled: {info['kernels_compiled']}")


def run_one_beyond() -> None:
    """A kernel that is made to read and write four bytes too far, of which valgrind must tell."""
    import ctypes

    import numpy as np

    import backstroke as bs

    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    short = np.frombuffer((ctypes.c_char * 68).from_address(libc.malloc(64)), np.float32)
    bs.relu_grad(short, short, out=short)


def check() -> int:
    """Compile everything, then run it under valgrind; -> the number of errors."""
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "BACKSTROKE_CACHE_DIR": folder,
            "BACKSTROKE_TARGET": TARGET,
            "PYTHONMALLOC": "malloc",
            "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
        }
        inside = [sys.executable, "-W", "ignore", __file__, "--inside"]
        subprocess.run(inside, env=environment, check=True, stdout=subprocess.DEVNULL)
        valgrind = [
            "valgrind",
            "--tool=memcheck",
            "--leak-check=no",
            "--error-limit=no",
            "--num-callers=20",
            f"--suppressions={HERE / 'valgrind.supp'}",
        ]
        beyond = [*valgrind, *inside[:-1], "--beyond"]
        proof = subprocess.run(beyond, env=environment, capture_output=True, text=True, check=False)
        if "Invalid read" not in proof.stderr or "Invalid write" not in proof.stderr:
            print("valgrind does not see a kernel that leaves its arrays: nothing is proved\n" + proof.stderr[-3000:])
            return 1
        done = subprocess.run([*valgrind, *inside], env=environment, capture_output=True, text=True, check=False)
    errors = re.search(r"ERROR SUMMARY: (\d+) errors from (\d+) contexts \(suppressed: (\d+)", done.stderr)
    print(done.stdout.strip())
    if done.returncode or errors is None:
        print(done.stderr[-3000:])
        return 1
    print(f"valgrind: {errors[1]} errors, {errors[3]} suppressed")
    if int(errors[1]):
        print("\n".join(re.sub(r"^==\d+== ?", "", line) for line in done.stderr.splitlines())[:6000])
    return int(errors[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--beyond", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        run_every_kernel()
    elif chosen.beyond:
        run_one_beyond()
    else:
        sys.exit(min(1, check()))
