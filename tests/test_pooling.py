"""The pooling kernels against their float64 twins: every rank, layout, type and target, and nothing but the output.

What is bad input is in `test_pooling_bad_input.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import DTYPES, Guarded, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from pooling_problems import Problem, arrange, problems

import backstroke as bs
from backstroke import memory, pooling, reference
from backstroke.jit import target
from backstroke.pooling import plans
from backstroke.pooling import reference as twin
from backstroke.registry import FLOATS

every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NAN, INF = math.nan, math.inf
any_type, any_target = st.sampled_from(DTYPES), st.sampled_from(target.runnable())


def eps(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def assert_close(got: np.ndarray, want: np.ndarray, terms: np.ndarray, count: np.ndarray) -> None:
    """Within eps x (number of terms) of the twin, in units of the terms' sizes, and one rounding to the type."""
    sums = np.float64 if got.dtype == np.float64 else np.float32
    least = float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
    bound = np.finfo(sums).eps * count * terms + (0 if got.dtype == sums else eps(got.dtype) / 2 * np.abs(want)) + least
    off = np.abs(got.astype(np.float64) - want)
    assert (off <= bound).all(), float((off / bound).max())


def lying_oddly(a: np.ndarray, how: str) -> np.ndarray:
    """The same numbers elsewhere: strided, misaligned, or in another library's hands."""
    if how == "strided":
        wide = np.zeros([2 * n + 1 for n in a.shape], a.dtype)[tuple(slice(1, None, 2) for _ in a.shape)]
    elif how == "misaligned":
        wide = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    elif how == "permuted":
        wide = np.zeros(a.shape[::-1], a.dtype).transpose()
    else:
        return a
    wide[...] = a
    return wide


def windows_over(problem: Problem) -> np.ndarray:
    """How many windows see each element of the input, at least one."""
    ones = np.ones(problem.output_shape)
    seen = twin.window_mean_grad(
        ones * math.prod(problem.kernel), problem.input_shape, problem.geometry, "kernel", problem.options["layout"]
    )
    return np.maximum(1, np.round(seen))


LYING = st.sampled_from(["plain", "plain", "strided", "misaligned", "permuted"])


# ---- against the twin ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=250)
@given(problems(), any_type, any_target, LYING, st.booleans(), st.integers(0, 17), st.booleans())
def test_avg_pool_grad(
    problem: Problem, dtype: np.dtype, name: str, lying: str, include: bool, shift: int, streams: bool
) -> None:
    dy = normal(problem.rng, problem.output_shape, dtype)
    options = problem.options | {"count_include_pad": include}
    out = Guarded(problem.input_shape, dtype, shift)
    with target.using(name), streaming(streams):
        fresh = bs.avg_pool_grad(lying_oddly(dy, lying), problem.input_shape, problem.kernel, **options)
        given = bs.avg_pool_grad(dy, problem.input_shape, problem.kernel, **options, out=out.array)
    assert given is out.array
    assert out.intact()
    assert same_bits(fresh, given)
    want = reference.avg_pool_grad(dy, problem.input_shape, problem.kernel, **options)
    terms = reference.avg_pool_grad(np.abs(dy.astype(np.float64)), problem.input_shape, problem.kernel, **options)
    assert_close(given, want, terms, windows_over(problem))


