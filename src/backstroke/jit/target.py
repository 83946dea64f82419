"""What the machine is: vector width, registers, features. `BACKSTROKE_TARGET` names another than the host.

Everything that depends on the CPU asks a `Target`; tile sizes and instruction choices follow from it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import llvmlite.binding as llvm

from .types import Type

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

# What each level adds to the one before, by LLVM's names (System V psABI, "x86-64-v2" and up).
_LEVELS = {
    "x86-64-v2": frozenset(("cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2")),
    "x86-64-v3": frozenset(("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")),
    "x86-64-v4": frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}
NAMES = ("host", *_LEVELS)


@dataclass(frozen=True)
class Target:
    """A CPU to compile for."""

    name: str
    triple: str
    cpu: str
    features: frozenset[str]
    lacks: frozenset[str] = frozenset()  # what this very machine has not, though its CPU's name promises it

    @property
    def arch(self) -> str:
        return self.triple.split("-")[0].replace("amd64", "x86_64").replace("arm64", "aarch64")

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"

    @property
    def vector_bytes(self) -> int:
        if "avx512f" in self.features:
            return 64
        return 32 if "avx2" in self.features else 16

    @property
    def registers(self) -> int:
        """How many vector registers a tile may use."""
        return 16 if self.is_x86 and "avx512f" not in self.features else 32

    @property
    def has_fma(self) -> bool:
        return not self.is_x86 or bool({"fma", "avx512f"} & self.features)

    @property
    def has_float16(self) -> bool:
        """Whether conversions between float16 and float32 are instructions."""
        return self.arch == "aarch64" or bool({"f16c", "avx512f"} & self.features)

    @property
    def has_bfloat16(self) -> bool:
        """Whether float32 vectors are rounded to bfloat16 by an instruction."""
        return {"avx512bf16", "avx512dq"} <= self.features

    @property
    def has_pairs(self) -> bool:
        """Whether products of pairs of bfloat16 are added to float32 by an instruction."""
        return self.has_bfloat16

    def lanes(self, type: Type) -> int:
        """Elements of a vector register that computes with elements of `type`."""
        return self.vector_bytes // type.compute.bytes

    @property
    def key(self) -> str:
        """All that decides the code which LLVM makes."""
        return "|".join((self.triple, self.cpu, self.flags))

    @property
    def flags(self) -> str:
        """The features as LLVM takes them."""
        return ",".join([f"+{name}" for name in sorted(self.features)] + [f"-{name}" for name in sorted(self.lacks)])

    def machine(self, effort: int = 3) -> llvm.TargetMachine:
        """LLVM's machine for this target; with an effort of 0 it is quick, and its code is not."""
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.flags, opt=effort, reloc="pic", codemodel="small"
        )


@functools.cache
def host() -> Target:
    """The machine we run on."""
    features = llvm.get_host_cpu_features()
    has = frozenset(name for name, on in features.items() if on)
    return Target("host", llvm.get_process_triple(), llvm.get_host_cpu_name(), has, frozenset(features) - has)


_SHARE = 16 << 20  # of the last cache, for each CPU: a rented machine names the cache of all its neighbours


@functools.cache
def last_level_cache() -> int:
    """What this process may hope for of the machine's largest cache, in bytes; 32 MB where the system does not say."""
    name = "SC_LEVEL3_CACHE_SIZE"
    size = os.sysconf(name) if hasattr(os, "sysconf") and name in os.sysconf_names else 0
    return min(size, _SHARE * (os.cpu_count() or 1)) if size > 0 else 32 << 20


def runnable() -> tuple[str, ...]:
    """The names of the targets whose code this machine can execute."""
    have, names, needed = host(), ["host"], frozenset[str]()
    for name, adds in _LEVELS.items():
        needed |= adds
        if have.is_x86 and needed <= have.features:
            names.append(name)
    return tuple(names)


@functools.cache
def named(name: str) -> Target:
    """The target of that name; a `ValueError` where this machine cannot execute its code."""
    if name == "host":
        return host()
    if name not in _LEVELS:
        raise ValueError(f"BACKSTROKE_TARGET is {name!r}; expected one of {', '.join(NAMES)}")
    levels = list(_LEVELS)
    features = frozenset[str]().union(*(_LEVELS[level] for level in levels[: levels.index(name) + 1]))
    if name not in runnable():
        lacking = sorted(features - host().features) or [f"an x86-64 CPU, this is {host().arch}"]
        raise ValueError(f"BACKSTROKE_TARGET is {name!r}, which this CPU cannot run: it lacks {', '.join(lacking)}")
    return Target(name, host().triple, name, features)


def foreign(triple: str, cpu: str = "generic") -> Target:
    """A target for objects that are emitted here and run elsewhere."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return Target(triple.split("-")[0], triple, cpu, frozenset())


_chosen: Target | None = None
on_switch: list[Callable[[], None]] = []  # what else must know when `using` changes the target


def current() -> Target:
    """The target that kernels are compiled for: `BACKSTROKE_TARGET`, read once, else the host."""
    global _chosen
    if _chosen is None:
        _chosen = named(os.environ.get("BACKSTROKE_TARGET") or "host")
    return _chosen


@contextmanager
def using(target: Target | str) -> Iterator[Target]:
    """Compile for another target for a while (for tests: the whole process is switched)."""
    before, chosen = current(), named(target) if isinstance(target, str) else target
    _switch(chosen)
    try:
        yield chosen
    finally:
        _switch(before)


def _switch(target: Target) -> None:
    global _chosen
    _chosen = target
    for tell in on_switch:
        tell()
