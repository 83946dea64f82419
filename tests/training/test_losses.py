"""Losses: value and gradient against the float64 twins and torch, the metric, every thread count, bad input."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import Guarded, same_bits

import backstroke as bs
from backstroke.jit import target
from backstroke.training import losses, reference

SHAPES = [(1, 2), (5, 1), (7, 10), (3, 1000), (300, 129), (2, 3, 5), (3, 4, 7, 9), (2, 21, 33, 65), (2, 5, 1, 1)]
POINTWISE = ["mse", "l1", "bce_with_logits"]
# Of a single element: exp and log are off by 2 ulp each, and a few operations follow.
ULP = 16


def problem(name: str, shape: tuple[int, ...], dtype: Any, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(shape))
    output = (scale * rng.normal(size=shape)).astype(dtype)
    if name == "cross_entropy":
        return output, rng.integers(0, shape[1], shape[:1] + shape[2:])
    targets = rng.uniform(size=shape) if name == "bce_with_logits" else scale * rng.normal(size=shape)
    return output, targets.astype(dtype)


@pytest.mark.parametrize("name", target.runnable())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", losses.LOSSES)
def test_value_and_gradient_are_the_twin_s(loss: str, shape: tuple[int, ...], dtype: Any, name: str) -> None:
    output, targets = problem(loss, shape, dtype)
    with target.using(name):
        value, gradient = losses.LOSSES[loss](output, targets)
    wanted, slope = getattr(reference, loss)(output, targets)
    eps = float(np.finfo(dtype).eps)
    # Where probabilities are rounded before 1 is taken off, or two logits cancel, it is eps of the terms that counts.
    terms = 1 if loss == "cross_entropy" else np.abs(slope).max() * slope.size
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, slope, rtol=ULP * eps, atol=ULP * eps * terms / targets.size)
    np.testing.assert_allclose(value, wanted, rtol=ULP * eps, atol=ULP * eps * np.abs(output).max())


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_torch_says_the_same(loss: str) -> None:
    torch = pytest.importorskip("torch")
    of = torch.nn.functional
    theirs = {
        "cross_entropy": of.cross_entropy,
        "mse": of.mse_loss,
        "l1": of.l1_loss,
        "bce_with_logits": of.binary_cross_entropy_with_logits,
    }
    output, targets = problem(loss, (16, 10, 3), np.float32)
    x = torch.from_numpy(output).requires_grad_()
    wanted = theirs[loss](x, torch.from_numpy(targets))
    wanted.backward()
    value, gradient = losses.LOSSES[loss](output, targets)
    assert value == pytest.approx(wanted.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_random_directions_confirm_the_gradient(loss: str) -> None:
    output, targets = problem(loss, (6, 5, 4), np.float64)
    v = np.random.default_rng(9).normal(size=output.shape)
    step = 1e-6
    ahead, behind = (losses.LOSSES[loss](output + sign * step * v, targets)[0] for sign in (1, -1))
    _, gradient = losses.LOSSES[loss](output, targets)
    assert (ahead - behind) / (2 * step) == pytest.approx(float((gradient * v).sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("loss", losses.LOSSES)
def test_16_bit_outputs_are_rounded_once(loss: str, dtype: Any) -> None:
    output, targets = problem(loss, (9, 33), dtype)
    value, gradient = losses.LOSSES[loss](output, targets)
    wide = output.astype(np.float32), targets if loss == "cross_entropy" else targets.astype(np.float32)
    wanted, slope = losses.LOSSES[loss](*wide)
    assert value == wanted
    assert same_bits(gradient, slope.astype(dtype))


@pytest.mark.parametrize("shape", [(4000, 33), (8, 21, 64, 70)])
@pytest.mark.parametrize("loss", losses.LOSSES)
def test_the_bits_do_not_depend_on_threads(loss: str, shape: tuple[int, ...]) -> None:
    output, targets = problem(loss, shape, np.float32)
    before, results = bs.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            bs.set_num_threads(threads)
            results.append(losses.LOSSES[loss](output, targets))
    finally:
        bs.set_num_threads(before)
    assert all(value == results[0][0] and same_bits(g, results[0][1]) for value, g in results)


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 7)])
def test_only_out_is_written(loss: str, shape: tuple[int, ...]) -> None:
    output, targets = problem(loss, shape, np.float32)
    out = Guarded(shape, np.float32)
    value, gradient = losses.LOSSES[loss](output, targets, out=out.array)
    assert gradient is out.array
    assert out.intact()
    again, fresh = losses.LOSSES[loss](output, targets)
    assert value == again
    assert same_bits(gradient, fresh)


def test_large_logits_overflow_nothing() -> None:
    logits = np.array([[1e4, -1e4, 0], [-3e38, 3e38, 0], [-np.inf, 0, 0]], np.float32)
    value, gradient = losses.cross_entropy(logits, np.array([0, 1, 2]))
    assert value == pytest.approx(np.log(2) / 3)
    np.testing.assert_allclose(gradient, np.array([[0, 0, 0], [0, 0, 0], [0, 0.5, -0.5]]) / 3, atol=1e-7)
    value, gradient = losses.bce_with_logits(np.float32([1e4, -1e4, 3e38]), np.float32([0, 0, 1]))
    assert value == pytest.approx(1e4 / 3)
    np.testing.assert_allclose(gradient, [1 / 3, 0, 0])


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_nan_makes_the_loss_nan(loss: str) -> None:
    output, targets = problem(loss, (4, 6), np.float32)
    output[2, 3] = np.nan
    value, gradient = losses.LOSSES[loss](output, targets)
    assert np.isnan(value)
    assert np.isnan(gradient[2, 3])
    assert np.isfinite(gradient[[0, 1, 3]]).all()


def test_metrics() -> None:
    logits = np.float32([[1, 2, 3], [3, 2, 1], [1, 5, 2], [0, 0, 1]])
    sums = losses.cross_entropy.run(logits, np.array([2, 0, 0, 2]), np.empty_like(logits), 1.0)
    assert losses.cross_entropy.results(sums)["accuracy"] == 0.75
    turned = np.ascontiguousarray(logits.T[None])
    sums = losses.cross_entropy.run(turned, np.array([[2, 0, 0, 2]]), np.empty_like(turned), 1.0)
    assert losses.cross_entropy.results(sums)["accuracy"] == 0.75
    x, t = np.float32([[1, -1, 3]]), np.float32([[0, 1, 1]])
    found = {n: losses.LOSSES[n].results(losses.LOSSES[n].run(x, t, np.empty_like(x), 1.0)) for n in POINTWISE}
    assert found["mse"] == {"loss": 3.0, "mae": pytest.approx(5 / 3)}
    assert found["l1"] == {"loss": pytest.approx(5 / 3), "rmse": pytest.approx(3**0.5)}
    assert found["bce_with_logits"]["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("loss", "output", "targets", "error", "words"),
    [
        (
            "cross_entropy",
            np.ones((2, 3), "f4"),
            np.array([0, 3]),
            ValueError,
            r"targets\[1\] is 3; expected labels from",
        ),
        ("cross_entropy", np.ones((2, 3), "f4"), np.array([-1, 0]), ValueError, r"targets\[0\] is -1.* from 0 to 2"),
        ("cross_entropy", np.ones((2, 3), "f4"), np.array([0.0, 1.0]), TypeError, "targets have type float64"),
        (
            "cross_entropy",
            np.ones((2, 3), "f4"),
            np.array([0]),
            ValueError,
            r"targets have shape \(1,\); expected \(2,\)",
        ),
        ("cross_entropy", np.ones(3, "f4"), np.array([0]), ValueError, r"output has shape \(3,\)"),
        ("cross_entropy", np.ones((0, 3), "f4"), np.zeros(0, int), ValueError, "targets are empty"),
        ("cross_entropy", np.ones((2, 3), int), np.array([0, 1]), TypeError, "output has type int64"),
        ("mse", np.ones((2, 3), "f4"), np.ones((2, 3)), TypeError, "targets have type float64; expected float32"),
        ("mse", np.ones((2, 1), "f4"), np.ones(2, "f4"), ValueError, r"targets have shape \(2,\); expected \(2, 1\)"),
        ("l1", np.ones((0, 1), "f4"), np.ones((0, 1), "f4"), ValueError, "output is empty"),
    ],
)
def test_bad_input(loss: str, output: Any, targets: Any, error: type[Exception], words: str) -> None:
    out = Guarded(output.shape, np.float32)
    with pytest.raises(error, match=words):
        losses.LOSSES[loss](output, targets, out=out.array)
    assert out.untouched()
    with pytest.raises(ValueError, match="loss is 'hinge'; expected one of cross_entropy"):
        losses.named("hinge")
