"""Pooling of bad arguments: a named error before anything is written, or the right answer; nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backstroke as bs
from backstroke import reference
from backstroke.geometry import Geometry

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
DY = np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)
NAN, INF = float("nan"), float("inf")
WINDOWED: dict[str, Callable[..., Any]] = {
    "max_pool": lambda module, **options: module.max_pool(X, **options),
    "avg_pool": lambda module, **options: module.avg_pool(X, **options),
    "avg_pool_grad": lambda module, **options: module.avg_pool_grad(DY, X.shape, **options),
    "max_pool_grad_from_input": lambda module, **options: module.max_pool_grad_from_input(DY, X, **options),
}
FIRST = {"max_pool": np.max, "avg_pool": np.mean}
every_op = pytest.mark.parametrize("op", WINDOWED)
NO_NUMBERS = (1.5, 2.0, NAN, INF, True, "2", b"2", np.float32(2), (2, 2.0), (None, 2))
WRONG_LENGTHS = ([], [1], (2, 2, 2))
NEGATIVE = (-1, -(2**31), -(2**63), -(2**64), (2, -1))
HUGE = (2**31, 2**63 - 1, 2**63, 2**64, 10**30, (2**63, 2))


@every_op
@pytest.mark.parametrize("option", ["kernel", "strides", "pads", "dilations"])
@pytest.mark.parametrize("value", [*NO_NUMBERS, *WRONG_LENGTHS, *NEGATIVE, *HUGE], ids=repr)
def test_window_arguments(op: str, option: str, value: Any) -> None:
    options = {"kernel": 2, option: value}
    if option == "strides" and value == 2**31 and op in FIRST:  # then there is one window, and it is right
        assert np.allclose(WINDOWED[op](bs, **options)[:, :, 0, 0], FIRST[op](X[:, :, :2, :2], axis=(2, 3)))
        return
    words = rf"{option}|kernel: no window fits|dy: shape|too large for any memory|64 bits"
    with pytest.raises((TypeError, ValueError), match=words):
        WINDOWED[op](bs, **options)


@every_op
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("auto_pad", value) for value in ("", "same", "SAME UPPER", None, 1, b"valid", ["none"])],
        *[("ceil_mode", value) for value in (1, 0.0, None, "true", [True])],
        *[("layout", value) for value in ("NCHW", "ncx", "", None, 0, b"NCX")],
    ],
)
def test_words_and_flags(op: str, option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        WINDOWED[op](bs, kernel=2, **{option: value})


@pytest.mark.parametrize("value", [1, 0.0, None, "true"])
def test_count_include_pad_is_a_bool(value: Any) -> None:
    for op in ("avg_pool", "avg_pool_grad"):
        with pytest.raises(TypeError, match="count_include_pad"):
            WINDOWED[op](bs, kernel=2, count_include_pad=value)


@pytest.mark.parametrize(
    "shape",
    [
        (2**31, 1, 4, 4), (2**40, 2**40, 2, 2), (2, 3, 2**63, 8), (-1, 3, 8, 8), (2, 3), (1,) * 6, (2, 3, 8, 8.0),
        (2, 3, 8, True), "abcd", None, 5, (2, 3, 0, 8), (0, 3, 8, 8), (2, 0, 8, 8), (2, 3, 8), (2, 3, 9, 10),
    ],
    ids=repr,
)  # fmt: skip
def test_shapes_of_inputs(shape: Any) -> None:
    """Those of more than 2^31 elements are refused by arithmetic, not by trying."""
    for call in (lambda: bs.avg_pool_grad(DY, shape, 2), lambda: bs.global_avg_pool_grad(DY, shape)):
        with pytest.raises((TypeError, ValueError), match=r"input_shape|dy: shape|kernel: no window fits"):
            call()


@pytest.mark.parametrize(
    "indices",
    [
        np.zeros(DY.shape, np.int32), np.zeros(DY.shape, np.uint64), np.zeros(DY.shape, np.float32),
        np.zeros(DY.shape, bool), np.zeros(DY.shape, ">i8"), np.zeros(DY.shape[:3], np.int64), np.full(DY.shape, -1),
        np.full(DY.shape, X.size), np.full(DY.shape, 2**62), np.full(DY.shape, -(2**63)), None, [1],
    ],
    ids=lambda a: f"{getattr(a, 'dtype', a)}",
)  # fmt: skip
def test_indices(indices: Any) -> None:
    out = np.full(X.shape, 7, np.float32)
    with pytest.raises((TypeError, ValueError), match="indices"):
        bs.max_pool_grad(DY, indices, X.shape, out=out)
    assert (out == 7).all()


def test_one_bad_index_at_the_end_of_many_stops_everything() -> None:
    indices = np.zeros((4, 64, 56, 56), np.int64)
    out = np.full((4, 64, 112, 112), 7, np.float32)
    for bad in (-1, out.size):
        indices[-1, -1, -1, -1] = bad
        with pytest.raises(ValueError, match=f"indices: {bad} at position {indices.size - 1}"):
            bs.max_pool_grad(np.ones(indices.shape, np.float32), indices, out.shape, out=out)
        assert (out == 7).all()


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8)])
def test_no_images_or_no_channels(shape: tuple[int, ...], layout: str) -> None:
    x = np.empty(shape if layout == "NCX" else (shape[0], *shape[2:], shape[1]), np.float32)
    y, places = bs.max_pool(x, 2, layout=layout, return_indices=True)
    assert y.size == places.size == 0
    assert bs.max_pool_grad(y, places, x.shape).shape == x.shape
    assert bs.max_pool_grad_from_input(y, x, 2, layout=layout).shape == x.shape
    assert bs.avg_pool_grad(bs.avg_pool(x, 2, layout=layout), x.shape, 2, layout=layout).shape == x.shape


@pytest.mark.parametrize("pads", [3, 7, ((5, 0), (0, 9))])
def test_pads_larger_than_the_window(pads: Any) -> None:
    """Windows that see nothing have the average 0 and no maximum; what they are given goes nowhere."""
    y = bs.avg_pool(X, 2, pads=pads)
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    for got, want in (
        (y, reference.avg_pool(X, 2, pads=pads)),
        (bs.max_pool(X, 2, pads=pads), reference.max_pool(X, 2, pads=pads)),
        (bs.avg_pool_grad(dy, X.shape, 2, pads=pads), reference.avg_pool_grad(dy, X.shape, 2, pads=pads)),
        (
            bs.max_pool_grad_from_input(dy, X, 2, pads=pads),
            reference.max_pool_grad_from_input(dy, X, 2, pads=pads),
        ),
    ):
        assert np.allclose(got, want, rtol=1e-6)


def test_a_geometry_of_more_than_two_to_the_31_elements() -> None:
    windows = Geometry.of((2**20, 2**20), 3, strides=2, pads=1)
    assert windows.output_size == (2**19, 2**19)
    assert windows.axis_taps(0, 2**19 - 1)[-1] < 2**20
    windows.require_int64()
