"""What shows how times grow: a few problems with every number of threads, and a few ops in every size."""

from __future__ import annotations

import os
from typing import Any

from .problems import Problem

# NumPy uses one thread, XLA all CPUs, whatever one says.
ALWAYS_THE_SAME = ("numpy", "jax")
_OVERLAPPING: dict[str, Any] = {"kernel": 3, "strides": 2, "pads": 1}
_DENSE: dict[str, Any] = {"outputs": 64, "kernel": (3, 3), "pads": 1}

THREADS = (
    Problem("sigmoid_grad", (8, 64, 56, 56), "threads"),
    Problem("quick_gelu_grad", (32, 64, 112, 112), "threads"),
    Problem("softmax_grad", (4096, 1000), "threads"),
    Problem("max_pool_grad", (8, 64, 112, 112), "threads", _OVERLAPPING),
    Problem("avg_pool_grad", (8, 64, 112, 112), "threads", _OVERLAPPING),
    Problem("conv_grad", (8, 64, 56, 56), "threads", _DENSE),
    Problem("conv_grad", (8, 256, 14, 14), "threads", {"outputs": 1024, "kernel": (1, 1)}),
    Problem("conv_grad", (8, 256, 28, 28), "threads", {"outputs": 256, "kernel": (3, 3), "pads": 1, "group": 256}),
)
SIZES = (
    *(Problem("relu_grad", (10**n,), "sizes") for n in range(1, 8)),
    *(Problem("softmax_grad", (rows, 1000), "sizes") for rows in (1, 4, 16, 64, 256, 1024, 4096, 16384)),
    *(Problem("avg_pool_grad", (n, 16, 28, 28), "sizes", _OVERLAPPING) for n in (1, 4, 16, 64, 256, 1024)),
    *(Problem("max_pool_grad", (n, 16, 28, 28), "sizes", _OVERLAPPING) for n in (1, 4, 16, 64, 256, 1024)),
    *(Problem("conv_grad", (n, 64, 28, 28), "sizes", _DENSE) for n in (1, 2, 4, 8, 16, 32)),
)


def thread_counts(most: int) -> list[int]:
    """1, 2, 3, 4, then doubling, and as many as there are CPUs, or as were asked for."""
    most = max(most, os.cpu_count() or 1)
    counts = [*range(1, min(most, 4) + 1)]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts
