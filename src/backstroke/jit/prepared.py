"""A prepared call: kernels whose arrays' shapes and types are known beforehand, behind a built-in of machine code.

`Prepared(...).call(array...)` reads the arrays' headers. Where they are what was prepared for (exact ndarrays of those
types and shapes, C-contiguous, aligned, what is written apart from everything else) it runs the kernels and answers
True, in less than a microsecond if there is little to do. Otherwise it touches nothing and answers False, and the
caller checks in Python. As `launch.py`, whose headers and conventions these are; that one takes any shape, this one
runs several kernels in turn, each of which may stop the rest by storing something in the `status` word.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import compile as compiler
from . import launch as headers
from .threads import pool
from .types import Param, i32, i64, pointer, scalar

if TYPE_CHECKING:
    from .compile import Function
    from .trace import Pointer, Trace, Value

# The table: words of the call, words of each array, then each step's, then the constants.
_ARRAY, _ANSWER, _UNLOCK, _LOCK, _RUN, _STATE, _ALONE, _BUSY, _STATUS, _STEPS, _CONSTANTS, _AT_ONCE = range(12)
_HEAD = 12
_DESCRIPTOR, _RANK, _BYTES, _SHAPE = range(4)
_MOST_AXES = 5
_ARRAY_WORDS = _SHAPE + _MOST_AXES
_KERNEL, _PIECES = range(2)
_STEP_WORDS, _MOST_STEPS, _MOST_WORDS = 2, 6, 32


@dataclass(frozen=True)
class Step:
    """A kernel and its pieces."""

    kernel: Function
    pieces: int


class Prepared:
    """Kernels in turn, over arrays of known shapes and types; the last `written` of the arrays are written.

    Every kernel takes the addresses of the arrays, the address of the status word, and the constants, which `params`
    describes from the status on. With `alone`, two calls never run at once: the second is sent back, and `run` is for
    one thread at a time. With `at_once` the
    work is so little that it is done without other threads, and with Python's lock held.
    """

    def __init__(
        self,
        arrays: Sequence[tuple[tuple[int, ...], np.dtype]],
        params: Sequence[Param],
        constants: Sequence[int | float],
        steps: Sequence[Step],
        *,
        written: int = 1,
        alone: bool = False,
        at_once: bool = False,
    ) -> None:
        self._steps, self._count = steps, len(arrays)
        table = self._table = np.zeros(_HEAD + len(arrays) * _ARRAY_WORDS + _MOST_STEPS * _STEP_WORDS + 32, np.int64)
        self._status = table.__array_interface__["data"][0] + 8 * _STATUS
        self._pack = struct.Struct("".join(p.pack for p in params)).pack
        words = np.frombuffer(self._pack(*[0] * len(arrays), self._status, *constants), np.int64)[len(arrays) :]
        assert len(words) + len(arrays) <= _MOST_WORDS
        assert len(steps) <= _MOST_STEPS
        self._constants = constants
        run, state = (1, 0) if at_once else pool.entry() if pool.ready() else (0, 0)
        table[[_ARRAY, _ALONE, _AT_ONCE, _RUN, _STATE, _STEPS, _CONSTANTS]] = (
            id(np.ndarray), alone, at_once, run, state, len(steps), len(words),
        )  # fmt: skip
        for slot, name in (
            (_ANSWER, "PyBool_FromLong"), (_UNLOCK, "PyEval_SaveThread"), (_LOCK, "PyEval_RestoreThread"),
        ):  # fmt: skip
            table[slot] = ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0
        place = _HEAD
        for shape, dtype in arrays:
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            table[place : place + _SHAPE] = id(dtype), len(shape), size
            table[place + _SHAPE : place + _SHAPE + len(shape)] = shape
            place += _ARRAY_WORDS
        for step in steps:
            table[place : place + _STEP_WORDS] = step.kernel.address, step.pieces
            place += _STEP_WORDS
        start = _HEAD + len(arrays) * _ARRAY_WORDS + _MOST_STEPS * _STEP_WORDS
        table[start : start + len(words)] = words
        self.call: Callable[..., bool] = _never
        plain = all(dtype is np.dtype(dtype.type) and len(shape) <= _MOST_AXES for shape, dtype in arrays)
        if plain and headers._headers_are_known():
            self.call = _builtin(len(arrays), written)(table)

    def run(self, *addresses: int) -> bool:
        """Run on arrays that the caller has checked; whether no kernel stopped the rest."""
        status = np.zeros(1, np.int64)
        place = status.__array_interface__["data"][0]
        packed = self._pack(*addresses, place, *self._constants)
        for step in self._steps:
            pool.run(step.kernel, packed, step.pieces)
            if status[0]:
                return False
        return True


@functools.cache
def _builtin(arrays: int, written: int) -> Callable[[np.ndarray], Callable[..., bool]]:
    code = compiler.function(
        launch, pointer(i64), pointer(i64), scalar(), returns=i64, arrays=arrays, written=written
    )  # fmt: skip
    method = headers._Method(b"call", code.address, headers._METH_FASTCALL, None)
    compiler.keep(method)
    new = ctypes.pythonapi["PyCFunction_NewEx"]
    new.argtypes, new.restype = [ctypes.POINTER(headers._Method), ctypes.py_object, ctypes.c_void_p], ctypes.py_object

    def make(table: np.ndarray) -> Callable[..., bool]:
        made: Callable[..., bool] = new(ctypes.byref(method), table, None)
        return made

    return make


def launch(k: Trace, owner: Pointer, arguments: Pointer, count: Value, *, arrays: int, written: int) -> None:
    """`call(array...) -> bool`."""
    table = headers._Object(k, owner.address).array(headers._DATA)
    done = k.var(0, i64)
    with k.when(count == arrays):
        things = [headers._Object(k, arguments[i]) for i in range(arrays)]
        known = [a.field(headers._TYPE) == table[_ARRAY] for a in things]
        with k.when(functools.reduce(lambda a, b: a & b, known)):
            entries = [table.at(_HEAD + i * _ARRAY_WORDS) for i in range(arrays)]
            plain = table[_RUN] != 0
            for i, (a, entry) in enumerate(zip(things, entries, strict=True)):
                wanted = headers._CONTIGUOUS_ALIGNED | (headers._WRITEABLE if i >= arrays - written else 0)
                plain &= (a.field(headers._FLAGS, i32) & wanted) == wanted
                plain &= (a.field(headers._DESCRIPTOR) == entry[_DESCRIPTOR]) & (
                    k.to(i64, a.field(headers._RANK, i32)) == entry[_RANK]
                )
            with k.when(plain):
                differ = k.var(0, i64)
                for a, entry in zip(things, entries, strict=True):
                    for axis in k.range(entry[_RANK]):
                        differ.set(differ | (a.array(headers._SHAPE)[axis] ^ entry[_SHAPE + axis]))
                data = [a.field(headers._DATA) for a in things]
                fits = differ == 0
                for i in range(arrays - written, arrays):
                    for j in range(i):
                        apart = data[i] - data[j]
                        fits &= (apart >= entries[j][_BYTES]) | (apart <= 0 - entries[i][_BYTES])
                with k.when(fits):
                    _run(k, table, data, written, done)
    k.give(k.call(table[_ANSWER], done.read(), returns=i64))


def _run(k: Trace, table: Pointer, data: list[Value], written: int, done: Any) -> None:
    mine = k.var(1, i64)
    with k.when(table[_ALONE] != 0):
        mine.set(k.to(i64, k.compare_and_swap(table.at(_BUSY), 0, 1)))
    with k.when(mine != 0):
        block = k.stack(i64, _MOST_WORDS)
        for i, address in enumerate(data):
            block.store(i, address, align=8)
        steps = table.at(_HEAD + len(data) * _ARRAY_WORDS)
        constants = steps.at(_MOST_STEPS * _STEP_WORDS)
        for word in k.range(table[_CONSTANTS]):
            block.store(word + len(data), constants[word], align=8)
        with k.when(table[_AT_ONCE] != 0):
            restore = k.default_float_environment()
            for number in k.range(table[_STEPS]):
                with k.when(table[_STATUS] == 0):
                    step = steps.at(number * _STEP_WORDS)
                    kernel = step[_KERNEL]
                    for piece in k.range(step[_PIECES]):
                        k.call(kernel, block, piece)
            restore()
        with k.when(table[_AT_ONCE] == 0):
            thread = k.call(table[_UNLOCK], returns=i64)
            for number in k.range(table[_STEPS]):
                with k.when(table[_STATUS] == 0):
                    step = steps.at(number * _STEP_WORDS)
                    k.call(table[_RUN], table[_STATE], step[_KERNEL], block, step[_PIECES])
            k.call(table[_LOCK], thread)
        done.set(k.to(i64, table[_STATUS] == 0))
        with k.when(table[_ALONE] != 0):
            table[_STATUS] = 0
            k.atomic_store(table.at(_BUSY), 0)


def _never(*_: object) -> bool:
    return False
