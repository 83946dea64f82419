"""Where the time of a training step goes: forward, loss, backward, update."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import machine

_SECONDS, _MOST = 2.0, 200


def run(model: Path | None, batch_size: int) -> dict[str, Any]:
    """The median milliseconds of each part of a step, on random data."""
    from .demo import digits_model
    from .losses import cross_entropy
    from .model_file import ModelFile
    from .network import Network
    from .optimizers import AdamW, Updates

    network = Network(ModelFile(digits_model() if model is None else model), None, "all", 0)
    updates, rng = Updates(AdamW(), network.parameters), np.random.default_rng(0)
    feeds = {}
    for port in network.inputs:
        shape = [batch_size if port.batch is None else port.batch]
        for size in port.shape[1:] if port.shape else (None,):
            if size is None:
                raise ValueError(f"model: the sizes of its input {port.name!r} are not fixed: {port.shape}")
            shape.append(size)
        kind = port.dtype or np.dtype(np.float32)
        feeds[port.name] = rng.normal(size=shape).astype(kind) if kind.kind == "f" else np.zeros(shape, kind)
    output = network.forward(feeds)
    if output.ndim < 2:
        raise ValueError(f"model: its output has shape {output.shape}; expected (samples, classes, ...)")
    labels = rng.integers(0, output.shape[1], output.shape[:1] + output.shape[2:])
    parts: dict[str, Callable[[], object]] = {
        "forward": lambda: network.forward(feeds),
        "loss": lambda: cross_entropy.run(output, labels, network.seed(output), 1 / labels.size),
        "backward": network.backward,
        "update": lambda: updates.step(network.gradients, 1e-6),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    network.begin_step(0, several=False)
    began, turns = time.perf_counter(), 0
    while turns < 5 or (time.perf_counter() - began < _SECONDS and turns < _MOST):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            times[name].append(time.perf_counter() - start)
        turns += 1
    parts_ms = {name: 1e3 * statistics.median(taken[2:]) for name, taken in times.items()}
    total = sum(parts_ms.values())
    return {
        "model": "the demo's" if model is None else str(model),
        "batch_size": len(labels),
        "threads": machine.get_num_threads(),
        "parameters": sum(p.size for p in network.parameters.values()),
        "milliseconds": parts_ms,
        "step": total,
        "samples_per_second": len(labels) / total * 1e3,
    }


def text(found: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = [
        f"{found['model']}: {found['parameters']:,} parameters, batch {found['batch_size']}, {found['threads']} threads"
    ]
    lines += [f"  {name:10}{value:10.3f} ms" for name, value in found["milliseconds"].items()]
    lines.append(f"  {'step':10}{found['step']:10.3f} ms   {found['samples_per_second']:,.0f} samples/s")
    return "\n".join(lines)
