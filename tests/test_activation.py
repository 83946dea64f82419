"""The elementwise gradients against their float64 twins, at the corners, and in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import DTYPES, SMALL_DTYPES, Guarded, same_bits, ulp_distance
from hypothesis import given, settings
from hypothesis import strategies as st

import backstroke as bs
from backstroke.jit import target
from backstroke.registry import OPS, Op

ACTIVATIONS = [op for op in OPS if op.family == "activation"]
every_op = pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)

INF, NAN = np.inf, np.nan
# What contract and docstring say at the corners, with dy = 2: value of the second argument -> dx.
CORNERS: dict[str, list[tuple[float, float]]] = {
    "relu_grad": [(0.0, 0.0), (-0.0, 0.0), (1.0, 2.0), (-1.0, 0.0), (NAN, 0.0), (INF, 2.0), (-INF, 0.0), (1e-45, 2.0)],
    "leaky_relu_grad": [(0.0, 0.02), (-0.0, 0.02), (1.0, 2.0), (-1.0, 0.02), (NAN, 0.02), (INF, 2.0), (-INF, 0.02)],
    "sigmoid_grad": [
        (0.0, 0.0),
        (1.0, 0.0),
        (0.5, 0.5),
        (2.0, -4.0),
        (-1.0, -4.0),
        (NAN, NAN),
        (INF, -INF),
        (-INF, -INF),
    ],
    "tanh_grad": [(0.0, 2.0), (1.0, 0.0), (-1.0, 0.0), (0.5, 1.5), (2.0, -6.0), (NAN, NAN), (INF, -INF), (-INF, -INF)],
    "quick_gelu_grad": [
        (0.0, 1.0),
        (-0.0, 1.0),
        (100.0, 2.0),
        (-1e4, 0.0),
        (1e4, 2.0),
        (NAN, NAN),
        (INF, NAN),
        (-INF, NAN),
    ],
}


def by_name(name: str) -> Op:
    return next(op for op in OPS if op.name == name)


def wide(rng: np.random.Generator, op: Op, n: int, dtype: Any) -> list[np.ndarray]:
    """Typical arguments, and ones of all sizes."""
    dy, x = op.sample(rng, (n,), np.float64)
    dy[::3] *= 2.0 ** rng.integers(-40, 40, dy[::3].shape)
    x[::5] = rng.standard_normal(x[::5].shape) * 2.0 ** rng.integers(-30, 4, x[::5].shape)
    with np.errstate(over="ignore"):
        return [dy.astype(dtype), x.astype(dtype)]


@every_op
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", target.runnable())
def test_against_the_twin_within_ulps(op: Op, dtype: Any, name: str) -> None:
    dy, x = wide(np.random.default_rng(1), op, 200_003, dtype)
    exact = [a.astype(np.longdouble) for a in (dy, x)]
    with target.using(name):
        got = op.function(dy, x)
    scale, options = None, {}
    if op.name == "leaky_relu_grad":  # alpha is a number of the array's type
        options["alpha"] = np.longdouble(dtype(0.01))
    if op.name == "quick_gelu_grad":  # two terms of any sign: the larger of them counts
        alpha = options["alpha"] = np.longdouble(dtype(1.702))
        s = 1 / (1 + np.exp(-alpha * exact[1]))
        scale = np.maximum(np.abs(exact[0] * s), np.abs(exact[0] * s * (alpha * exact[1] * (1 - s))))
    want = op.reference(*exact, **options)
    assert ulp_distance(got, want, scale) <= op.ulp


@every_op
@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=str)
@pytest.mark.parametrize("name", target.runnable())
def test_small_types_are_the_float32_result_rounded_once(op: Op, dtype: np.dtype, name: str) -> None:
    dy, x = wide(np.random.default_rng(2), op, 100_003, dtype)
    with target.using(name), np.errstate(all="ignore"):
        got = op.function(dy, x)
        want = op.function(dy.astype(np.float32), x.astype(np.float32)).astype(dtype)
    assert same_bits(got, want)


@every_op
@every_type
def test_the_bits_do_not_depend_on_the_threads(op: Op, dtype: np.dtype) -> None:
    dy, x = wide(np.random.default_rng(3), op, 500_009, dtype)
    before, results = bs.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7, 2):
            bs.set_num_threads(threads)
            results.append(op.function(dy, x))
    finally:
        bs.set_num_threads(before)
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("name", CORNERS)
@every_type
def test_corners(name: str, dtype: np.dtype) -> None:
    op = by_name(name)
    given, expected = (np.array(numbers, np.float64) for numbers in zip(*CORNERS[name], strict=True))
    with np.errstate(all="ignore"):
        x, want = given.astype(dtype), expected.astype(dtype)
    if dtype.itemsize == 2:
        want[(x == 0) & (given != 0)] = 0  # 1e-45 is nothing in 16 bits
    got = op.function(np.full(x.shape, 2, dtype), x)
    assert np.array_equal(got, want, equal_nan=True), (got, want)


@every_type
def test_relu_is_plus_zero_where_x_is_not_positive(dtype: np.dtype) -> None:
    x = np.array([0.0, -0.0, -1, NAN, -INF], dtype)
    for dy in (-1.0, -0.0, NAN, INF, -INF):
        dx = bs.relu_grad(np.full(5, dy, dtype), x)
        assert (dx == 0).all()
        assert not np.signbit(dx.astype(np.float32)).any()


@every_type
def test_what_passes_passes_unchanged(dtype: np.dtype) -> None:
    dy = np.array([NAN, INF, -INF, -0.0, 1e-7], dtype)
    for gradient in (bs.relu_grad, bs.leaky_relu_grad):
        assert same_bits(gradient(dy, np.ones(5, dtype)), dy)


@pytest.mark.parametrize("alpha", [0.0, -0.5, 2, np.float32(0.25), INF])
def test_leaky_relu_keeps_its_formula_for_every_alpha(alpha: Any) -> None:
    dy, y = np.array([3, 3, -3, 0], np.float32), np.array([1, -1, -1, -1], np.float32)
    with np.errstate(invalid="ignore"):
        want = np.where(y > 0, dy, np.float32(alpha) * dy)
    assert np.array_equal(bs.leaky_relu_grad(dy, y, alpha=alpha), want, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.0, -1.702, 0.0])
def test_quick_gelu_takes_its_alpha(alpha: float) -> None:
    dy, x = by_name("quick_gelu_grad").sample(np.random.default_rng(4), (1000,), np.float64)
    assert np.allclose(bs.quick_gelu_grad(dy, x, alpha=alpha), bs.reference.quick_gelu_grad(dy, x, alpha=alpha), 1e-14)


def test_quick_gelu_of_large_finite_x_is_finite() -> None:
    x = np.array([1e30, -1e30, 3e38, -3e38], np.float32)
    got = bs.quick_gelu_grad(np.ones(4, np.float32), x, alpha=1.0)
    assert np.array_equal(got, [1, 0, 1, 0])


FORWARD = {
    "relu_grad": (lambda x: np.maximum(x, 0), False),
    "leaky_relu_grad": (lambda x: np.where(x > 0, x, 0.01 * x), True),
    "sigmoid_grad": (lambda x: 1 / (1 + np.exp(-x)), True),
    "tanh_grad": (np.tanh, True),
    "quick_gelu_grad": (lambda x: x / (1 + np.exp(-1.702 * x)), False),
}


@every_op
def test_derivative_by_finite_differences(op: Op) -> None:
    """Along a random direction, central differences of the forward function."""
    rng = np.random.default_rng(5)
    forward, from_output = FORWARD[op.name]
    x = rng.standard_normal(4001)
    x[np.abs(x) < 1e-3] = 0.5  # not across the kink of the ReLUs
    dy, direction, step = rng.standard_normal(x.shape), rng.standard_normal(x.shape), 1e-5
    direction = np.clip(direction, -3, 3)
    dx = op.function(dy, forward(x) if from_output else x)
    difference = (forward(x + step * direction) - forward(x - step * direction)) / (2 * step)
    assert np.isclose(dx @ direction, dy @ difference, rtol=1e-8, atol=1e-6)


@every_op
@every_type
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4), (1,) * 12, (7, 1, 5, 1, 3, 2)])
def test_any_rank(op: Op, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    dy, x = op.sample(np.random.default_rng(6), shape, dtype)
    dx = op.function(dy, x)
    assert dx.shape == shape
    assert dx.dtype == dtype
    assert same_bits(dx.reshape(-1), op.function(dy.reshape(-1), x.reshape(-1)))


def layouts(a: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same values lying differently in memory."""
    spaced = np.zeros([2 * n + 1 for n in a.shape], a.dtype)[tuple(slice(1, None, 2) for _ in a.shape)]
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    reverse = np.zeros(a.shape, a.dtype)[tuple(slice(None, None, -1) for _ in a.shape)]
    made = {
        "spaced": spaced,
        "misaligned": raw,
        "reversed": reverse,
        "fortran": np.zeros(a.shape, a.dtype, order="F"),
        "permuted": np.zeros([a.shape[i] for i in (1, 2, 0)], a.dtype).transpose(2, 0, 1),
    }
    for copy in made.values():
        copy[...] = a
    return {"plain": a, **made}