@settings(deadline=None, max_examples=250)
@given(problems(), any_type, any_target, LYING, st.integers(0, 17), st.booleans(), st.booleans())
def test_max_pool_gradients(
    problem: Problem, dtype: np.dtype, name: str, lying: str, shift: int, ties: bool, streams: bool
) -> None:
    rng = problem.rng
    x = (rng.integers(-3, 3, problem.input_shape) if ties else normal(rng, problem.input_shape, dtype)).astype(dtype)
    dy = normal(rng, problem.output_shape, dtype)
    outs = [Guarded(problem.input_shape, dtype, shift) for _ in range(2)]
    maxima, places = Guarded(problem.output_shape, dtype, shift), Guarded(problem.output_shape, np.int64)
    with target.using(name), streaming(streams):
        y, indices = bs.max_pool(lying_oddly(x, lying), problem.kernel, **problem.options, return_indices=True)
        assert same_bits(bs.max_pool(x, problem.kernel, **problem.options), y)
        bs.max_pool(x, problem.kernel, **problem.options, return_indices=True, out=(maxima.array, places.array))
        want_y, want_indices = reference.max_pool(x, problem.kernel, **problem.options, return_indices=True)
        assert np.array_equal(y.astype(np.float64), want_y)
        assert np.array_equal(indices, want_indices)
        assert np.array_equal(places.array, indices)
        assert same_bits(maxima.array, y)
        fresh = bs.max_pool_grad_from_input(
            lying_oddly(dy, lying), lying_oddly(x, lying), problem.kernel, **problem.options
        )
        bs.max_pool_grad_from_input(dy, x, problem.kernel, **problem.options, out=outs[0].array)
        if (indices >= 0).all():
            bs.max_pool_grad(lying_oddly(dy, lying), lying_oddly(indices, lying), x.shape, out=outs[1].array)
            assert_close(
                outs[1].array, *twin_and_terms(dy, x, problem), windows_over(problem) if overlap(problem) else 0
            )
            assert same_bits(bs.max_pool_grad(dy, indices, x.shape), outs[1].array)
    assert all(each.intact() for each in (*outs, maxima, places))
    assert same_bits(fresh, outs[0].array)
    assert_close(fresh, *twin_and_terms(dy, x, problem), windows_over(problem) if overlap(problem) else 0)


def overlap(problem: Problem) -> bool:
    """Whether an element can be the maximum of more windows than one; otherwise dx is exact."""
    return bool((windows_over(problem) > 1).any())


