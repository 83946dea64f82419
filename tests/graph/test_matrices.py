"""Matrix products of the gradient graph: in every way in which the operands can lie."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backstroke as bs
from backstroke.graph.matrices import Product

LEADS = [((), ()), ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((1,), (3, 2)), ((0,), (0,))]
SIZES = [(5, 7, 3), (33, 20, 17), (1, 4, 9), (4, 1, 1), (3, 0, 2)]
GUARD = 64


def by_columns(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def computed(a: np.ndarray, b: np.ndarray, *options: Any) -> np.ndarray:
    product = Product(a, b, *options)
    if product.dense:
        a, b = map(np.ascontiguousarray, (a, b))
    size = int(np.prod(product.shape))
    room = np.full(size + 2 * GUARD, 7, a.dtype)
    work = np.full(product.work + 2 * GUARD, 7, np.uint8)
    y = room[GUARD : GUARD + size].reshape(product.shape)
    product.run(a, b, y, work[GUARD : GUARD + product.work])
    for guards in (room[:GUARD], room[GUARD + size :], work[:GUARD], work[GUARD + product.work :]):
        assert (guards == 7).all()
    return y


@pytest.mark.parametrize("leads", LEADS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_way_in_which_operands_lie(leads: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for (m, inner, n), flip_a, flip_b, turn_a, turn_b in itertools.product(SIZES, *[(False, True)] * 4):
        if (flip_a or flip_b) and leads != ((), ()):  # MatMul has no flips
            continue
        a, b = (rng.integers(-8, 9, (*lead, *s)) for lead, s in zip(leads, ((m, inner), (inner, n)), strict=True))
        expected = 2 * np.matmul(a, b)
        a, b = (x.astype(dtype) for x in (a, b))
        a, b = (by_columns(x) if turn else x for x, turn in ((a, turn_a), (b, turn_b)))
        a, b = (x.swapaxes(-1, -2) if flip else x for x, flip in ((a, flip_a), (b, flip_b)))
        y = computed(a, b, 2.0, flip_a, flip_b)
        assert y.shape == expected.shape
        assert np.array_equal(y, expected)  # whole numbers: exact


def test_no_product_is_left_to_numpys_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads spin after a call, for longer than a training step of a small network takes."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("np.matmul was called")

    expected = x.astype(float) @ w
    monkeypatch.setattr(np, "matmul", refuse)
    for a, b in itertools.product((x, by_columns(x)), (w, by_columns(w))):
        if a.flags.c_contiguous or b.flags.c_contiguous:
            assert np.allclose(computed(a, b), expected, rtol=0, atol=1e-4)
    stripes = np.repeat(x, 2, axis=1)[:, ::2]
    assert np.allclose(computed(stripes, w), expected, rtol=0, atol=1e-4)


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 130, 70), (6, 70, 90)))
    before, found = bs.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            bs.set_num_threads(threads)
            found.append([computed(a, b), computed(a, by_columns(b)), computed(by_columns(a), b), computed(a[0], b)])
    finally:
        bs.set_num_threads(before)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.tobytes() == other.tobytes()
