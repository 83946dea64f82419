from __future__ import annotations

import inspect
import itertools
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from pooling_problems import Problem, arrange, problems

from backstroke.geometry import Geometry
from backstroke.pooling import reference
from backstroke.pooling.reference import (
    avg_pool,
    avg_pool_grad,
    global_avg_pool_grad,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_input,
)

ORT = json.loads((Path(__file__).parent / "data" / "ort_pooling_cases.json").read_text())
NAN, INF = math.nan, math.inf


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-9, 10, shape).astype(np.float64)


# Adjoint: <dy, pool(v)> == <pool_grad(dy), v>, exactly, on integers


@settings(deadline=None)
@given(problems())
def test_max_gradient_is_the_adjoint_of_picking_the_maxima(problem: Problem) -> None:
    rng = problem.rng
    x, v = (integers(rng, problem.input_shape) for _ in range(2))
    dy = integers(rng, problem.output_shape)
    y, indices = max_pool(x, problem.kernel, **problem.options, return_indices=True)
    assert y.shape == indices.shape == problem.output_shape
    assert indices.dtype == np.int64
    found = indices >= 0
    assert np.array_equal(x.ravel()[indices[found]], y[found])
    assert np.all(y[~found] == -INF)
    dx = max_pool_grad_from_input(dy, x, problem.kernel, **problem.options)
    assert dx.shape == x.shape
    assert np.sum(dy[found] * v.ravel()[indices[found]]) == np.sum(dx * v)
    if found.all():
        assert np.array_equal(max_pool_grad(dy, indices, x.shape), dx)


@settings(deadline=None)
@given(problems())
def test_average_gradient_is_the_adjoint_of_the_average(problem: Problem) -> None:
    rng = problem.rng
    for counted in ("valid", "padded", "kernel"):
        # Scaled by all divisors' least common multiple, every quotient is whole.
        scale = math.prod(math.lcm(*map(int, d)) for d in problem.geometry.divisors(counted))  # type: ignore[arg-type]
        v, dy = scale * integers(rng, problem.input_shape), scale * integers(rng, problem.output_shape)
        layout = problem.options["layout"]
        y = reference.window_mean(v, problem.geometry, counted, layout)  # type: ignore[arg-type]
        dx = reference.window_mean_grad(dy, v.shape, problem.geometry, counted, layout)  # type: ignore[arg-type]
        assert y.shape == dy.shape
        assert dx.shape == v.shape
        assert np.sum(dy * y) == np.sum(dx * v)
        if counted != "kernel":
            options = problem.options | {"count_include_pad": counted == "padded"}
            assert np.array_equal(avg_pool(v, problem.kernel, **options), y)
            assert np.array_equal(avg_pool_grad(dy, v.shape, problem.kernel, **options), dx)


@settings(deadline=None)
@given(problems())
def test_layouts_agree(problem: Problem) -> None:
    rng = problem.rng
    options = {k: v for k, v in problem.options.items() if k != "layout"}
    channels_first = (*problem.input_shape[:1], 3, *problem.geometry.input_size)
    x = integers(rng, channels_first)
    dy = integers(rng, (*channels_first[:2], *problem.geometry.output_size))

    def last(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1)

    for grad in (
        lambda d, a, layout: max_pool_grad_from_input(d, a, problem.kernel, **options, layout=layout),
        lambda d, a, layout: avg_pool_grad(d, a.shape, problem.kernel, **options, layout=layout),
    ):
        assert np.array_equal(last(grad(dy, x, "NCX")), grad(last(dy), last(x), "NXC"))
    places = np.arange(x.size).reshape(x.shape)
    y, first_indices = max_pool(x, problem.kernel, **options, return_indices=True)
    y_last, last_indices = max_pool(last(x), problem.kernel, **options, layout="NXC", return_indices=True)
    assert np.array_equal(last(y), y_last)
    found = last_indices >= 0
    assert np.array_equal(last(places).ravel()[last_indices[found]], last(first_indices)[found])


# Ties, NaN, infinities, signed zero