def twin_and_terms(dy: np.ndarray, x: np.ndarray, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    call = reference.max_pool_grad_from_input
    return (
        call(dy, x, problem.kernel, **problem.options),
        call(np.abs(dy.astype(np.float64)), x, problem.kernel, **problem.options),
    )


class streaming:  # noqa: N801 - it reads as a word
    """Every output counts as too large for the caches, or none does."""

    def __init__(self, always: bool) -> None:
        self._patch = pytest.MonkeyPatch()
        self._limit = 0 if always else 2**62

    def __enter__(self) -> None:
        pooling.forget_plans()
        self._patch.setattr(memory, "large_output", lambda inputs: self._limit)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        pooling.forget_plans()


@settings(deadline=None, max_examples=150)
@given(problems(), any_type, any_target, LYING, st.booleans(), st.integers(0, 17))
def test_avg_pool(problem: Problem, dtype: np.dtype, name: str, lying: str, include: bool, shift: int) -> None:
    x = normal(problem.rng, problem.input_shape, dtype)
    options = problem.options | {"count_include_pad": include}
    out = Guarded(problem.output_shape, dtype, shift)
    with target.using(name):
        bs.avg_pool(lying_oddly(x, lying), problem.kernel, **options, out=out.array)
        assert same_bits(bs.avg_pool(x, problem.kernel, **options), out.array)
    assert out.intact()
    want = reference.avg_pool(x, problem.kernel, **options)
    terms = reference.avg_pool(np.abs(x.astype(np.float64)), problem.kernel, **options)
    assert_close(out.array, want, terms, np.array(math.prod(problem.kernel)))


@every_type
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 2, 70_001), (2, 3, 1, 1), (2, 67, 9, 13), (1, 1, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("name", target.runnable())
def test_global_avg_pool_grad(dtype: np.dtype, shape: tuple[int, ...], layout: str, name: str) -> None:
    shape = arrange(shape[0], shape[1], shape[2:], layout)
    ones = arrange(shape[0], shape[1] if layout == "NCX" else shape[-1], (1,) * (len(shape) - 2), layout)
    dy, out = normal(np.random.default_rng(1), ones, dtype), Guarded(shape, dtype, 3)
    want = reference.global_avg_pool_grad(dy, shape, layout=layout)
    for always in (False, True):
        with target.using(name), streaming(always):
            bs.global_avg_pool_grad(dy, shape, layout=layout, out=out.array)
        assert out.intact()
        assert_close(out.array, want, np.abs(want), np.array(1))


SMALL_PLANES = [
    ((5, 7, 4, 4), {"kernel": 3, "strides": 1}),
    ((1, 37, 9, 3), {"kernel": 3, "strides": 1, "pads": 1}),
    ((2, 16, 8, 8), {"kernel": 3, "strides": 1, "pads": 1, "dilations": 2}),
    ((3, 11, 6, 7, 5), {"kernel": (2, 2, 3), "strides": (3, 4, 2), "pads": (1, 0, 1)}),
    ((1, 33, 7, 4, 3), {"kernel": 3, "strides": (2, 1, 1), "pads": 1}),
    ((2, 9, 40), {"kernel": 5, "strides": 3, "pads": 2}),
    ((1, 17, 32, 32), {"kernel": 2, "strides": 3}),
]


@pytest.mark.parametrize(("shape", "options"), SMALL_PLANES, ids=str)
@pytest.mark.parametrize("turned", [1, 10**6])
def test_groups_and_bands_of_small_planes(
    shape: tuple[int, ...], options: dict[str, Any], turned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that are full and that are not, whole planes and bands of them, windows over two bands."""
    monkeypatch.setattr(plans, "TURNED", turned)
    rng, kernel = np.random.default_rng(8), options["kernel"]
    rest = {name: value for name, value in options.items() if name != "kernel"}
    size = reference.avg_pool(np.zeros(shape), kernel, **rest).shape
    for name, dtype in zip(target.runnable(), DTYPES, strict=False):
        dy, answers = normal(rng, size, dtype), []
        want = reference.avg_pool_grad(dy, shape, kernel, **rest)
        terms = reference.avg_pool_grad(np.abs(dy.astype(np.float64)), shape, kernel, **rest)
        for always in (False, True):
            out = Guarded(shape, dtype, 1)
            with target.using(name), streaming(always):
                bs.avg_pool_grad(dy, shape, kernel, **rest, out=out.array)
            assert out.intact()
            assert_close(out.array, want, terms, np.array(27))
            answers.append(out.array)
        assert same_bits(*answers)


@every_type
@pytest.mark.parametrize("shape", [(67, 3, 1), (9, 4, 7, 7), (5, 33, 8, 8), (300, 5, 5), (2, 3, 41, 50)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_planes_of_one_number_stay_apart(dtype: np.dtype, shape: tuple[int, ...], value: float) -> None:
    """What a plane's last vector is too long is its neighbour's."""
    dy = np.arange(math.prod(shape[:2])).astype(dtype).reshape(*shape[:2], *[1] * (len(shape) - 2))
    dy.flat[5] = value
    want = np.broadcast_to(dy.astype(np.float64) / math.prod(shape[2:]), shape)
    for name in target.runnable():
        for always in (False, True):
            out = Guarded(shape, dtype, 1)
            with target.using(name), streaming(always):
                bs.global_avg_pool_grad(dy, shape, out=out.array)
            assert out.intact()
            got = out.array.astype(np.float64)
            assert np.array_equal(np.isfinite(got), np.isfinite(want))
            finite = np.isfinite(want)
            np.testing.assert_allclose(got[finite], want[finite], rtol=eps(dtype))


# ---- as maps ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(problems(), any_type)
def test_max_gradients_are_the_adjoint_of_picking(problem: Problem, dtype: np.dtype) -> None:
    """<dy, pool(v)> == <pool_grad(dy), v>, exactly, on integers."""
    rng = problem.rng
    x, v = (rng.integers(-9, 10, problem.input_shape).astype(dtype) for _ in range(2))
    dy = rng.integers(-2, 3, problem.output_shape).astype(dtype)
    _, indices = bs.max_pool(x, problem.kernel, **problem.options, return_indices=True)
    found = indices >= 0
    dx = bs.max_pool_grad_from_input(dy, x, problem.kernel, **problem.options)
    left = np.sum(dy[found].astype(np.float64) * v.ravel()[indices[found]].astype(np.float64))
    assert left == np.sum(dx.astype(np.float64) * v.astype(np.float64))
    if found.all():
        assert same_bits(bs.max_pool_grad(dy, indices, x.shape), dx)


@settings(deadline=None, max_examples=150)
@given(problems(), any_type, st.booleans())
def test_avg_gradient_is_the_adjoint_of_the_average(problem: Problem, dtype: np.dtype, include: bool) -> None:
    rng, options = problem.rng, problem.options | {"count_include_pad": include}
    v, dy = normal(rng, problem.input_shape, dtype), normal(rng, problem.output_shape, dtype)
    y = bs.avg_pool(v, problem.kernel, **options)
    dx = bs.avg_pool_grad(dy, problem.input_shape, problem.kernel, **options)
    y, dx, v, dy = (a.astype(np.float64) for a in (y, dx, v, dy))
    terms = np.sum(np.abs(dy) * reference.avg_pool(np.abs(v), problem.kernel, **options))
    assert abs(np.sum(dy * y) - np.sum(dx * v)) <= eps(dtype) * math.prod(problem.kernel) * 2 * terms + 1e-6


# ---- the same bits ---------------------------------------------------------------------------------------------------

SHAPES = [
    ((1, 1, 260, 300), {"kernel": 3, "strides": 2, "pads": 1}),
    ((1, 3, 70_001), {"kernel": 5, "strides": 3, "pads": 2}),
    ((3, 37, 28, 28), {"kernel": 3, "strides": 1, "pads": 1}),
    ((1, 5, 12, 30, 33), {"kernel": (2, 3, 3), "strides": (2, 1, 2), "pads": (0, 1, 1)}),
]


@pytest.mark.parametrize(("shape", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@every_type
def test_the_bits_do_not_depend_on_the_threads(
    shape: tuple[int, ...], options: dict[str, Any], layout: str, dtype: np.dtype
) -> None:
    rng = np.random.default_rng(3)
    x = normal(rng, arrange(*shape[:2], shape[2:], layout), dtype)
    options = options | {"layout": layout}
    before, answers = bs.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7, 2, 1):
            bs.set_num_threads(count)
            y, indices = bs.max_pool(x, **options, return_indices=True)
            mean = bs.avg_pool(x, **options)
            gradients = [bs.max_pool_grad(mean, indices, x.shape), bs.max_pool_grad_from_input(mean, x, **options)]
            answers.append([y, indices, mean, *gradients, bs.avg_pool_grad(mean, x.shape, **options)])
    finally:
        bs.set_num_threads(before)
    for other in answers[1:]:
        assert all(same_bits(a, b) for a, b in zip(answers[0], other, strict=True))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_one_plane_is_work_for_all_threads(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(np.random.default_rng(4), arrange(1, 1, (600, 600), layout), np.dtype(np.float32))
    options: dict[str, Any] = {"kernel": 3, "strides": 2, "layout": layout}
    pieces: list[int] = []

    class Spied(plans.Step):
        def __init__(self, kernel: Any, count: int, *rest: Any) -> None:
            pieces.append(count)
            super().__init__(kernel, count, *rest)

    monkeypatch.setattr(plans, "Step", Spied)
    y, indices = bs.max_pool(x, **options, return_indices=True)
    for call in (
        lambda: bs.avg_pool_grad(y, x.shape, **options),
        lambda: bs.max_pool_grad(y, indices, x.shape),
        lambda: bs.max_pool_grad_from_input(y, x, **options),
    ):
        pooling.forget_plans()
        pieces.clear()
        call()
        assert max(pieces) >= 8


# ---- corners ---------------------------------------------------------------------------------------------------------


@every_type
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("window", "index"),
    [
        ([7, 7, 7], 0), ([1, 5, 5], 1), ([-0.0, 0.0, -1], 0), ([NAN, 1, 2], 2), ([2, 1, NAN], 0), ([-INF, NAN, -3], 2),
        ([INF, 1, INF], 0), ([NAN, NAN, NAN], -1), ([-INF, -INF, -INF], -1), ([NAN, -INF, NAN], -1),
    ],
)  # fmt: skip
def test_who_wins(dtype: np.dtype, layout: str, window: list[float], index: int) -> None:
    x = np.array(window, dtype).reshape(arrange(1, 1, (3,), layout))
    y, indices = bs.max_pool(x, 3, layout=layout, return_indices=True)
    assert indices.ravel().tolist() == [index]
    assert y.ravel()[0] == (window[index] if index >= 0 else -INF)
    want = np.zeros(3)
    if index >= 0:
        want[index] = 5
    dx = bs.max_pool_grad_from_input(np.full(y.shape, 5, dtype), x, 3, layout=layout)
    assert dx.ravel().tolist() == want.tolist()


@every_type
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_stays_in_its_window(dtype: np.dtype, layout: str, value: float) -> None:
    shape, small = arrange(1, 2, (8,), layout), arrange(1, 2, (4,), layout)
    dy = np.ones(small, dtype)
    dy[(0, 1, 2) if layout == "NCX" else (0, 2, 1)] = value
    mean = np.isfinite(bs.avg_pool_grad(dy, shape, 2, layout=layout).astype(np.float64))
    at = (0, 1) if layout == "NCX" else (0, slice(None), 1)
    assert mean[at].tolist() == [True] * 4 + [False] * 2 + [True] * 2
    assert mean.sum() == 14
    x = np.arange(16).reshape(shape).astype(dtype)
    _, indices = bs.max_pool(x, 2, layout=layout, return_indices=True)
    for dx in (
        bs.max_pool_grad(dy, indices, shape),
        bs.max_pool_grad_from_input(dy, x, 2, layout=layout),
    ):
        assert np.isfinite(dx.astype(np.float64)).sum() == 15
        assert not np.isfinite(float(dx[at][5]))


@every_type
def test_sums_are_rounded_once(dtype: np.dtype) -> None:
    """Many windows over one element: 16-bit types would stall if every sum were rounded to them."""
    n = 1000
    dy = np.full((1, 1, n), 1 + 2**-6, dtype)
    dx = bs.max_pool_grad(dy, np.zeros((1, 1, n), np.int64), (1, 1, 3))
    assert dx.ravel().astype(np.float64).tolist() == [float(np.array(n * float(dy[0, 0, 0])).astype(dtype)), 0, 0]
    x = np.where(np.arange(n) == 0, 2.0, -1.0).reshape(1, 1, n).astype(dtype)
    dx = bs.max_pool_grad_from_input(np.ones((1, 1, n), dtype), x, n, strides=1, pads=((n - 1, 0),))
    assert dx.ravel().astype(np.float64).tolist() == [n, *[0] * (n - 1)]


@every_type
@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.integers(1, 3000), count=st.integers(0, 3000))
def test_any_index_inside_is_taken(dtype: np.dtype, data: st.DataObject, size: int, count: int) -> None:
    """Repeated, in other planes, in any order: against the twin; and summed in dy's order, to the bit in float64."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    indices = rng.integers(0, size, (1, 1, count))
    if data.draw(st.booleans()):
        indices = np.sort(indices)
    dy, out = rng.integers(-4, 5, (1, 1, count)).astype(dtype), Guarded((1, 1, size), dtype, 1)
    with streaming(data.draw(st.booleans())):
        bs.max_pool_grad(dy, indices, (1, 1, size), out=out.array)
    assert out.intact()
    assert np.array_equal(out.array.astype(np.float64), reference.max_pool_grad(dy, indices, (1, 1, size)))


@pytest.mark.parametrize("shift", [0, 40_000, -70_000, 300_000])
def test_indices_outside_their_own_plane(shift: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 7, 61, 67)).astype(np.float32)
    y, indices = bs.max_pool(x, 3, strides=2, pads=1, return_indices=True)
    dy = rng.integers(-9, 10, y.shape).astype(np.float32)
    moved = (indices + shift) % x.size
    assert np.array_equal(bs.max_pool_grad(dy, moved, x.shape), reference.max_pool_grad(dy, moved, x.shape))
    mixed = rng.permutation(moved.ravel()).reshape(moved.shape)
    assert np.array_equal(bs.max_pool_grad(dy, mixed, x.shape), reference.max_pool_grad(dy, mixed, x.shape))


ORDERS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "sorted": lambda rng, a: np.sort(a),
    "nearly sorted": lambda rng, a: np.sort(a).reshape(-1, 50)[:, rng.permutation(50)].ravel(),
    "falling": lambda rng, a: np.sort(a)[::-1],
    "any": lambda rng, a: a,
    "one far away": lambda rng, a: np.concatenate([a[-1:], np.sort(a)[1:-1], a[:1]]),
    "a gap": lambda rng, a: np.sort(np.where(a < 50_000, a // 4, a)),
    "one place": lambda rng, a: np.full_like(a, 77_777),
}


@every_type
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(100_003,), (1, 3, 100_003), (5, 100, 3, 67)], ids=str)
@pytest.mark.parametrize("name", target.runnable())
def test_indices_in_any_order(dtype: np.dtype, order: str, shape: tuple[int, ...], name: str) -> None:
    """Where a ring can follow them and where it cannot; with outputs that begin anywhere in a line of memory."""
    rng, size = np.random.default_rng(8), math.prod(shape)
    indices = ORDERS[order](rng, rng.integers(0, size, 20_000)).reshape(1, -1)
    dy = rng.integers(-2, 3, indices.shape).astype(dtype)
    want = reference.max_pool_grad(dy, indices, shape)
    with target.using(name):
        for always in (False, True):
            out = Guarded(shape, dtype, 5)
            with streaming(always):
                bs.max_pool_grad(dy, indices, shape, out=out.array)
            assert out.intact()
            assert np.array_equal(out.array.astype(np.float64), want)


