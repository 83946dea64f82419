"""From a Python function to machine code in this process: memory first, then the disk cache, then LLVM."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from . import cache, target
from .target import Target, current, host
from .types import Param, Type, i64, pointer, scalar

_PACKAGE = Path(__file__).resolve().parent.parent
_ABOVE = ("dialects", "graph", "training")  # half of the sources; most kernels, and their first calls, do without
_lock = threading.RLock()
# llvmlite's own, around each of its calls: one that another thread is in would stay locked in a forked child.
_llvm_lock: AbstractContextManager[Any] = getattr(llvm.ffi.lib, "_lock", None) or nullcontext()
_compiled: dict[tuple[Hashable, ...], Function] = {}
on_switch = target.on_switch


@dataclass
class Counts:
    """What has been done in this process."""

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0


counts = Counts()


@dataclass(frozen=True)
class Function:
    """Machine code in memory. It stays there until the process ends."""

    name: str
    address: int
    params: tuple[Param, ...]
    target: Target
    from_cache: bool
    seconds: float
    pack: Callable[..., bytes] = field(repr=False)


def function(
    build: Callable[..., None], *params: Param, returns: Type | None = None, wrap: bool = False, **constants: Any
) -> Function:
    """The compiled form of `build(k, *params, **constants)`, made at most once for each target.

    With `wrap` the machine code is a kernel, `void (arguments*, piece)`: `build(k, piece, *params)` does one piece of
    the work, and its arguments lie in memory, eight bytes each, as `pack` lays them. What is no kernel is the engine's
    own code, a few hundred instructions that run once in a call; it is compiled ten times as fast, hardly optimised.
    """
    options = ((word, _exactly(value)) for word, value in sorted(constants.items()))
    key = (build, params, returns, wrap, *options, current())
    known = _compiled.get(key)
    if known is None:
        with _lock:
            known = _compiled.get(key)
            if known is None:
                known = _compiled[key] = _make(build, params, returns, wrap, constants)
    return known


def kernel(build: Callable[..., None], *params: Param, **constants: Any) -> Function:
    """A kernel: see `function`."""
    return function(build, *params, wrap=True, **constants)


def emit_ir(target: Target, build: Callable[..., None], *params: Param, wrap: bool = True, **constants: Any) -> str:
    """The LLVM IR that a kernel is traced to."""
    return _trace("kernel", target, build, params, None, wrap, constants)


def emit_assembly(
    target: Target, build: Callable[..., None], *params: Param, wrap: bool = True, **constants: Any
) -> str:
    """The assembly of a kernel, for any target that LLVM knows."""
    with _optimised(target, emit_ir(target, build, *params, wrap=wrap, **constants), wrap) as (machine, module):
        return str(machine.emit_assembly(module))


def emit_object(
    target: Target, build: Callable[..., None], *params: Param, wrap: bool = True, **constants: Any
) -> bytes:
    """The object code of a kernel, for any target that LLVM knows."""
    with _optimised(target, emit_ir(target, build, *params, wrap=wrap, **constants), wrap) as (machine, module):
        return bytes(machine.emit_object(module))


def _make(
    build: Callable[..., None], params: tuple[Param, ...], returns: Type | None, wrap: bool, constants: dict[str, Any]
) -> Function:
    start = time.perf_counter()
    goal = current()
    label = "_".join([build.__name__.strip("_"), *(_describe(value) for value in constants.values())])
    name = "".join(c if c.isalnum() else "_" for c in label)[:100]
    recipe = repr((build.__module__, build.__qualname__, params, returns, wrap))
    recipe += "".join(f";{word}={_describe(value)}" for word, value in sorted(constants.items()))
    text, functions = None, [build, *filter(callable, constants.values())]
    fingerprints = [_fingerprint(above) for above in sorted({False, any(map(_from_above, functions))})]
    if not all(map(_fingerprinted, functions)):
        # Its IR speaks for it.
        text = recipe = _trace(name, goal, build, params, returns, wrap, constants)
    key = hashlib.sha256("\n".join((*fingerprints, goal.key, name, recipe)).encode()).digest()
    image = cache.read(key)
    from_cache = image is not None
    if image is None:
        text = text or _trace(name, goal, build, params, returns, wrap, constants)
        with _optimised(goal, text, wrap) as (machine, module):
            image = bytes(machine.emit_object(module))
        cache.write(key, image)
    address = _load(image, name, key)
    seconds = time.perf_counter() - start
    counts.seconds += seconds
    if from_cache:
        counts.loaded += 1
    else:
        counts.compiled += 1
    pack = struct.Struct("".join(param.pack for param in params)).pack if wrap else lambda *_: b""
    return Function(name, address, params, goal, from_cache, seconds, pack)


def _describe(constant: Any) -> str:
    """A constant as text that is the same in every process."""
    if callable(constant):
        return f"{constant.__module__}.{getattr(constant, '__qualname__', type(constant).__qualname__)}"
    return repr(constant)


def _exactly(constant: Any) -> Hashable:
    """A constant as a key: 1, 1.0 and True are equal, and 0.0 and -0.0, but the code made of them is not."""
    return type(constant), repr(constant) if isinstance(constant, float) else constant


def _fingerprinted(function: Callable[..., Any]) -> bool:
    """Whether the name of a function tells its source: foreign ones, closures and lambdas have no fingerprint here."""
    package = f"{__package__.split('.')[0]}."
    return function.__module__.startswith(package) and getattr(function, "__qualname__", "<").isidentifier()


def _from_above(function: Callable[..., Any]) -> bool:
    """Whether a function comes from a room that no room with kernels of its own asks for anything."""
    return function.__module__.split(".")[1:2] in [[room] for room in _ABOVE]


@functools.cache
def _fingerprint(above: bool = False) -> str:
    """The sources that kernels are traced by, and the versions of what compiles them; or those of the rooms above."""
    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for name, path in _sources(str(_PACKAGE), ""):
        if (name.split("/")[0] in _ABOVE) == above:
            with open(path, "rb", buffering=0) as file:
                digest.update(name.encode() + b"\0" + file.read())
    return digest.hexdigest()


def _sources(folder: str, name: str) -> Iterator[tuple[str, str]]:
    """The package's files of Python, in one order everywhere; every process asks, so nothing slower than this."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry.path, f"{name}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield name + entry.name, entry.path


