"""The other systems, one adapter each, for conformance tests and benchmarks alike. Every one is optional.

A peer has a name, a version and a number of threads, and `calls(problem, arguments, out)`: what to time, or to take an
answer from, or None where it has no such op. `problem` has `op`, `shape`, `options`, `keywords`, `dtype` and `entry`,
the op's line in the registry. The three systems that we speak the dialect of are also called in their own words:
`ort.run`, `onednn.run` and `tfjs.run`, each in a process of its own, which may die.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Call = Callable[[], object]
Calls = tuple[Call, "Call | None"]  # as called (a fresh output), and with the output given where that can be

# module and class; ours comes first.
TABLE = (
    ("ours", "Ours"),
    ("ours", "NumPy"),
    ("pytorch", "Torch"),
    ("ort", "OnnxRuntime"),
    ("onednn", "OneDnn"),
    ("tfjs", "TensorFlowJs"),
    ("jax_cpu", "Jax"),
)
DIALECTS = ("ort", "onednn", "tfjs")


class Peer(Protocol):
    """A system that answers and is timed."""

    name: str

    def version(self) -> str: ...
    def threads(self, count: int) -> None: ...
    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None: ...


def installed() -> tuple[list[Peer], dict[str, str]]:
    """The peers that are here, ours first, and why the others are not."""
    peers: list[Peer] = []
    absent = {}
    for module, name in TABLE:
        kind = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        try:
            peers.append(kind())
        except ImportError as error:
            absent[kind.name] = str(error)
    return peers, absent


def named(name: str) -> Peer:
    """The peer of that name; nothing else is imported."""
    for module, kind in ((importlib.import_module(f"{__name__}.{module}"), kind) for module, kind in TABLE):
        if getattr(module, kind).name == name:
            peer: Peer = getattr(module, kind)()
            return peer
    raise ValueError(f"no peer is called {name}")


@functools.cache
def why_absent(dialect: str) -> str:
    """'' where the system of a dialect can be called, otherwise why not."""
    reason: str = importlib.import_module(f"{__name__}.{dialect}").available()
    return reason


def answer(peer: Peer, problem: Any, arguments: list[Any], out: Any) -> list[np.ndarray] | None:
    """What a peer computes for a problem, as NumPy arrays; None where it has no such op."""
    calls = peer.calls(problem, arguments, out)
    if calls is None:
        return None
    found = calls[0]()
    each = found if isinstance(found, (tuple, list)) else [found]
    return [_array(a) for a in each if a is not None]


def _array(a: Any) -> np.ndarray:
    if "bfloat16" in str(getattr(a, "dtype", "")) and hasattr(a, "float"):  # a tensor of torch, which NumPy cannot take
        a = a.float()
    return np.asarray(a)