@pytest.mark.parametrize(
    ("window", "index", "value"),
    [
        ([7, 7, 7], 0, 7),
        ([1, 5, 5], 1, 5),
        ([-0.0, 0.0, -1], 0, 0),
        ([0.0, -0.0, -1], 0, 0),
        ([NAN, 1, 2], 2, 2),
        ([2, 1, NAN], 0, 2),
        ([-INF, NAN, -3], 2, -3),
        ([INF, 1, INF], 0, INF),
        ([NAN, NAN, NAN], -1, -INF),
        ([-INF, -INF, -INF], -1, -INF),
        ([NAN, -INF, NAN], -1, -INF),
    ],
)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_which_element_is_the_maximum(window: list[float], index: int, value: float, layout: str) -> None:
    for order in ((3,), (3, 1), (1, 3), (1, 1, 3), (1, 3, 1)):
        x = np.array(window).reshape(arrange(1, 1, order, layout))
        y, indices = max_pool(x, order, layout=layout, return_indices=True)
        assert (y.item(), indices.item()) == (value, index)
        dx = max_pool_grad_from_input(np.full(y.shape, 5.0), x, order, layout=layout)
        assert dx.ravel().tolist() == [5.0 if i == index else 0.0 for i in range(3)]


def test_scan_order_runs_over_the_last_axis_fastest() -> None:
    x = np.array([[0, 9], [9, 0]]).reshape(1, 1, 2, 2)
    assert max_pool(x, 2, return_indices=True)[1].item() == 1


def test_a_window_wholly_in_padding_has_no_maximum_and_average_zero() -> None:
    x, dy = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10, 100, 1000, 10000]]])
    y, indices = max_pool(x, 2, strides=1, pads=2, return_indices=True)
    assert y.tolist() == [[[-INF, 1, 2, 2, -INF]]]
    assert indices.tolist() == [[[-1, 0, 1, 1, -1]]]
    assert max_pool_grad_from_input(dy, x, 2, strides=1, pads=2).tolist() == [[[10, 1100]]]
    assert avg_pool(x, 2, strides=1, pads=2).tolist() == [[[0, 1, 1.5, 2, 0]]]
    assert avg_pool_grad(dy, x.shape, 2, strides=1, pads=2).tolist() == [[[60, 1050]]]
    assert avg_pool(x, 2, strides=1, pads=2, count_include_pad=True).tolist() == [[[0, 0.5, 1.5, 1, 0]]]


def test_dy_reaches_its_maximum_only_and_sums_start_at_plus_zero() -> None:
    x = np.array([[[1.0, 2, 3, 4]]])
    dx = max_pool_grad_from_input([[[NAN, INF, -INF]]], x, 2, strides=1)
    np.testing.assert_array_equal(dx, [[[0, NAN, INF, -INF]]])
    np.testing.assert_array_equal(
        max_pool_grad_from_input([[[INF, -INF]]], [[[1, 9, 3]]], 2, strides=1), [[[0, NAN, 0]]]
    )
    assert not np.signbit(max_pool_grad_from_input([[[-0.0]]], [[[1.0, 2.0]]], 2)).any()
    assert not np.signbit(avg_pool_grad([[[-0.0]]], (1, 1, 2), 2)).any()


# max_pool_grad and its indices


@pytest.mark.parametrize("case", ORT["kernel_cases"], ids=lambda c: c["name"])
def test_ort_max_pool_grad(case: dict[str, Any]) -> None:
    dy = np.array(case["dY"]).reshape(case["dY_shape"])
    indices = np.array(case["Indices"]).reshape(dy.shape)
    if "error" in case:
        out = np.full(case["dX_shape"], 7.0)
        with pytest.raises(ValueError, match=case["error"]):
            max_pool_grad(dy, indices, case["dX_shape"], out=out)
        assert np.all(out == 7)
    else:
        assert max_pool_grad(dy, indices, case["dX_shape"]).ravel().tolist() == case["dX"]


def test_indices_may_repeat_and_leave_their_plane() -> None:
    dy = np.array([[[1.0, 2.0], [4.0, 8.0]]])
    dx = max_pool_grad(dy, np.array([[[5, 0], [0, 5]]]), (1, 2, 3))
    assert dx.tolist() == [[[6, 0, 0], [0, 0, 9]]]


