"""exp: at most 2 ulp over the whole range, right at both ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import run

from backstroke.jit import functions, target

every_target = pytest.mark.parametrize("name", target.runnable())
STRIDE = 1021  # of the sweep over all float32 bit patterns: a prime, so that all last bits occur


def exponential(k: Any, piece: Any, n: Any, x: Any, y: Any, *, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        y[at] = functions.exp(x[at])


def evaluated(x: np.ndarray, lanes: int | None = None) -> np.ndarray:
    y = np.empty_like(x)
    run(exponential, x.size, x, y, lanes=lanes or target.current().vector_bytes // x.itemsize)
    return y


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the exact value, rounded; infinite where only one of them is finite."""
    with np.errstate(all="ignore"):
        want = exact.astype(got.dtype)
        unit = np.spacing(np.where(np.isfinite(want), want, 1)).astype(np.longdouble)
        distance = np.abs(got.astype(np.longdouble) - exact) / unit
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same & ~np.isfinite(want), 0, np.where(np.isfinite(want), distance, np.inf))


def assert_close(x: np.ndarray, got: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        off = ulps(got, np.exp(x.astype(np.longdouble if x.dtype == np.float64 else np.float64)))
    worst = int(np.argmax(off))
    assert off[worst] <= 2, f"{off[worst]} ulp at {x[worst]!r}: {got[worst]!r}"


@every_target
def test_within_two_ulp_over_the_whole_float32_range(name: str) -> None:
    x = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with target.using(name):
        assert_close(x, evaluated(x))


@every_target
def test_within_two_ulp_where_float32_results_are_neither_0_nor_infinite(name: str) -> None:
    rng = np.random.default_rng(5)
    halfway = (np.arange(-151, 129) + 0.5) * np.log(2)  # where the power of two changes: the largest remainders
    x = np.concatenate([rng.uniform(-105, 90, 1_500_000), halfway, halfway + 1e-6, halfway - 1e-6]).astype(np.float32)
    with target.using(name):
        assert_close(x, evaluated(x))
        assert_close(x[:30_001], evaluated(x[:30_001], lanes=1))


@every_target
def test_within_two_ulp_in_float64(name: str) -> None:
    rng = np.random.default_rng(6)
    halfway = (np.arange(-1076, 1025) + 0.5) * np.log(2)
    random = rng.integers(0, 2**64, 100_000, np.uint64).view(np.float64)
    x = np.concatenate([rng.uniform(-750, 712, 300_000), rng.uniform(-2, 2, 100_000), halfway, random])
    with target.using(name):
        assert_close(x, evaluated(x))


@every_target
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lanes", [None, 1])
def test_the_ends(name: str, dtype: Any, lanes: int | None) -> None:
    info = np.finfo(dtype)
    last = np.log(info.max).astype(dtype)
    while np.exp(np.longdouble(last)) > info.max:
        last = np.nextafter(last, dtype(0))
    least = np.log(np.longdouble(info.smallest_subnormal) / 2)  # below this: zero
    cases = {
        np.inf: np.inf, -np.inf: 0.0, 0.0: 1.0, info.max: np.inf, info.min: 0.0, info.tiny: 1.0,
        float(info.smallest_subnormal): 1.0, float(np.nextafter(last, dtype(np.inf))): np.inf,
        float(least) * 1.0001: 0.0, float(least) * 0.9999: info.smallest_subnormal,
    }  # fmt: skip
    x = np.array([*cases, -0.0, np.nan, -np.nan, last], dtype)
    with target.using(name):
        y = evaluated(x, lanes)
    np.testing.assert_array_equal(y[: len(cases)], np.array([*cases.values()], dtype))
    assert np.isnan(y[-3:-1]).all()
    assert y[len(cases)] == 1
    assert np.isfinite(y[-1])
    assert not np.signbit(y[:-3]).any()


@every_target
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_results_are_rounded_well(name: str, dtype: Any) -> None:
    info = np.finfo(dtype)
    low, high = np.log(np.longdouble(info.smallest_subnormal)), np.log(np.longdouble(info.tiny))
    x = np.linspace(low, high, 100_003).astype(dtype)
    with target.using(name):
        y = evaluated(x)
    assert_close(x, y)
    assert (y[:-5] < info.tiny).all()
    assert (y > 0).all()


@every_target
def test_larger_arguments_give_no_smaller_results_on_a_coarse_grid(name: str) -> None:
    x = np.linspace(-104, 89, 4001, dtype=np.float32)
    with target.using(name):
        assert (np.diff(evaluated(x)[:-5]) >= 0).all()


def test_numpy_arrays_go_through_numpy() -> None:
    x = np.linspace(-1, 1, 5)
    np.testing.assert_array_equal(functions.exp(x), np.exp(x))
    np.testing.assert_array_equal(functions.fma(x, x, 1.0), x * x + 1)
    np.testing.assert_array_equal(functions.where(x > 0, x, 0.0), np.maximum(x, 0))
