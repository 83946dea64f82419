"""Optimizers against the float64 twins and torch.optim, schedules, norms, threads, bad settings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checks import Guarded, same_bits

import backstroke as bs
from backstroke.jit import target
from backstroke.training import reference
from backstroke.training.optimizers import SGD, AdamW, Optimizer, Updates, from_settings
from backstroke.training.schedules import Constant, Cosine, Linear, Schedule
from backstroke.training.schedules import from_settings as schedule_from_settings
from backstroke.training.schedules import named as schedule_named

SETTINGS: list[Optimizer] = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.05),
    SGD(lr=0.05, momentum=0.9),
    SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    AdamW(),
    AdamW(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
]
every_optimizer = pytest.mark.parametrize("optimizer", SETTINGS, ids=repr)
SIZES = {"a": (3,), "b": (64, 33), "c": (40_000,), "d": ()}


def arrays(seed: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SIZES.items()}


@every_optimizer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_torch_takes_the_same_steps(optimizer: Optimizer, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    parameters = arrays(0, dtype)
    theirs = {name: torch.from_numpy(p.copy()).requires_grad_() for name, p in parameters.items()}
    kind = getattr(torch.optim, type(optimizer).__name__)
    settings = {k: v for k, v in optimizer.settings().items() if k != "optimizer"}
    peer, updates = kind(theirs.values(), **settings), Updates(optimizer, parameters)
    for step in range(20):
        gradients = arrays(step + 1, dtype)
        updates.step(gradients, optimizer.lr)
        for name, p in theirs.items():
            p.grad = torch.from_numpy(gradients[name])
        peer.step()
    for name, p in parameters.items():
        np.testing.assert_allclose(p, theirs[name].detach().numpy(), rtol=1e-6, atol=1e-6)


@every_optimizer
@pytest.mark.parametrize("name", target.runnable())
def test_the_twin_takes_the_same_steps(optimizer: Optimizer, name: str) -> None:
    parameters = arrays(0, np.float64)
    want = {n: [p, np.zeros_like(p), np.zeros_like(p)] for n, p in parameters.items()}
    options = {k: v for k, v in optimizer.settings().items() if k != "optimizer"}
    with target.using(name):
        updates = Updates(optimizer, parameters := {n: p.copy() for n, p in parameters.items()})
        for step in range(1, 6):
            gradients = arrays(step, np.float64)
            updates.step(gradients, optimizer.lr)
            for n, (p, *states) in want.items():
                if isinstance(optimizer, AdamW):
                    want[n] = list(reference.adamw(p, gradients[n], *states, step=step, **options))
                else:
                    want[n] = [*reference.sgd(p, gradients[n], states[0], **options), states[1]]
    for n, p in parameters.items():
        np.testing.assert_allclose(p, want[n][0], rtol=1e-12, atol=1e-13)


@every_optimizer
def test_the_bits_do_not_depend_on_threads(optimizer: Optimizer) -> None:
    before, results = bs.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            bs.set_num_threads(threads)
            parameters = arrays(0)
            updates = Updates(optimizer, parameters)
            norms = []
            for step in range(3):
                gradients = arrays(step)
                norms.append(updates.norm(gradients))
                updates.step(gradients, 0.01, scale=0.5)
            results.append((parameters, norms))
    finally:
        bs.set_num_threads(before)
    for parameters, norms in results[1:]:
        assert norms == results[0][1]
        assert all(same_bits(p, results[0][0][name]) for name, p in parameters.items())


@every_optimizer
def test_only_the_parameter_and_its_states_are_written(optimizer: Optimizer) -> None:
    guards = [Guarded((77,), np.float32) for _ in range(4)]
    for guard in guards:
        guard.array[:] = 1
    p, g, *states = guards
    updates = Updates(optimizer, {"p": p.array})
    kept = updates.states["p"]
    updates.states["p"] = {name: state.array for name, state in zip(kept, states, strict=False)}
    updates.step({"p": g.array}, 0.1)
    assert all(guard.intact() for guard in guards)
    assert (g.array == 1).all()
    assert (p.array < 1).all()


def test_scale_multiplies_the_gradients() -> None:
    results = []
    for scale, factor in ((1.0, 0.25), (0.25, 1.0)):
        parameters = arrays(0)
        gradients = {name: np.asarray(g * np.float32(factor)) for name, g in arrays(1).items()}
        Updates(AdamW(), parameters).step(gradients, 0.1, scale=scale)
        results.append(parameters)
    assert all(same_bits(results[0][name], p) for name, p in results[1].items())


def test_the_norm_is_that_of_all_gradients_together() -> None:
    gradients = arrays(3)
    norm = Updates(SGD(), arrays(0)).norm(gradients)
    flat = np.concatenate([g.ravel() for g in gradients.values()]).astype(np.float64)
    assert norm == pytest.approx(float(np.linalg.norm(flat)), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_found(bad: float) -> None:
    updates, gradients = Updates(SGD(), arrays(0)), arrays(1)
    assert updates.first_bad(gradients) is None
    gradients["a"][1] = gradients["c"][39_999] = bad
    assert not np.isfinite(updates.norm(gradients))
    assert updates.first_bad(gradients) == "c"


@every_optimizer
def test_settings_make_the_optimizer_again(optimizer: Optimizer) -> None:
    assert from_settings(optimizer.settings()) == optimizer


@pytest.mark.parametrize("schedule", [Constant(warmup=10), Linear(warmup=5), Cosine(warmup=0.1, end=0.2), Cosine()])
def test_schedules_rise_then_fall(schedule: Schedule) -> None:
    assert schedule_from_settings(schedule.settings()) == schedule
    factors = [schedule.factor(step, 100) for step in range(100)]
    rise = round(schedule.warmup * 100) if schedule.warmup < 1 else int(schedule.warmup)
    assert all(a < b for a, b in itertools.pairwise(factors[: rise + 1]))
    assert factors[rise] == 1
    assert all(a >= b for a, b in itertools.pairwise(factors[rise:]))
    if not isinstance(schedule, Constant):
        assert schedule.factor(100, 100) == pytest.approx(schedule.end)
    if isinstance(schedule, Cosine) and not schedule.warmup:
        assert schedule.factor(50, 100) == pytest.approx((1 + schedule.end) / 2)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: SGD(lr=-1), ValueError, "lr is -1; expected a number that is not negative"),
        (lambda: SGD(lr=float("nan")), ValueError, "lr is nan"),
        (lambda: SGD(lr="1"), TypeError, "lr is a str"),  # type: ignore[arg-type]
        (lambda: SGD(nesterov=True), ValueError, "momentum is 0"),
        (lambda: AdamW(betas=(0.9, 1.0)), ValueError, "betas is"),
        (lambda: AdamW(betas=(0.9,)), ValueError, "betas is"),  # type: ignore[arg-type]
        (lambda: Linear(warmup=-1), ValueError, "warmup is -1"),
        (lambda: schedule_named("step"), ValueError, "schedule is 'step'; expected .* constant, linear, cosine"),
        (lambda: Updates(SGD(), {"w": np.ones(3, np.float16)}), TypeError, "parameter w has type float16"),
        (lambda: Updates(SGD(), {"w": np.ones((4, 4), "f4")[:, ::2]}), ValueError, "parameter w is .*strided"),
        (lambda: Updates(SGD(), {"w": np.ones(3)}).step({"w": np.ones(4)}, 1.0), ValueError, "the gradient of w is"),
    ],
)
def test_bad_settings(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