def _trace(
    name: str,
    target: Target,
    build: Callable[..., None],
    params: tuple[Param, ...],
    returns: Type | None,
    wrap: bool,
    constants: dict[str, Any],
) -> str:
    from .trace import Trace  # a warm cache never needs it

    if not wrap:
        k = Trace(target, name, params, returns)
        build(k, *k.arguments, **constants)
        return k.finish()
    k = Trace(target, name, (pointer(i64), scalar(i64)))
    block, piece = k.arguments
    build(k, piece, *(k.argument(block, i, param) for i, param in enumerate(params)), **constants)
    return k.finish()


@contextmanager
def _optimised(target: Target, text: str, fully: bool = True) -> Iterator[tuple[llvm.TargetMachine, llvm.ModuleRef]]:
    """The machine and the optimised module, for a while.

    They are closed here, the module before its context: a garbage collector that finds both in a cycle (with the
    frames of an exception, say) keeps no order, and a module that outlives its context ends the process.
    """
    with _lock, llvm.create_context() as context, target.machine(3 if fully else 0) as machine:
        try:
            module = llvm.parse_assembly(text, context)
        except RuntimeError as error:
            raise _refused(error) from error
        with module:
            try:
                module.verify()  # without it, a value used outside its loop ends the process
            except RuntimeError as error:
                raise _refused(error) from error
            options = llvm.create_pipeline_tuning_options(3)
            options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
            with options, llvm.create_pass_builder(machine, options) as builder:
                with builder.getModulePassManager() if fully else llvm.create_new_module_pass_manager() as passes:
                    if not fully:
                        passes.add_sroa_pass()  # variables into registers: the rest is as it was written
                    passes.run(module, builder)
                yield machine, module


def _refused(error: RuntimeError) -> Exception:
    from .values import TraceError

    return TraceError(f"LLVM refuses what was traced: {error}")


@functools.cache
def _jit() -> llvm.LLJIT:
    jit = llvm.create_lljit_compiler(host().machine())
    keep(jit)
    return jit


def _load(image: bytes, name: str, key: bytes) -> int:
    library = llvm.JITLibraryBuilder().add_object_img(image).add_current_process().export_symbol(name)
    loaded = library.link(_jit(), key.hex() + os.urandom(4).hex())
    keep(loaded)
    return int(loaded[name])


def keep(thing: object) -> None:
    """Never let it go: workers may run its code until the very end of the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _before_fork() -> None:
    _lock.acquire()
    _llvm_lock.__enter__()


def _after_fork() -> None:
    _llvm_lock.__exit__(None, None, None)
    _lock.release()


if hasattr(os, "register_at_fork"):  # a child must not inherit a compiler in the middle of its work
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
