"""The float64 twins of convolution: their slopes, a naive sum, torch, ONNX Runtime's cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convolution_problems import Problem, Recorded, problem, problems, recorded
from hypothesis import given, settings

from backstroke.convolution.reference import ConvGrads, conv, conv_grad

CASES = recorded()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def naive(x: np.ndarray, w: np.ndarray, p: Problem) -> np.ndarray:
    """The sum over taps, one number after the other, channels first."""
    shapes = p.shapes
    geometry, group = shapes.geometry, shapes.group
    y = np.zeros(shapes.y)
    for n, m, *o in np.ndindex(shapes.y):
        first = m // (shapes.outputs // group) * w.shape[1]
        for c in range(w.shape[1]):
            for t in np.ndindex(geometry.kernel):
                at = [geometry.start(axis, o[axis]) + t[axis] * geometry.dilations[axis] for axis in range(len(t))]
                if all(0 <= i < size for i, size in zip(at, geometry.input_size, strict=True)):
                    y[(n, m, *o)] += w[(m, c, *t)] * x[(n, first + c, *at)]
    return y


@pytest.mark.parametrize(
    "p",
    [
        problem(2, 3, 2, (7,), (3,), strides=2, pads=1),
        problem(2, 4, 6, (5, 4), (3, 2), group=2, pads=((2, 0), (0, 3)), dilations=(1, 2), strides=(1, 3)),
        problem(1, 2, 4, (3, 4, 2), (2, 1, 2), group=2, pads=((4, 0), (0, 0), (1, 1)), strides=(2, 1, 1)),
        problem(1, 2, 1, (2, 2), (4, 4), pads=((2, 1), (1, 3))),
        problem(1, 1, 1, (2,), (2,), pads=5),
    ],
)
def test_values_are_the_naive_sum(p: Problem) -> None:
    _, x, w, b = p.whole()
    assert np.array_equal(conv(x, w, **p.options), naive(x, w, p))
    assert np.array_equal(conv(x, w, b, **p.options), naive(x, w, p) + b.reshape(-1, *[1] * (x.ndim - 2)))


@settings(deadline=None)
@given(problems())
def test_gradients_are_adjoint_to_the_values(p: Problem) -> None:
    """<dy, conv(x, w, b)> is linear in x, in w and in b; the gradients are its coefficients, exactly on integers."""
    dy, x, w, b = p.whole()
    dx, dw, db = conv_grad(dy, x, w, **p.options)
    assert (dx.shape, dw.shape, db.shape) == (x.shape, w.shape, b.shape)
    y = conv(x, w, **p.options)
    assert y.shape == dy.shape
    assert np.sum(dy * y) == np.sum(dx * x) == np.sum(dw * w)
    assert np.sum(dy * (conv(x, w, b, **p.options) - y)) == np.sum(db * b)


@settings(deadline=None)
@given(problems())
def test_layouts_agree(p: Problem) -> None:
    dy, x, w, b = p.whole()
    other = {**p.options, "layout": "NXC" if p.options["layout"] == "NCX" else "NCX"}

    def turned(a: np.ndarray) -> np.ndarray:
        return np.moveaxis(a, 1, -1) if other["layout"] == "NXC" else np.moveaxis(a, -1, 1)

    def weights(a: np.ndarray) -> np.ndarray:
        return np.moveaxis(a, (0, 1), (-1, -2)) if other["layout"] == "NXC" else np.moveaxis(a, (-1, -2), (0, 1))

    assert np.array_equal(conv(turned(x), weights(w), b, **other), turned(conv(x, w, b, **p.options)))
    ours, theirs = conv_grad(turned(dy), turned(x), weights(w), **other), conv_grad(dy, x, w, **p.options)
    assert np.array_equal(ours.dx, turned(theirs.dx))
    assert np.array_equal(ours.dw, weights(theirs.dw))
    assert np.array_equal(ours.db, theirs.db)


@every_case
def test_finite_differences(case: Recorded) -> None:
    """As ONNX Runtime checks it: the slope in every direction. Convolution is linear, so a step of 1 is exact."""
    p = case.problem
    _, x, w, b = p.whole()
    y = conv(x, w, b, **p.options)
    assert y.shape == case.dy
    dy = np.random.default_rng(5566).integers(-4, 5, y.shape).astype(float)
    grads = conv_grad(dy, x, w, **p.options)
    for position, gradient in enumerate(grads):
        for place in np.ndindex(gradient.shape):
            moved = [x.copy(), w.copy(), b.copy()]
            moved[position][place] += 1
            assert np.sum(dy * (conv(*moved, **p.options) - y)) == gradient[place]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_torch_agrees(rank: int) -> None:
    torch = pytest.importorskip("torch")
    forward = getattr(torch.nn.functional, f"conv{rank}d")
    for stride, pad, dilation, (group, inside, outside) in itertools.product(
        (1, 2, 3), (0, 1, 4), (1, 2), ((1, 3, 2), (3, 1, 1), (2, 1, 3), (2, 2, 2))
    ):
        p = problem(
            2, group * inside, group * outside, (7, 6, 5)[:rank], (3, 2, 2)[:rank], group=group, pads=pad,
            strides=stride, dilations=dilation,
        )  # fmt: skip
        dy, *arguments = p.whole()
        tensors = [torch.tensor(a, requires_grad=True) for a in arguments]
        y = forward(*tensors, stride=stride, padding=pad, dilation=dilation, groups=group)
        assert np.array_equal(y.detach().numpy(), conv(*arguments, **p.options))
        y.backward(torch.tensor(dy))
        for ours, theirs in zip(conv_grad(dy, *arguments[:2], **p.options), tensors, strict=True):
            assert np.array_equal(ours, theirs.grad.numpy())


def test_only_what_is_asked_for() -> None:
    p = problem(2, 3, 4, (5,), (3,))
    dy, x, w, _ = p.whole()
    whole = conv_grad(dy, x, w)
    assert isinstance(whole, ConvGrads)
    for wrt in (("x",), ("b", "w"), ("w", "b", "x"), "b"):
        some = conv_grad(dy, x, w, wrt=wrt)
        for name, a, every in zip("xwb", some, whole, strict=True):
            assert (a is None) == (name not in wrt)
            assert a is None or np.array_equal(a, every)


def test_out() -> None:
    p = problem(2, 3, 4, (5,), (3,))
    dy, x, w, b = p.whole()
    y, dx, dw = np.ones(p.shapes.y, np.float32), np.ones(x.shape), np.ones(w.shape)
    assert conv(x, w, b, out=y) is y
    assert np.array_equal(y, conv(x, w, b))
    grads = conv_grad(dy, x, w, wrt=("w", "x"), out=(dw, dx))
    assert grads.dx is dx
    assert grads.dw is dw
    assert grads.db is None
    assert np.array_equal(dx, conv_grad(dy, x, w).dx)
    assert np.array_equal(dw, conv_grad(dy, x, w).dw)
    assert conv_grad(dy, x, w, wrt="x", out=dx).dx is dx


def test_padding_does_not_count() -> None:
    """An infinite weight that sees padding alone adds nothing."""
    w = np.array([[[np.inf, 1.0]]])
    assert conv(np.ones((1, 1, 1)), w, pads=((1, 0),)).tolist() == [[[1.0]]]
    assert conv_grad(np.ones((1, 1, 1)), np.ones((1, 1, 1)), w, pads=((1, 0),)).dx.tolist() == [[[1.0]]]
