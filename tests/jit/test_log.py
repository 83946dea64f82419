"""log, log_1p and sqrt: as near to the truth as they say, over the whole range, right at both ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import run
from test_exp import STRIDE, ulps

from backstroke.jit import functions, target

every_target = pytest.mark.parametrize("name", target.runnable())


def unary(k: Any, piece: Any, n: Any, x: Any, y: Any, *, function: Any, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        y[at] = function(x[at])


def evaluated(function: Any, x: np.ndarray, lanes: int | None = None) -> np.ndarray:
    y = np.empty_like(x)
    run(unary, x.size, x, y, function=function, lanes=lanes or target.current().vector_bytes // x.itemsize)
    return y


def assert_close(x: np.ndarray, got: np.ndarray, exact: Any, most: float) -> None:
    with np.errstate(all="ignore"):
        off = ulps(got, exact(x.astype(np.longdouble if x.dtype == np.float64 else np.float64)))
    worst = int(np.argmax(off))
    assert off[worst] <= most, f"{off[worst]} ulp at {x[worst]!r}: {got[worst]!r}"


def every_kind_of_float32() -> np.ndarray:
    return np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)


@every_target
def test_log_within_two_ulp_over_the_whole_float32_range(name: str) -> None:
    near_one = np.random.default_rng(1).uniform(0.4, 2.5, 1_000_000).astype(np.float32)
    x = np.concatenate([every_kind_of_float32(), near_one])
    with target.using(name):
        assert_close(x, evaluated(functions.log, x), np.log, 2)
        assert_close(x[-30_001:], evaluated(functions.log, x[-30_001:], lanes=1), np.log, 2)


@every_target
def test_log_within_two_ulp_in_float64(name: str) -> None:
    rng = np.random.default_rng(2)
    random = rng.integers(0, 2**64, 300_000, np.uint64).view(np.float64)
    x = np.concatenate([random, rng.uniform(0.4, 2.5, 300_000), 1 + rng.normal(size=10_000) * 1e-9])
    with target.using(name):
        assert_close(x, evaluated(functions.log, x), np.log, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_ends_of_log(dtype: Any) -> None:
    tiny = np.nextafter(dtype(0), dtype(1))
    x = np.array([0.0, -0.0, -1.0, -np.inf, np.inf, np.nan, 1.0, tiny], dtype)
    want = np.array([-np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, 0.0, np.log(np.longdouble(tiny))], dtype)
    np.testing.assert_array_equal(evaluated(functions.log, x), want)


@every_target
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_1p_keeps_what_is_small(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(0, 1, 200_000), 10.0 ** rng.uniform(-37, 0, 200_000), [0.0, 1.0]]).astype(dtype)
    with target.using(name):
        assert_close(x, evaluated(functions.log_1p, x), np.log1p, 4)


@every_target
def test_sqrt_is_rounded_once(name: str) -> None:
    x = every_kind_of_float32()
    with target.using(name), np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(evaluated(functions.sqrt, x), np.sqrt(x))
