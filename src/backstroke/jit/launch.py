"""The way from a Python call to a kernel without Python in between: a built-in function made of machine code.

To check three arrays and call through `ctypes` takes Python ten microseconds; the work on a few thousand numbers takes
less than one. A launcher is compiled code behind CPython's own calling convention. It reads the headers of the arrays,
and where all is plain (exact ndarrays of one type and shape, C-contiguous, aligned, no partial overlap) it runs the
kernel and answers True: small work at once, larger work on the pool with Python's lock released. Otherwise it touches
nothing and answers False, and the caller checks in Python and says what is wrong. Where the headers do not lie as
expected (another Python, another NumPy) there is no launcher, and nothing is lost but time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import compile as compiler
from .threads import pool
from .types import Type, i32, i64, pointer, scalar

if TYPE_CHECKING:
    from .compile import Function
    from .trace import Pointer, Trace, Value

LIMIT = 16384  # elements that are worked on at once, with Python's lock held
_HEAD = object.__basicsize__
_TYPE = _HEAD - 8
_DATA, _RANK, _SHAPE, _DESCRIPTOR, _FLAGS = (_HEAD + offset for offset in (0, 8, 16, 40, 48))
_CONTIGUOUS_ALIGNED, _WRITEABLE = 0x101, 0x400
_METH_FASTCALL = 0x80

# The launcher's table: words that stay, then one entry for each element type.
_ARRAY, _FLOAT, _ANSWER, _UNLOCK, _LOCK, _RUN, _STATE = range(7)
_ENTRIES = 7
_FOR_TYPE, _KERNEL, _WIDTH, _LARGE_KERNEL, _LARGE = range(5)
_ENTRY_WORDS, _ENTRY_COUNT = 5, 4
_NEVER = 2**62


class _Object:
    """A Python object as compiled code sees it."""

    def __init__(self, k: Trace, place: Value) -> None:
        self._k, self._place = k, place

    def field(self, offset: int, type: Type = i64) -> Value:
        return self._k.dereference(self._place + offset, type)[0]

    def array(self, offset: int) -> Pointer:
        return self._k.dereference(self.field(offset), i64)


def launch(
    k: Trace,
    owner: Pointer,
    arguments: Pointer,
    count: Value,
    *,
    inputs: int,
    scalars: int,
    rows: bool,
    pieces: Callable[..., Any],
) -> None:
    """`launch(input..., out, scalar...) -> bool`. `rows` kernels take (rows, length of a row), others the size."""
    table = _Object(k, owner.address).array(_DATA)
    done = k.var(0, i64)
    with k.when(count == inputs + 1 + scalars):
        things = [_Object(k, arguments[i]) for i in range(inputs + 1 + scalars)]
        arrays, numbers = things[: inputs + 1], things[inputs + 1 :]
        known = [a.field(_TYPE) == table[_ARRAY] for a in arrays] + [x.field(_TYPE) == table[_FLOAT] for x in numbers]
        with k.when(functools.reduce(lambda a, b: a & b, known)):
            rank, descriptor = arrays[0].field(_RANK, i32), arrays[0].field(_DESCRIPTOR)
            plain = (arrays[-1].field(_FLAGS, i32) & _WRITEABLE) != 0
            for a in arrays:
                plain &= (a.field(_FLAGS, i32) & _CONTIGUOUS_ALIGNED) == _CONTIGUOUS_ALIGNED
                plain &= (a.field(_RANK, i32) == rank) & (a.field(_DESCRIPTOR) == descriptor)
            with k.when(plain):
                size, last, differ = k.var(1, i64), k.var(0, i64), k.var(0, i64)
                for axis in k.range(k.to(i64, rank)):
                    last.set(arrays[0].array(_SHAPE)[axis])
                    size.set(size * last)
                    for a in arrays[1:]:
                        differ.set(differ | (a.array(_SHAPE)[axis] ^ last))
                with k.when((differ == 0) & (last > 0) if rows else differ == 0):
                    sizes = (size // last, last.read()) if rows else (size.read(),)
                    _run(k, table, arrays, numbers, descriptor, size.read(), sizes, pieces(*sizes), done)
    k.give(k.call(table[_ANSWER], done.read(), returns=i64))


def _run(
    k: Trace,
    table: Pointer,
    arrays: list[_Object],
    numbers: list[_Object],
    descriptor: Value,
    size: Value,
    sizes: tuple[Value, ...],
    pieces: Value,
    done: Any,
) -> None:
    """Find the kernel for the type, and where it is there and memory does not partly overlap, run it."""
    kernel, width = k.var(0, i64), k.var(0, i64)
    for index in range(_ENTRY_COUNT):
        entry = table.at(_ENTRIES + index * _ENTRY_WORDS)
        with k.when(entry[_FOR_TYPE] == descriptor):
            width.set(entry[_WIDTH])
            kernel.set(k.where(size * width > entry[_LARGE], entry[_LARGE_KERNEL], entry[_KERNEL]))
    data = [a.field(_DATA) for a in arrays]
    fits = (kernel != 0) & ((size <= LIMIT) | (table[_RUN] != 0))
    for place in data[:-1]:
        apart, extent = data[-1] - place, size * width
        fits &= (apart == 0) | (apart >= extent) | (apart <= -extent)
    with k.when(fits):
        block = k.stack(i64, len(sizes) + len(data) + len(numbers))
        for i, value in enumerate([*sizes, *data, *(x.field(_HEAD) for x in numbers)]):
            block.store(i, value, align=8)
        done.set(1)
        with k.when(size <= LIMIT):
            restore = k.default_float_environment()
            for piece in k.range(pieces):
                k.call(kernel.read(), block, piece)
            restore()
        with k.when(size > LIMIT):
            thread = k.call(table[_UNLOCK], returns=i64)
            k.call(table[_RUN], table[_STATE], kernel.read(), block, pieces)
            k.call(table[_LOCK], thread)


@functools.cache
def _headers_are_known() -> bool:
    """Whether an array's header lies as this module reads it."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return False
    probe = np.zeros((3, 5), np.float32)[1:]

    def word(offset: int, kind: Any = ctypes.c_int64) -> int:
        return int(kind.from_address(id(probe) + offset).value)

    return (
        np.ndarray.__basicsize__ >= _FLAGS + 4
        and word(_TYPE) == id(np.ndarray)
        and word(_DATA) == probe.__array_interface__["data"][0]
        and word(_RANK, ctypes.c_int32) == 2
        and [ctypes.c_int64.from_address(word(_SHAPE) + 8 * i).value for i in range(2)] == [2, 5]
        and word(_DESCRIPTOR) == id(probe.dtype)
        and word(_FLAGS, ctypes.c_int32) == probe.flags.num
        and ctypes.c_double.from_address(id(0.75) + _HEAD).value == 0.75
    )


