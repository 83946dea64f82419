"""What comes in and what goes out: types, layouts, other libraries' arrays, `out=`. All checks are made here, in
Python, before machine code runs; the errors name the argument."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from . import memory
from .jit.types import Type, bf16, f16, f32, f64

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES: dict[np.dtype, Type] = {
    np.dtype(np.float32): f32,
    np.dtype(np.float64): f64,
    np.dtype(np.float16): f16,
    BFLOAT16: bf16,
}
_NAMES = "float32, float64, float16 or bfloat16"


def array(name: str, x: Any) -> np.ndarray:
    """`x` as an ndarray, without a copy: an ndarray, a NumPy scalar, or anything on the CPU with `__dlpack__`."""
    if "numpy.ma" in sys.modules and isinstance(x, np.ma.MaskedArray):  # NumPy imports it late, for it is slow
        raise TypeError(f"{name} is a masked array, whose mask no kernel would see; pass {name}.data or fill it")
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        return _foreign(name, x)
    raise TypeError(f"{name} is a {type(x).__name__}; expected a NumPy array, or an array with __dlpack__")


def floating(name: str, x: Any) -> np.ndarray:
    """`x` as an array of one of the four types that kernels compute with."""
    result = array(name, x)
    if result.dtype not in TYPES:
        raise TypeError(f"{name} has type {_type_name(result.dtype)}; expected {_NAMES}{_advice(result.dtype)}")
    return result


def number(name: str, x: Any) -> float:
    """`x` as a float."""
    if isinstance(x, (bool, np.bool_, str, bytes)) or not hasattr(x, "__float__"):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a number")
    return float(x)


def axis_of(axis: Any, rank: int) -> int:
    """A checked axis, counted from the front."""
    if isinstance(axis, (bool, np.bool_)) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis is a {type(axis).__name__}; expected a whole number")
    index = axis.__index__()
    if not -rank <= index < rank:
        allowed = f"from {-rank} to {rank - 1}" if rank else "none, for an array without axes"
        raise ValueError(f"axis is {index}; expected {allowed}")
    return int(index + rank if index < 0 else index)


def check_alike(inputs: dict[str, np.ndarray]) -> None:
    """All arrays must have the shape and type of the first."""
    (first, a), *others = inputs.items()
    for name, b in others:
        if b.dtype != a.dtype:
            raise TypeError(
                f"{name} has type {_type_name(b.dtype)}, {first} has {_type_name(a.dtype)}; expected one type"
            )
        if b.shape != a.shape:
            raise ValueError(f"{name} has shape {b.shape}, {first} has {a.shape}; expected one shape")


def check_out(
    out: Any, shape: Sequence[int], dtype: np.dtype, inputs: dict[str, np.ndarray], name: str = "out"
) -> np.ndarray:
    """`out` as an array that may be written: of that shape and type, aligned, and apart from the inputs.

    It may be the very same array as an input; it must not overlap one otherwise.
    """
    result = array(name, out)
    if isinstance(out, np.generic):
        raise TypeError(f"{name} is a NumPy scalar, which cannot be written; expected an array")
    if result.dtype != dtype:
        raise TypeError(f"{name} has type {_type_name(result.dtype)}; expected {_type_name(dtype)}")
    if result.shape != tuple(shape):
        raise ValueError(f"{name} has shape {result.shape}; expected {tuple(shape)}")
    if not result.flags.writeable:
        raise ValueError(f"{name} is read-only")
    if not result.flags.aligned:
        raise ValueError(f"{name} is not aligned to its elements")
    for other, x in inputs.items():
        if overlaps(result, x):
            raise ValueError(f"{name} overlaps {other} without being the same array")
    return result


def result(
    out: Any, shape: Sequence[int], dtype: np.dtype, inputs: dict[str, np.ndarray], name: str = "out"
) -> np.ndarray:
    """The array that a function writes: `out`, checked, dense and apart from all inputs; or a new one from the pool."""
    shape = tuple(shape)
    if out is None:
        if math.prod(shape) * dtype.itemsize > 2**62:
            raise ValueError(f"a result of shape {shape} is too large for any memory")
        fresh: np.ndarray = memory.pool.empty(shape, dtype)
        return fresh
    given = check_out(out, shape, dtype, inputs, name)
    if not given.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous; expected an array that lies densely in memory")
    for other, x in inputs.items():
        # Two that share memory and passed the check above are one and the same array.
        if given.size and x.size and address(given) == address(x):
            raise ValueError(f"{name} overlaps {other}")
    return given


def overlaps(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share memory but are not one and the same."""
    if not np.may_share_memory(a, b) or a.size == 0:
        return False
    if a.__array_interface__["data"][0] == b.__array_interface__["data"][0] and a.strides == b.strides:
        return a.shape != b.shape
    try:
        return bool(np.shares_memory(a, b, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def memory_order(*arrays: np.ndarray) -> tuple[int, ...] | None:
    """The order of axes, slowest first, in which all the arrays lie densely and aligned; None where there is none."""
    if not all(a.flags.aligned for a in arrays):
        return None
    first = arrays[0]
    plain = tuple(range(first.ndim))
    if all(a.flags.c_contiguous for a in arrays):
        return plain
    order = tuple(sorted(plain, key=lambda axis: -abs(first.strides[axis])))
    return order if all(a.transpose(order).flags.c_contiguous for a in arrays) else None


def in_order(x: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """`x` with its axes in that order, dense and aligned; copied only where it is not so already."""
    turned: np.ndarray = x.transpose(order)
    if turned.flags.c_contiguous and turned.flags.aligned:
        return turned
    copy = memory.pool.empty(turned.shape, turned.dtype)
    np.copyto(copy, turned)
    return copy


def empty_in_order(shape: Sequence[int], dtype: np.dtype, order: Sequence[int]) -> np.ndarray:
    """A new array of that shape whose axes lie in memory in that order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    dense: np.ndarray = memory.pool.empty(tuple(shape[axis] for axis in order), dtype).transpose(back)
    return dense


def arrange(
    inputs: dict[str, np.ndarray], out: Any
) -> tuple[tuple[int, ...], list[np.ndarray], np.ndarray, np.ndarray]:
    """Inputs of one shape and an output like them, all dense in one order of axes.

    -> (the order, the inputs in it, the result as the caller sees it, the result in the order).
    """
    check_alike(inputs)
    arrays = list(inputs.values())
    first = arrays[0]
    if out is None:
        order = memory_order(*arrays) or tuple(range(first.ndim))
        result = empty_in_order(first.shape, first.dtype, order)
    else:
        result = check_out(out, first.shape, first.dtype, inputs)
        own = memory_order(result)
        if own is None:
            raise ValueError("out is not contiguous; expected an array that lies densely in memory")
        order = memory_order(result, *arrays) or own
    return order, [in_order(x, order) for x in arrays], result, result.transpose(order)


def address(x: np.ndarray) -> int:
    """Where the first element lies."""
    return int(x.__array_interface__["data"][0])


def give(result: np.ndarray, out: Any, like: Any) -> Any:
    """What the caller gets: its own `out`, or the result in the kind of array that `like` is."""
    if out is not None:
        return out
    if isinstance(like, (np.ndarray, np.generic)):
        return result
    return _to_library(result, sys.modules[type(like).__module__.partition(".")[0]])


def _foreign(name: str, x: Any) -> np.ndarray:
    try:
        device = getattr(x, "__dlpack_device__", lambda: (1, 0))()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:  # torch's "meta", say
        raise TypeError(f"{name} is not in the CPU's memory: {error}") from error
    if int(device[0]) != 1:
        raise TypeError(f"{name} is not in the CPU's memory (DLPack device {device}); move it there first")
    try:
        if "bfloat16" in str(getattr(x, "dtype", "")):  # NumPy's DLPack does not know it: go by 16-bit integers
            integers = getattr(sys.modules[type(x).__module__.partition(".")[0]], "int16", np.int16)
            return np.from_dlpack(x.view(integers)).view(BFLOAT16)
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise TypeError(f"{name} cannot be read as an array: {error}") from error


def _to_library(result: np.ndarray, library: Any) -> Any:
    take = getattr(library, "from_dlpack", None) or library.dlpack.from_dlpack
    if result.dtype != BFLOAT16:
        return take(result)
    return take(result.view(np.int16)).view(library.bfloat16)


@functools.cache
def _type_name(dtype: np.dtype) -> str:
    return dtype.name if dtype.isnative else f"{dtype.name} in the other byte order"


def _advice(dtype: np.dtype) -> str:
    return "" if dtype.isnative else " in native byte order: x.astype(x.dtype.newbyteorder('='))"