@every_op
@every_type
def test_any_layout(op: Op, dtype: np.dtype) -> None:
    rng = np.random.default_rng(7)
    dy, x = op.sample(rng, (5, 6, 7), dtype)
    want = op.function(dy, x)
    for dy_name, a in layouts(dy, rng).items():
        for x_name, b in layouts(x, rng).items():
            assert same_bits(op.function(a, b), want), (dy_name, x_name)


@every_op
def test_the_result_lies_as_the_inputs_do(op: Op) -> None:
    dy, x = op.sample(np.random.default_rng(8), (4, 5, 6), np.float32)
    turned = op.function(np.asfortranarray(dy), np.asfortranarray(x))
    assert turned.flags.f_contiguous
    out = np.zeros((4, 5, 6), np.float32, order="F")
    assert op.function(np.asfortranarray(dy), np.asfortranarray(x), out=out) is out
    assert np.array_equal(out, turned)
    assert np.array_equal(op.function(dy, x, out=out), turned)


@every_op
@every_type
@pytest.mark.parametrize("n", [5, 3000, 100_001])
@pytest.mark.parametrize("which", [0, 1])
def test_out_may_be_an_input(op: Op, dtype: np.dtype, n: int, which: int) -> None:
    arguments = op.sample(np.random.default_rng(9), (n,), dtype)
    want = op.function(*arguments)
    assert op.function(*arguments, out=arguments[which]) is arguments[which]
    assert same_bits(arguments[which], want)