class _Method(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_launchers: list[Launcher] = []


class Launcher:
    """The launcher of one op: `fill` gives it the kernels for a type, `call` is what to call.

    `pieces` tells the number of pieces from the sizes; it is called with ints here and traced there.
    """

    def __init__(self, *, pieces: Callable[..., Any], inputs: int = 2, scalars: int = 0, rows: bool = False) -> None:
        self._shape: dict[str, Any] = {"inputs": inputs, "scalars": scalars, "rows": rows, "pieces": pieces}
        self._table: np.ndarray | None = None
        self.call: Callable[..., bool] = _never
        _launchers.append(self)

    def fill(self, dtype: np.dtype, kernel: Function, *, large: int = _NEVER, is_large: bool = False) -> None:
        """From now on, arrays of `dtype` are for this kernel: those of more than `large` bytes if it is for large ones.

        The others go on being sent back to Python until their kernel is filled in.
        """
        if dtype is not np.dtype(dtype.type) or not _headers_are_known():  # a copy of a type would take an entry
            return
        if self._table is None:
            self._make()
        assert self._table is not None
        run, self._table[_STATE] = pool.entry()
        self._table[_RUN] = run if pool.at_work else 0  # work for many threads goes to Python until there are some
        entries = self._table[_ENTRIES:].reshape(_ENTRY_COUNT, _ENTRY_WORDS)
        entry = next((entry for entry in entries if entry[_FOR_TYPE] in (0, id(dtype))), None)
        if entry is not None:
            compiler.keep(dtype)
            entry[_WIDTH], entry[_LARGE] = dtype.itemsize, large
            entry[_LARGE_KERNEL if is_large else _KERNEL] = kernel.address
            entry[_FOR_TYPE] = id(dtype)

    def _make(self) -> None:
        code = compiler.function(launch, pointer(i64), pointer(i64), scalar(), returns=i64, **self._shape)
        table = np.zeros(_ENTRIES + _ENTRY_WORDS * _ENTRY_COUNT, np.int64)
        table[[_ARRAY, _FLOAT]] = id(np.ndarray), id(float)
        for slot, name in (
            (_ANSWER, "PyBool_FromLong"),
            (_UNLOCK, "PyEval_SaveThread"),
            (_LOCK, "PyEval_RestoreThread"),
        ):
            table[slot] = ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0
        method = _Method(b"launch", code.address, _METH_FASTCALL, None)
        new = ctypes.pythonapi["PyCFunction_NewEx"]
        new.argtypes, new.restype = [ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        self.call = new(ctypes.byref(method), table, None)
        self._table = table
        for thing in (method, table, self.call):
            compiler.keep(thing)

    def forget(self) -> None:
        """Without kernels again."""
        if self._table is not None:
            self._table[_ENTRIES:] = 0


def forget_all() -> None:
    """Let every launcher be filled anew: for another target, or in a forked child, whose pool is a new one."""
    for launcher in _launchers:
        launcher.forget()


def _never(*_: object) -> bool:
    return False


compiler.on_switch.append(forget_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_all)