@pytest.mark.parametrize(
    ("indices", "shape", "error"),
    [
        (np.zeros((1, 1, 2), np.int32), (1, 1, 4), TypeError),
        (np.zeros((1, 1, 2)), (1, 1, 4), TypeError),
        (np.zeros((1, 1, 2), np.uint64), (1, 1, 4), TypeError),
        (np.zeros((1, 2), np.int64), (1, 1, 4), ValueError),
        (np.full((1, 1, 2), 4), (1, 1, 4), ValueError),
        (np.full((1, 1, 2), -(2**63)), (1, 1, 4), ValueError),
        (np.zeros((1, 1, 2), np.int64), (1, 1, 0), ValueError),
    ],
)
def test_bad_indices_are_refused(indices: np.ndarray, shape: tuple[int, ...], error: type[Exception]) -> None:
    with pytest.raises(error, match="indices"):
        max_pool_grad(np.ones((1, 1, 2)), indices, shape)


# ONNX Runtime's gradient cases, by their own forward op


@pytest.mark.parametrize("case", ORT["gradient_cases"], ids=lambda c: c["name"])
def test_ort_gradients_are_the_derivative(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(5566)
    shape, attributes = tuple(case["x"][0]), case["attrs"]
    is_max = "Max" in case["op"]
    # As ONNX Runtime's checker draws them: apart by more than a step for maxima, normal otherwise.
    x = rng.permutation(math.prod(shape)).reshape(shape) * 0.01 if is_max else rng.normal(0, 5, shape)
    rank = len(shape) - 2
    kernel = attributes.get("kernel_shape", shape[2:])
    pads = attributes.get("pads", [0] * 2 * rank)
    options = {"strides": attributes.get("strides", 1), "pads": tuple(zip(pads[:rank], pads[rank:], strict=True))}
    if not is_max:
        options["count_include_pad"] = bool(attributes.get("count_include_pad", 0))
    forward = max_pool if is_max else avg_pool
    dy, direction = rng.normal(size=case["y"]), rng.uniform(-1, 1, shape)
    step = 1e-3 if is_max else 1.0
    up, down = (forward(x + sign * step * direction, kernel, **options) for sign in (1, -1))
    assert up.shape == tuple(case["y"])
    slope = np.sum(dy * (up - down)) / (2 * step)
    if case["op"] == "GlobalAveragePool":
        gradients = [global_avg_pool_grad(dy, shape), avg_pool_grad(dy, shape, kernel, **options)]
    elif is_max:
        _, indices = max_pool(x, kernel, **options, return_indices=True)
        gradients = [max_pool_grad_from_input(dy, x, kernel, **options), max_pool_grad(dy, indices, shape)]
    else:
        gradients = [avg_pool_grad(dy, shape, kernel, **options)]
    for dx in gradients:
        assert np.sum(dx * direction) == pytest.approx(slope, abs=1e-9 if is_max else 1e-11)


# oneDNN


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("counted", "golden"),
    [
        ("valid", [-1, 1.5, 1.5, 10, 2, 4, 4, 4, 2, 4, 4, 4, 12, -2.5, -2.5, -3]),
        ("kernel", [-0.25, 0.75, 0.75, 2.5, 1, 4, 4, 2, 1, 4, 4, 2, 3, -1.25, -1.25, -0.75]),
    ],
)
def test_onednn_golden_values(counted: str, golden: list[float], layout: str) -> None:
    dy = np.array([-1.0, 3, 10, 4, 16, 8, 12, -5, -3]).reshape(arrange(1, 1, (3, 3), layout))
    shape = arrange(1, 1, (4, 4), layout)
    geometry = Geometry.of((4, 4), 2, strides=2, pads=1)
    dx = reference.window_mean_grad(dy, shape, geometry, counted, layout)  # type: ignore[arg-type]
    assert dx.ravel().tolist() == golden
    include = counted == "kernel"
    assert np.array_equal(avg_pool_grad(dy, shape, 2, strides=2, pads=1, count_include_pad=include, layout=layout), dx)


def test_onnx_clips_a_ceil_window_and_onednn_does_not() -> None:
    # Taps 2 and 3 of an input of 3: ONNX divides the last window by 1, oneDNN by 2.
    options: dict[str, Any] = {"ceil_mode": True, "count_include_pad": True}
    assert avg_pool_grad([[[2.0, 2.0]]], (1, 1, 3), 2, **options).tolist() == [[[1, 1, 2]]]
    geometry = Geometry.of((3,), 2, rounding="ceil")
    dx = reference.window_mean_grad(np.full((1, 1, 2), 2.0), (1, 1, 3), geometry, "kernel", "NCX")
    assert dx.tolist() == [[[1, 1, 1]]]


