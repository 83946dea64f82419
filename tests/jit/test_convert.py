"""16-bit floats: every value widened, every kind of float32 narrowed, under every target that runs here."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import TYPES, run

from backstroke.jit import target

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
every_target = pytest.mark.parametrize("name", target.runnable())
both_types = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)


def copy(k: Any, piece: Any, n: Any, x: Any, y: Any, *, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        y[at] = x[at]


def patterns(dtype: np.dtype) -> np.ndarray:
    """float32 numbers: random bits, all values of the 16-bit type, all midpoints between them, and their neighbours."""
    rng = np.random.default_rng(11)
    random = rng.integers(0, 2**32, 3_000_000, np.uint32)
    values = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)].astype(np.float64))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)  # exact: float32 has the digits
    largest = np.array([finite[-1] + (finite[-1] - finite[-2]) / 2], np.float64).astype(
        np.float32
    )  # rounds to infinity
    edges = np.concatenate([values, middles, largest, -largest]).view(np.uint32)
    around = (edges[:, None] + np.array([-2, -1, 0, 1, 2]).astype(np.uint32)).ravel()
    subnormal = rng.integers(0, 2**23, 200_000, np.uint32) | (rng.integers(0, 2, 200_000, np.uint32) << 31)
    payloads = 0x7F800000 + np.concatenate([1 << np.arange(23), rng.integers(0, 2**23, 1000)]).astype(np.uint32)
    both_signs = np.concatenate([payloads, payloads | 0x80000000])
    return np.concatenate([random, around, subnormal, both_signs]).view(np.float32)


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit; NaN where NaN is wanted."""
    nan = np.isnan(want.astype(np.float32))
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[got.dtype.itemsize]
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(unsigned)[~nan], want.view(unsigned)[~nan])


@every_target
@both_types
@pytest.mark.parametrize("lanes", [32, 16, 4, 1])
def test_every_value_is_widened_exactly(name: str, dtype: np.dtype, lanes: int) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    got = np.empty(x.size, np.float32)
    with target.using(name):
        run(copy, x.size, x, got, lanes=lanes)
    with np.errstate(all="ignore"):
        assert_same(got, x.astype(np.float32))
    nan = np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[nan]), x.view(np.int16)[nan] < 0)


@every_target
@both_types
@pytest.mark.parametrize("lanes", [32, 16, 8, 1])
def test_numbers_are_rounded_to_nearest_even(name: str, dtype: np.dtype, lanes: int) -> None:
    x = patterns(dtype)
    got = np.empty(x.size, dtype)
    with target.using(name):
        run(copy, x.size, x, got, lanes=lanes)
    with np.errstate(all="ignore"):
        assert_same(got, x.astype(dtype))
    np.testing.assert_array_equal(got.view(np.int16) < 0, np.signbit(x))  # of zeros and NaN, too


@every_target
@both_types
def test_there_and_back_is_the_identity(name: str, dtype: np.dtype) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    got = np.empty_like(x)
    with target.using(name):
        run(copy, x.size, x, got, lanes=16)
    with np.errstate(all="ignore"):
        assert_same(got, x)


@every_target
def test_bfloat16_keeps_the_payload_of_nan_on_every_path(name: str) -> None:
    """By an instruction or by integers, in whole vectors or not: the same bits."""
    x = patterns(BFLOAT16)
    x = np.concatenate([x[np.isnan(x)], np.float32([1e-40, np.nan, 1, -1e-45])])
    want = ((x.view(np.uint32) | np.where(np.isnan(x), 0x400000, 0).astype(np.uint32)) >> 16).astype(np.uint16)
    nan = np.isnan(x)
    for lanes in (32, 16, 4):
        got = np.empty(x.size, BFLOAT16)
        with target.using(name):
            run(copy, x.size, x, got, lanes=lanes)
        np.testing.assert_array_equal(got.view(np.uint16)[nan], want[nan])


@every_target
@both_types
@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 31, 33])
def test_tails_of_16_bit_types_end_where_they_should(name: str, dtype: np.dtype, n: int) -> None:
    x = np.arange(1, n + 1).astype(dtype)
    got = np.full(n + 32, -1, dtype)
    with target.using(name):
        run(copy, n, x, got[8:], lanes=target.current().lanes(TYPES[dtype]))
    np.testing.assert_array_equal(got[8 : 8 + n], x)
    assert (got[:8] == -1).all()
    assert (got[8 + n :] == -1).all()


def some(k: Any, piece: Any, x: Any, y: Any, *, count: int, lanes: int) -> None:
    at = k.some(0, count, lanes)
    y[at] = x[at] + 1.0


@every_target
@both_types
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_a_tail_that_is_known_when_compiled_writes_no_more_than_itself(name: str, dtype: np.dtype, lanes: int) -> None:
    """LLVM makes a masked store of one lane a plain one, and took the width of the value before it was cut."""
    x = np.arange(lanes).astype(dtype)
    for count in range(1, lanes):
        y = np.full(2 * lanes, 7, dtype)
        with target.using(name):
            run(some, x, y, count=count, lanes=lanes)
        want = [*range(1, count + 1), *[7] * (2 * lanes - count)]
        assert y.astype(np.float64).tolist() == want, count
