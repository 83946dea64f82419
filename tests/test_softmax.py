"""The softmax gradients against their float64 twins, along every axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import DTYPES, SMALL_DTYPES, Guarded, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import backstroke as bs
from backstroke.jit import target
from backstroke.registry import OPS, Op

SOFTMAXES = [op for op in OPS if op.family == "softmax"]
every_op = pytest.mark.parametrize("op", SOFTMAXES, ids=lambda op: op.name)
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def arguments(op: Op, rng: np.random.Generator, shape: tuple[int, ...], axis: int, dtype: Any) -> list[np.ndarray]:
    """Typical arguments whose probabilities run along `axis`."""
    moved = [shape[i] for i in range(len(shape)) if i != axis % len(shape)] + [shape[axis]]
    return [np.ascontiguousarray(np.moveaxis(a, -1, axis)) for a in op.sample(rng, moved, dtype)]


def largest_term(op: Op, dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """The largest of the terms that an element is made of, the sum among them."""
    largest = np.abs(dy).max(axis=axis, keepdims=True)
    if op.name == "softmax_grad":
        return np.abs(y) * largest
    return np.maximum(largest, np.exp(y) * np.abs(dy.sum(axis=axis, keepdims=True)))


SHAPES = [((3, 10), 1), ((5, 1000), -1), ((2, 50_257), -1), ((7, 33, 5), 1), ((40, 9), 0), ((2, 6, 28, 28), 1),
          ((1, 1), 0), ((4, 1, 3), 1), ((300, 2, 129), 1), ((1000, 3), 0), ((2, 3, 4, 5, 6), 2)]  # fmt: skip


@every_op
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("name", target.runnable())
def test_against_the_twin(op: Op, dtype: Any, shape: tuple[int, ...], axis: int, name: str) -> None:
    dy, y = arguments(op, np.random.default_rng(1), shape, axis, dtype)
    with target.using(name):
        got = op.function(dy, y, axis=axis)
    exact = [a.astype(np.longdouble) for a in (dy, y)]
    bound = np.finfo(dtype).eps * (op.ulp + np.log2(shape[axis])) * largest_term(op, *exact, axis)
    assert (np.abs(got - op.reference(*exact, axis=axis)) <= bound).all()


@every_op
@pytest.mark.parametrize("value", [1 / 3, 0.1, 1 + 2.0**-23])
def test_sums_of_equal_terms_do_not_drift(op: Op, value: float) -> None:
    """Equal terms make rounding errors of one sign: the worst case of a long sum."""
    n = 3_000_001
    dy = np.full((1, n), value, np.float32)
    y = np.full((1, n), 1 / n if op.name == "softmax_grad" else -np.log(n), np.float32)
    exact = [a.astype(np.longdouble) for a in (dy, y)]
    bound = np.finfo(np.float32).eps * (op.ulp + np.log2(n)) * largest_term(op, *exact, -1)
    assert (np.abs(op.function(dy, y) - op.reference(*exact)) <= bound).all()


@every_op
@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((50, 300), 1), ((6, 70, 33), 1), ((5, 64), 0)], ids=str)
@pytest.mark.parametrize("name", target.runnable())
def test_small_types_are_the_float32_result_rounded_once(
    op: Op, dtype: np.dtype, shape: tuple[int, ...], axis: int, name: str
) -> None:
    dy, y = arguments(op, np.random.default_rng(2), shape, axis, dtype)
    with target.using(name):
        got = op.function(dy, y, axis=axis)
        want = op.function(dy.astype(np.float32), y.astype(np.float32), axis=axis).astype(dtype)
    assert same_bits(got, want)


@every_op
@every_type
@pytest.mark.parametrize(("shape", "axis"), [((700, 333), -1), ((3, 100_000), -1), ((9, 60, 500), 1), ((50, 4000), 0)])
def test_the_bits_do_not_depend_on_the_threads(op: Op, dtype: np.dtype, shape: tuple[int, ...], axis: int) -> None:
    dy, y = arguments(op, np.random.default_rng(3), shape, axis, dtype)
    before, results = bs.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7, 2):
            bs.set_num_threads(threads)
            results.append(op.function(dy, y, axis=axis))
    finally:
        bs.set_num_threads(before)
    assert all(same_bits(results[0], other) for other in results[1:])


@every_op
def test_the_bits_do_not_depend_on_where_the_arrays_lie(op: Op) -> None:
    dy, y = op.sample(np.random.default_rng(4), (37, 1003), np.float32)
    want = op.function(dy, y)
    for shift in range(1, 17):
        moved = Guarded(dy.shape, np.float32, shift), Guarded(dy.shape, np.float32, (3 * shift) % 16)
        moved[0].array[...], moved[1].array[...] = dy, y
        assert same_bits(op.function(moved[0].array, moved[1].array), want)


@every_op
def test_derivative_by_finite_differences(op: Op) -> None:
    """Along a random direction, central differences of the forward function."""
    rng = np.random.default_rng(5)
    x, dy, direction = (rng.standard_normal((4, 7, 5)) for _ in range(3))

    def forward(x: np.ndarray) -> np.ndarray:
        shifted = x - x.max(axis=1, keepdims=True)
        log = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return log if op.name == "log_softmax_grad" else np.exp(log)

    dx = op.function(dy, forward(x), axis=1)
    difference = (forward(x + 1e-5 * direction) - forward(x - 1e-5 * direction)) / 2e-5
    assert np.isclose(np.sum(dx * direction), np.sum(dy * difference), rtol=1e-8)


@every_op
@every_type
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4), (4, 3, 0)])
def test_empty_arrays(op: Op, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        dx = op.function(np.zeros(shape, dtype), np.zeros(shape, dtype), axis=axis)
        assert dx.shape == shape
        assert dx.dtype == dtype


@every_op
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_spoils_its_own_slice_only(op: Op, axis: int, bad: float) -> None:
    dy, y = arguments(op, np.random.default_rng(6), (20, 30, 40), axis, np.float32)
    clean = op.function(dy, y, axis=axis)
    dy[7, 8, 9] = bad
    spoilt = op.function(dy, y, axis=axis)
    slice_ = tuple(slice(None) if i == axis else n for i, n in enumerate((7, 8, 9)))
    assert not np.isfinite(spoilt[slice_]).any()
    spoilt[slice_] = clean[slice_]
    assert same_bits(spoilt, clean)


def test_log_softmax_of_probability_zero() -> None:
    y = np.array([[0.0, -np.inf]], np.float32)
    assert np.array_equal(bs.log_softmax_grad(np.array([[2, 3]], np.float32), y), [[-3, 3]])


@every_op
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_out_may_be_an_input(op: Op, axis: int, which: int) -> None:
    both = arguments(op, np.random.default_rng(7), (9, 50, 21), axis, np.float32)
    want = op.function(*both, axis=axis)
    op.function(*both, axis=axis, out=both[which])
    assert same_bits(both[which], want)


@every_op
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_arrays_that_lie_otherwise(op: Op, axis: int) -> None:
    dy, y = arguments(op, np.random.default_rng(8), (6, 7, 8), axis, np.float64)
    want = op.reference(dy, y, axis=axis)
    for turn in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        back = [turn.index(i) for i in range(3)]
        a, b = (np.ascontiguousarray(x.transpose(turn)).transpose(back) for x in (dy, y))
        assert np.allclose(op.function(a, b, axis=axis), want, 1e-13)
        assert np.allclose(op.function(a, y, axis=axis), want, 1e-13)
    spaced = np.zeros((12, 14, 16))[::2, ::2, ::2]
    spaced[...] = y
    assert np.allclose(op.function(dy, spaced, axis=axis), want, 1e-13)


def test_no_transpose_along_an_inner_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along axis 1 nothing of the tensor's size is made but the output."""
    from backstroke import memory

    made: list[tuple[int, ...]] = []
    true_empty = memory.pool.empty
    monkeypatch.setattr(memory.pool, "empty", lambda shape, dtype: made.append(shape) or true_empty(shape, dtype))
    dy, y = (np.random.default_rng(9).random((4, 32, 28, 28), np.float32) for _ in range(2))
    bs.softmax_grad(dy, y, axis=1)
    assert made == [(4, 32, 28, 28)]