# Empty arrays, bad arguments, out=


@pytest.mark.parametrize("shape", [(0, 2, 4, 4), (2, 0, 4, 4), (0, 0, 4, 4)])
def test_no_batch_or_no_channels(shape: tuple[int, ...]) -> None:
    small = (*shape[:2], 2, 2)
    y, indices = max_pool(np.zeros(shape), 2, return_indices=True)
    assert y.shape == indices.shape == avg_pool(np.zeros(shape), 2).shape == small
    dy = np.zeros(small)
    for dx in (
        max_pool_grad(dy, indices, shape),
        max_pool_grad_from_input(dy, np.zeros(shape), 2),
        avg_pool_grad(dy, shape, 2),
        global_avg_pool_grad(np.zeros((*shape[:2], 1, 1)), shape),
    ):
        assert dx.shape == shape


def test_an_input_without_elements_has_no_windows_unless_padded() -> None:
    empty = np.zeros((1, 2, 0))
    with pytest.raises(ValueError, match="axis 0"):
        avg_pool(empty, 1)
    assert avg_pool(empty, 2, pads=1).tolist() == [[[0], [0]]]
    assert max_pool_grad_from_input(np.ones((1, 2, 1)), empty, 2, pads=1).shape == empty.shape
    assert global_avg_pool_grad(np.ones((1, 2, 1)), (1, 2, 0)).shape == empty.shape


def test_global_average() -> None:
    dy = np.array([6.0, 12.0])
    dx = global_avg_pool_grad(dy.reshape(1, 2, 1, 1), (1, 2, 2, 3))
    assert np.array_equal(dx, np.repeat([1.0, 2.0], 6).reshape(1, 2, 2, 3))
    dx = global_avg_pool_grad(dy.reshape(1, 1, 1, 2), (1, 2, 3, 2), layout="NXC")
    assert np.array_equal(dx, np.tile([1.0, 2.0], 6).reshape(1, 2, 3, 2))
    with pytest.raises(ValueError, match="dy: shape"):
        global_avg_pool_grad(np.ones((1, 2, 2, 3)), (1, 2, 2, 3))