@pytest.mark.parametrize("always", [False, True])
def test_indices_that_change_meanwhile(always: bool) -> None:
    """Another thread writes into the array of indices: the sums may be anything, nothing else is touched."""
    shape = (4, 4, 128, 128)
    _, indices = bs.max_pool(normal(np.random.default_rng(9), shape, np.dtype(np.float32)), 2, return_indices=True)
    dy, out, right, stop = np.ones(indices.shape, np.float32), Guarded(shape, np.float32), indices.copy(), Event()

    def spoil() -> None:
        while not stop.is_set():
            for bad in (2**62, -1, -(2**63), 2**31):
                indices[...] = bad
                indices[...] = right

    thread = Thread(target=spoil)
    thread.start()
    try:
        with streaming(always):
            for _ in range(300):
                with suppress(ValueError):  # where a bad one was seen in time
                    bs.max_pool_grad(dy, indices, shape, out=out.array)
    finally:
        stop.set()
        thread.join()
    assert out.intact()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_other_libraries_arrays(dtype: np.dtype) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)

    def tensor(a: np.ndarray) -> Any:
        return torch.from_numpy(a.astype(np.float64)).to(getattr(torch, dtype.name))

    x, dy = normal(rng, (2, 3, 8, 9), dtype), normal(rng, (2, 3, 4, 4), dtype)
    y, indices = bs.max_pool(tensor(x), 2, return_indices=True)
    for got, want in (
        (y, bs.max_pool(x, 2)),
        (indices, bs.max_pool(x, 2, return_indices=True)[1]),
        (bs.max_pool_grad(tensor(dy), indices, x.shape), bs.max_pool_grad(dy, indices.numpy(), x.shape)),
        (bs.max_pool_grad_from_input(tensor(dy), tensor(x), 2), bs.max_pool_grad_from_input(dy, x, 2)),
        (bs.avg_pool(tensor(x), 2), bs.avg_pool(x, 2)),
        (bs.avg_pool_grad(tensor(dy), x.shape, 2), bs.avg_pool_grad(dy, x.shape, 2)),
    ):
        assert isinstance(got, torch.Tensor)
        assert np.array_equal(got.double().numpy(), want.astype(np.float64))
    out = torch.zeros(2, 3, 8, 9, dtype=getattr(torch, dtype.name))
    assert bs.avg_pool_grad(tensor(dy), x.shape, 2, out=out) is out
    assert np.array_equal(out.double().numpy(), bs.avg_pool_grad(dy, x.shape, 2).astype(np.float64))