@settings(deadline=None, max_examples=80)
@given(
    op=st.sampled_from(SOFTMAXES),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(target.runnable()),
    shape=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    shift=st.integers(0, 70),
    large=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_only_the_output_is_written(
    op: Op, dtype: np.dtype, name: str, shape: list[int], axis: int, shift: int, large: bool, seed: int
) -> None:
    from backstroke import memory

    axis %= len(shape)
    dy, y = arguments(op, np.random.default_rng(seed), tuple(shape), axis, dtype)
    out = Guarded(shape, dtype, shift)
    before = memory.large_output
    try:
        memory.large_output = lambda inputs: 0 if large else 2**62
        with target.using(name):
            op.function(dy, y, axis=axis, out=out.array)
    finally:
        memory.large_output = before
    assert out.intact()
    want = op.reference(dy, y, axis=axis)
    digits = {2: 0.02, 4: 1e-4, 8: 1e-12}[dtype.itemsize]
    assert np.allclose(out.array.astype(np.float64), want, rtol=digits, atol=digits)


@pytest.mark.parametrize(
    ("axis", "error", "words"),
    [
        (2, ValueError, "axis is 2; expected from -2 to 1"),
        (-3, ValueError, "axis is -3"),
        (1.0, TypeError, "axis is a float"),
        ("1", TypeError, "axis is a str"),
        (True, TypeError, "axis is a bool"),
        (None, TypeError, "axis is a NoneType"),
        (2**70, ValueError, "axis is 1180591620717411303424"),
    ],
)
@every_op
def test_bad_axes(op: Op, axis: Any, error: type[Exception], words: str) -> None:
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(error, match=words):
        op.function(a, a, axis=axis)


@every_op
def test_no_axes_at_all(op: Op) -> None:
    with pytest.raises(ValueError, match="axis is -1; expected none"):
        op.function(np.float32(1), np.float32(1))
