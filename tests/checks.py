"""How results are compared: types, guarded outputs, bits, distances in ulp; and the recorded cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16]
SMALL_DTYPES = [np.dtype(np.float16), BFLOAT16]
GUARD = 256


def data(name: str) -> Any:
    """Recorded cases."""
    return json.loads((Path(__file__).parent / "data" / name).read_text())


class Guarded:
    """An output array in the middle of memory whose every byte is known."""

    def __init__(self, shape: Sequence[int], dtype: Any, shift: int = 0) -> None:
        dtype = np.dtype(dtype)
        self._size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._start = GUARD + shift * dtype.itemsize
        self._bytes = np.full(self._start + self._size + GUARD, 0xA5, np.uint8)
        self.array = self._bytes[self._start : self._start + self._size].view(dtype).reshape(shape)

    def intact(self) -> bool:
        """Whether nothing outside the array was written."""
        before, after = self._bytes[: self._start], self._bytes[self._start + self._size :]
        return bool((before == 0xA5).all() and (after == 0xA5).all())

    def untouched(self) -> bool:
        """Whether nothing at all was written."""
        return bool((self._bytes == 0xA5).all())


def bits(a: np.ndarray) -> np.ndarray:
    """The array as integers, so that equality means the same bits."""
    return np.ascontiguousarray(a).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal bit for bit, any NaN being equal to any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(((bits(a) == bits(b)).reshape(a.shape) | both_nan).all())


def ulp_distance(got: np.ndarray, want: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest distance in units of the last place that `scale` (default: the wanted value) has in got's type.

    Where the wanted value is not finite in that type, the two must agree, or the distance is infinite.
    """
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        finite = np.isfinite(rounded.astype(np.float64))
        agree = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        if not agree[~finite].all():
            return float("inf")
        size = np.abs(want if scale is None else np.broadcast_to(scale, want.shape))[finite].astype(got.dtype)
        unit = np.spacing(size).astype(np.longdouble)
        off = np.abs(got[finite].astype(np.longdouble) - want[finite].astype(np.longdouble)) / unit
    return float(off.max()) if off.size else 0.0
