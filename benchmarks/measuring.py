"""What is measured, as one list of pieces of work: each has a name, a section of the figures file, gives a record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from backstroke.registry import moved_bytes
from peers import Peer

from . import accuracy, limits, scaling, startup, training
from .problems import PROBLEMS, Problem
from .report import Timed
from .timing import interleaved

SECTIONS = ("problems", "training", "by_threads", "sizes", "startup", "accuracy")


@dataclass(frozen=True)
class Circumstances:
    """Who is there, with how many threads and for how many turns."""

    peers: list[Peer]
    threads: int = 2
    rounds: int = 7


@dataclass(frozen=True)
class Work:
    """Something to measure."""

    section: str
    name: str
    measure: Callable[[Circumstances], dict[str, Any]]
    quick: bool = False  # is part of the quick run


def works() -> Iterator[Work]:
    """All there is to measure, in the order in which it stands in the file."""
    for problem in PROBLEMS:
        yield Work("problems", problem.name, functools.partial(_problem, problem), problem.name in QUICK)
    for network in training.PROBLEMS:
        yield Work("training", network.name, functools.partial(_step, network), network is training.PROBLEMS[0])
    for problem in scaling.THREADS:
        measure = functools.partial(_threads, problem)
        yield Work("by_threads", problem.name, measure, problem in scaling.THREADS[::7])
    for problem in scaling.SIZES:
        quick = problem.op == scaling.SIZES[0].op
        yield Work("sizes", problem.name, functools.partial(_problem, problem), quick)
    for name, start in startup.STARTS.items():
        yield Work("startup", name, lambda now, start=start: start(now.peers), name in startup.QUICK)
    for problem in accuracy.PROBLEMS:
        yield Work("accuracy", problem.name, lambda now, problem=problem: accuracy.of(problem, now.peers), True)


# One or two problems of every family, for CI.
QUICK = frozenset(
    (
        "elementwise: sigmoid_grad 32x64x112x112",
        "elementwise bfloat16: relu_grad 32x64x112x112 bfloat16", "softmax: softmax_grad 4096x1000",
        "softmax: log_softmax_grad 64x50257", "small: relu_grad 1000", "small: softmax_grad 10x10",
        "small: softmax_grad 100x100", "max NCX: max_pool_grad 32x128x56x56 kernel2 strides2 pads0",
        "avg NCX: avg_pool_grad 32x128x56x56 kernel2 strides2 pads0",
        "avg NXC: avg_pool_grad 8x28x28x192 kernel3 strides1 pads1 layoutNXC",
        "conv resnet_50: conv_grad resnet_50/res2a_branch2b 8x64x56x56 outputs64 kernel3x3 pads1x1",
        "conv resnet_50: conv_grad resnet_50/res3a_branch2c 8x128x28x28 outputs512 kernel1x1",
        "conv bfloat16 resnet_50: conv_grad resnet_50/res3a_branch2c 8x128x28x28 outputs512 kernel1x1 bfloat16",
    )
)  # fmt: skip


def timed(problem: Problem, now: Circumstances) -> Timed:
    """Times of everybody who has the op, and of the kernels that are the machine's limit, in the same rounds."""
    data = problem.arguments()
    out = problem.output(data)
    able = [peer for peer in now.peers if not problem.hopeless(peer.name)]
    ways = {peer.name: calls for peer in able if (calls := peer.calls(problem, data, out))}
    jobs = [(name, how, call) for name, calls in ways.items() for how, call in enumerate(calls) if call]
    bounds = limits.limits(problem, data, out)
    jobs += [("limit", 2, bound.call) for bound in bounds]
    taken = interleaved([call for *_, call in jobs], now.rounds)
    times: list[dict[str, float]] = [{}, {}, {}]
    scales = [1.0] * (len(jobs) - len(bounds)) + [bound.scale for bound in bounds]
    for (name, how, _), (seconds, _), scale in zip(jobs, taken, scales, strict=True):
        times[how][name] = min(seconds * scale, times[how].get(name, seconds * scale))
    disturbed = sorted({name for (name, *_), each in zip(jobs, taken, strict=True) if each.disturbed})
    moved, called, given, limit = moved_bytes(data, out), times[0], times[1], times[2].get("limit")
    return Timed(problem, moved, problem.operations, called, given, limit, tuple(disturbed))


def _problem(problem: Problem, now: Circumstances) -> dict[str, Any]:
    return timed(problem, now).as_json()


def _step(network: training.TrainingProblem, now: Circumstances) -> dict[str, Any]:
    if not any(peer.name == "torch" for peer in now.peers):  # it makes the networks
        return {"problem": str(network), "seconds": {}, "memory": {}, "absent": {"torch": "not installed"}}
    return training.measured(network, now.threads, min(now.rounds, 5))


def _threads(problem: Problem, now: Circumstances) -> dict[str, Any]:
    """The same problem with one thread, two, and so on; only who can be told how many takes part."""
    record: dict[str, Any] = {}
    able = [peer for peer in now.peers if peer.name not in scaling.ALWAYS_THE_SAME]
    try:
        for count in scaling.thread_counts(now.threads):
            for peer in able:
                peer.threads(count)
            found = timed(problem, Circumstances(able, count, now.rounds)).as_json()
            record = record or {**found, "called": {}, "given": {}}
            record["disturbed"] = sorted({*record["disturbed"], *found["disturbed"]})
            for how in ("called", "given"):
                for name, seconds in found[how].items():
                    record[how].setdefault(name, {})[str(count)] = seconds
    finally:
        for peer in able:
            peer.threads(now.threads)
    return record
