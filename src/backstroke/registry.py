"""The one table of ops. Tests, tour, benchmarks and the support matrix in the docs read it; an op is one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import arrays, reference
from .activation import leaky_relu_grad, quick_gelu_grad, relu_grad, sigmoid_grad, tanh_grad
from .softmax import log_softmax_grad, softmax_grad

Sample = Callable[[np.random.Generator, Sequence[int]], np.ndarray]
FLOATS = tuple(arrays.TYPES)


@dataclass(frozen=True)
class Op:
    """A public gradient: its function, its twin, and what its arguments look like.

    `samples` makes the value of each array argument from typical forward data. `ulp` is how far the result may be from
    the twin, in units of the last place of the largest term. `tour_shape` is an everyday tensor.
    """

    function: Callable[..., Any]
    family: str
    samples: dict[str, Sample]
    ulp: float
    tour_shape: tuple[int, ...] = (8, 64, 112, 112)
    dtypes: tuple[np.dtype, ...] = FLOATS

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def reference(self) -> Callable[..., Any]:
        """The float64 twin."""
        twin: Callable[..., Any] = getattr(reference, self.name)
        return twin

    def sample(self, rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> list[np.ndarray]:
        """Arguments of that shape and type."""
        return [make(rng, shape).astype(dtype) for make in self.samples.values()]


def normal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Standard normal numbers."""
    return np.asarray(rng.standard_normal(tuple(shape)))


def probabilities(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """A softmax along the last axis (a 0-D array: one)."""
    e: np.ndarray = np.exp(normal(rng, shape))
    return np.asarray(e / (e.sum(axis=-1, keepdims=True) if e.ndim else e))


def log_probabilities(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """A log-softmax along the last axis."""
    return np.asarray(np.log(probabilities(rng, shape)))


def sigmoids(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Outputs of a sigmoid."""
    return np.asarray(1 / (1 + np.exp(-3 * normal(rng, shape))))


def tanhs(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Outputs of tanh."""
    return np.asarray(np.tanh(2 * normal(rng, shape)))


_TOKENS = (16, 256, 1000)
OPS = (
    Op(relu_grad, "activation", {"dy": normal, "x": normal}, ulp=0),
    Op(leaky_relu_grad, "activation", {"dy": normal, "y": normal}, ulp=2),
    Op(sigmoid_grad, "activation", {"dy": normal, "y": sigmoids}, ulp=2),
    Op(tanh_grad, "activation", {"dy": normal, "y": tanhs}, ulp=2),
    Op(quick_gelu_grad, "activation", {"dy": normal, "x": normal}, ulp=4),
    Op(softmax_grad, "softmax", {"dy": normal, "y": probabilities}, ulp=8, tour_shape=_TOKENS),
    Op(log_softmax_grad, "softmax", {"dy": normal, "y": log_probabilities}, ulp=8, tour_shape=_TOKENS),
)
