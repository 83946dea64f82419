"""How far everybody's results are from float64: the same float32 data for all, and the twins as the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

import peers
from backstroke.registry import OPS, results

from .problems import Problem

_SHAPES = {"activation": (1000, 1003), "softmax": (1000, 1003), "pooling": (2, 16, 56, 56)}
_CONVOLUTION: dict[str, Any] = {"outputs": 32, "kernel": (3, 3), "pads": 1}
_EVERY_PLACE = ("global_avg_pool_grad",)  # the window is the plane: it takes no kernel


def _problems() -> list[Problem]:
    found = []
    for op in OPS:
        options = dict(op.small.options) if op.family == "pooling" and op.name not in _EVERY_PLACE else {}
        if op.family == "convolution":
            found.append(Problem(op.name, (2, 32, 28, 28), "accuracy", _CONVOLUTION))
        else:
            found.append(Problem(op.name, _SHAPES[op.family], "accuracy", options))
    return found


PROBLEMS = tuple(_problems())


def of(problem: Problem, everybody: list[peers.Peer]) -> dict[str, Any]:
    """Each peer's distances from the twin."""
    arguments = problem.arguments()
    wanted = [np.asarray(a) for a in results(problem.entry.reference(*arguments, **problem.keywords))]
    found = {}
    for peer in everybody:
        # An output of its own for each: whoever writes to what was bound does not change another's answer.
        answer = peers.answer(peer, problem, arguments, problem.output(arguments))
        if answer is not None:
            pairs = [(g.reshape(w.shape), w) for g, w in zip(answer, wanted, strict=False)]  # oneDNN has no db
            found[peer.name] = distances(pairs)
    return {"problem": str(problem), "op": problem.op, "family": problem.entry.family, "ulp": found}


def distances(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Distances in units of float32's last place.

    `max`, `p99` and `mean` are in units of each element's own last place. Where terms cancel, an element has few digits
    left whoever computes it; so `scaled` is the largest error in units of the last place of the largest element.
    """
    offs, scaled = [], 0.0
    for got, want in pairs:
        error = np.abs(got.astype(np.float64) - want)
        unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
        offs.append((error / unit).ravel())
        scaled = max(scaled, float(error.max(initial=0) / np.spacing(np.float32(np.abs(want).max(initial=0)))))
    every = np.concatenate(offs)
    return {
        "max": float(every.max()),
        "p99": float(np.percentile(every, 99)),
        "mean": float(every.mean()),
        "scaled": scaled,
    }