@settings(deadline=None, max_examples=60)
@given(
    op=st.sampled_from(ACTIVATIONS),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(target.runnable()),
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    steps=st.lists(st.integers(-3, 3).filter(bool), min_size=4, max_size=4),
    shift=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_odd_strides_and_offsets_write_only_the_output(
    op: Op, dtype: np.dtype, name: str, shape: list[int], steps: list[int], shift: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dy, x = op.sample(rng, shape, dtype)
    strided = np.zeros([n * abs(s) for n, s in zip(shape, steps, strict=False)], dtype)
    strided = strided[tuple(slice(None, None, s) for _, s in zip(shape, steps, strict=False))]
    strided[...] = x
    out = Guarded(shape, dtype, shift)
    with target.using(name):
        op.function(dy, strided, out=out.array)
        want = op.function(dy, x)
    assert out.intact()
    assert same_bits(out.array, want)


def test_large_arrays_stream_past_the_caches_and_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    from backstroke import memory

    monkeypatch.setattr(memory, "large_output", lambda inputs: 0)
    for op in ACTIVATIONS:
        for dtype in DTYPES:
            for shift in (0, 1, 5, 17):
                with target.using("host"):  # forgets the launchers, which know the true limit
                    dy, x = op.sample(np.random.default_rng(shift), (70_001,), dtype)
                    out = Guarded(dy.shape, dtype, shift)
                    op.function(dy, x, out=out.array)
                    assert out.intact()
                    assert same_bits(op.function(dy[:50], x[:50]), out.array[:50])
    with target.using("host"):
        pass


@every_type
def test_quick_gelu_of_an_infinite_gradient_has_the_sign_of_the_derivative(dtype: np.dtype) -> None:
    x = np.array([-4, -1.5, -0.5, 0, 2], dtype)
    sign = np.array([-1, -1, 1, 1, 1])
    for inf in (np.inf, -np.inf):
        got = bs.quick_gelu_grad(np.full_like(x, inf), x, alpha=1.0)
        assert np.array_equal(got.astype(np.float64), inf * sign)