@pytest.mark.parametrize("shape", [(1, 1, 2, 3), (2, 1, 2, 2), (1, 1, 2), (4,)])
def test_dy_must_fit(shape: tuple[int, ...]) -> None:
    x = np.zeros((1, 1, 4, 4))
    with pytest.raises(ValueError, match="dy: shape"):
        max_pool_grad_from_input(np.ones(shape), x, 2)
    with pytest.raises(ValueError, match="dy: shape"):
        avg_pool_grad(np.ones(shape), x.shape, 2)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: max_pool(np.zeros((2, 2)), 1), ValueError, "x: shape"),
        (lambda: max_pool(np.zeros((1,) * 6), 1), ValueError, "x: shape"),
        (lambda: max_pool(np.zeros((1, 1, 4), complex), 1), TypeError, "x: complex128"),
        (lambda: max_pool([[["a"]]], 1), TypeError, "x"),
        (lambda: max_pool(np.zeros((1, 1, 4)), 5), ValueError, "kernel"),
        (lambda: max_pool(np.zeros((1, 1, 4)), 2, ceil_mode=1), TypeError, "ceil_mode"),
        (lambda: max_pool(np.zeros((1, 1, 4)), 2, layout="NHWC"), ValueError, "layout"),
        (lambda: avg_pool(np.zeros((1, 1, 4)), 2, count_include_pad=1), TypeError, "count_include_pad"),
        (lambda: avg_pool_grad(np.zeros((1, 1, 2)), (1, 1), 2), ValueError, "input_shape"),
        (lambda: avg_pool_grad(np.zeros((1, 1, 2)), (1, 1, 4.0), 2), TypeError, "input_shape"),
        (lambda: avg_pool_grad(np.zeros((1, 1, 2)), (1, 1, -4), 2), ValueError, "input_shape"),
        (lambda: max_pool(np.zeros((1, 1, 4)), 2, return_indices=True, out=np.zeros((1, 1, 2))), TypeError, "out"),
        (lambda: avg_pool(np.zeros((1, 1, 4)), 2, out=np.zeros((1, 1, 3))), ValueError, "out: shape"),
        (lambda: avg_pool(np.zeros((1, 1, 4)), 2, out=np.zeros((1, 1, 2), np.int64)), TypeError, "out: int64"),
        (lambda: avg_pool(np.zeros((1, 1, 4)), 2, out=[0, 0]), TypeError, "out: list"),
    ],
)
def test_bad_arguments_are_named(call: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_out_is_filled_rounded_once_and_returned(dtype: Any) -> None:
    out = np.zeros((1, 1, 3), dtype)
    assert avg_pool_grad([[[1.0]]], (1, 1, 3), 3, out=out) is out
    assert out.tolist() == np.full((1, 1, 3), 1 / 3).astype(dtype).tolist()
    values, places = np.zeros((1, 1, 2), dtype), np.zeros((1, 1, 2), np.int64)
    given = max_pool(np.array([[[1, 2, 4, 3]]], dtype), 2, return_indices=True, out=(values, places))
    assert given[0] is values
    assert given[1] is places
    assert values.astype(int).tolist() == [[[2, 4]]]
    assert places.tolist() == [[[1, 2]]]


def test_integer_and_bool_inputs() -> None:
    assert max_pool(np.array([[[False, True]]]), 2, return_indices=True)[1].item() == 1
    assert max_pool_grad_from_input([[[3]]], np.array([[[1, 2]]], np.int32), 2).tolist() == [[[0, 3]]]


def test_every_public_function_says_what_it_does() -> None:
    functions = [f for name, f in vars(reference).items() if inspect.isfunction(f) and not name.startswith("_")]
    assert all(f.__doc__ for f in functions)


# PyTorch, where it can say the same


TORCH_PROBLEMS = [
    (rank, kernel, stride, pad, dilation, ceil_mode)
    for rank, kernel, stride, pad, dilation, ceil_mode in itertools.product(
        (1, 2, 3), (2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)
    )
]


@pytest.mark.parametrize(("rank", "kernel", "stride", "pad", "dilation", "ceil_mode"), TORCH_PROBLEMS)
def test_torch_agrees(rank: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng([rank, kernel, stride, pad, dilation, ceil_mode])
    x = integers(rng, (2, 2, 7, 6, 5)[: rank + 2])
    options: dict[str, Any] = {"strides": stride, "pads": pad, "ceil_mode": ceil_mode}

    theirs_x = torch.tensor(x, requires_grad=True)
    theirs, their_indices = getattr(torch.nn.functional, f"max_pool{rank}d")(
        theirs_x, kernel, stride, pad, dilation, ceil_mode=ceil_mode, return_indices=True
    )
    y, indices = max_pool(x, kernel, **options, dilations=dilation, return_indices=True)
    assert np.array_equal(y, theirs.detach().numpy())
    plane = math.prod(x.shape[2:])
    planes = np.arange(4).reshape(2, 2, *(1,) * rank) * plane
    assert np.array_equal(indices, their_indices.numpy() + planes)
    dy = integers(rng, y.shape)
    (theirs_dx,) = torch.autograd.grad(theirs, theirs_x, torch.tensor(dy))
    dx = max_pool_grad_from_input(dy, x, kernel, **options, dilations=dilation)
    assert np.array_equal(dx, theirs_dx.numpy())
    assert np.array_equal(dx, max_pool_grad(dy, indices, x.shape))

    for include in (False, True) if dilation == 1 else ():
        theirs = getattr(torch.nn.functional, f"avg_pool{rank}d")(
            theirs_x, kernel, stride, pad, ceil_mode=ceil_mode, count_include_pad=include
        )
        y = avg_pool(x, kernel, **options, count_include_pad=include)
        np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-14, atol=1e-14)
        (theirs_dx,) = torch.autograd.grad(theirs, theirs_x, torch.tensor(dy))
        dx = avg_pool_grad(dy, x.shape, kernel, **options, count_include_pad=include)
        np.testing.assert_allclose(dx, theirs_dx.numpy(), rtol=1e-13, atol=1e-13)
