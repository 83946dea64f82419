"""The one table of ops. Tests, tour, benchmarks and the support matrix in the docs read it; an op is one entry."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import arrays, reference
from .activation import leaky_relu_grad, quick_gelu_grad, relu_grad, sigmoid_grad, tanh_grad
from .convolution import conv, conv_grad
from .geometry import Geometry, ceil_rounding, in_layout, spatial_axes
from .pooling import (
    avg_pool,
    avg_pool_grad,
    global_avg_pool_grad,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_input,
)
from .softmax import log_softmax_grad, softmax_grad

Sample = Callable[[np.random.Generator, Sequence[int]], np.ndarray]
Sampler = Callable[..., list[Any]]  # (rng, shape, dtype, **options) -> the arguments by position
FLOATS = tuple(arrays.TYPES)


@dataclass(frozen=True)
class Example:
    """A problem for an op: the shape of its input, and the options that make its arguments or go with them."""

    shape: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(["x".join(map(str, self.shape)), *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Op:
    """A public function: its twin, and how its arguments are made.

    `sampler(rng, shape, dtype, **options)` makes the arguments by position from typical forward data; of the options,
    those that the function takes by keyword go with them. `ulp` is how far the result may be from the twin, in units of
    the last place of the largest term. `small` is a problem that the twin can check, `large` an everyday one.
    """

    function: Callable[..., Any]
    family: str
    sampler: Sampler
    ulp: float
    small: Example = Example((37, 1003))
    large: Example = Example((8, 64, 112, 112))
    dtypes: tuple[np.dtype, ...] = FLOATS

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def reference(self) -> Callable[..., Any]:
        """The float64 twin."""
        twin: Callable[..., Any] = getattr(reference, self.name)
        return twin

    def sample(self, rng: np.random.Generator, shape: Sequence[int], dtype: Any, **options: Any) -> list[Any]:
        """Arguments by position, for an input of that shape and type."""
        return self.sampler(rng, tuple(shape), np.dtype(dtype), **options)

    def keywords(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the options that the function takes by keyword."""
        names = inspect.signature(self.function).parameters.values()
        own = {p.name for p in names if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return {name: value for name, value in options.items() if name in own}

    def example(self, rng: np.random.Generator, problem: Example, dtype: Any) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function, or its twin, with: `function(*arguments, **keywords)`."""
        return self.sample(rng, problem.shape, dtype, **problem.options), self.keywords(problem.options)


def results(answer: Any) -> list[np.ndarray]:
    """The arrays that an op gives, be it one or several; what was not asked for is left out."""
    return [a for a in answer if a is not None] if isinstance(answer, tuple) else [answer]


def moved_bytes(arguments: Sequence[Any], answer: Any) -> int:
    """What must be read and written once."""
    return sum(a.nbytes for a in (*arguments, *results(answer)) if isinstance(a, np.ndarray))


def alike(**samples: Sample) -> Sampler:
    """Arrays of one shape, by the names of the arguments."""
    return lambda rng, shape, dtype, **_: [sample(rng, shape).astype(dtype) for sample in samples.values()]


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


# ---- windows: `kernel` and the options of pooling, or of convolution ------------------------------------------------


def window_geometry(
    shape: Sequence[int],
    *,
    kernel: Any,
    layout: str = "NCX",
    ceil_mode: bool = False,
    **options: Any,
) -> Geometry:
    """The windows over an input of that shape."""
    sizes = [shape[axis] for axis in spatial_axes(shape, layout, "shape")]
    options = {name: options[name] for name in ("strides", "pads", "dilations", "auto_pad") if name in options}
    return Geometry.of(sizes, kernel, rounding=ceil_rounding(ceil_mode), **options)


def output_of(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype, **options: Any) -> np.ndarray:
    """Normal numbers of the shape of the windows' output."""
    layout = options.get("layout", "NCX")
    return normal(rng, in_layout(shape, window_geometry(shape, **options).output_size, layout)).astype(dtype)


def _input_and_kernel(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any) -> list[Any]:
    return [normal(rng, shape).astype(dtype), options["kernel"]]


def _output_and_input(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any) -> list[Any]:
    return [output_of(rng, shape, dtype, **options), *_input_and_kernel(rng, shape, dtype, **options)]


def _output_and_shape(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any) -> list[Any]:
    return [output_of(rng, shape, dtype, **options), shape, options["kernel"]]


def _output_and_winners(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any) -> list[Any]:
    dy, x, _ = _output_and_input(rng, shape, dtype, **options)
    _, indices = max_pool(x, return_indices=True, **options)
    return [dy, indices, shape]


def _means_and_shape(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, *, layout: str = "NCX"
) -> list[Any]:
    ones = tuple(1 for _ in spatial_axes(shape, layout, "shape"))
    return [normal(rng, in_layout(shape, ones, layout)).astype(dtype), shape]


def weights_of(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype, **options: Any) -> np.ndarray:
    """Weights for `outputs` channels, `kernel` and `group`, so small that what they make of normal x is normal."""
    kernel, layout, outputs = options["kernel"], options.get("layout", "NCX"), options["outputs"]
    inside = shape[1 if layout == "NCX" else -1] // options.get("group", 1)
    w = (outputs, inside, *kernel) if layout == "NCX" else (*kernel, inside, outputs)
    return (normal(rng, w) / math.sqrt(max(1, inside * math.prod(kernel)))).astype(dtype)


def _input_and_weights(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any) -> list[Any]:
    x, w = normal(rng, shape).astype(dtype), weights_of(rng, shape, dtype, **options)
    return [x, w, normal(rng, (options["outputs"],)).astype(dtype)]


def _gradient_input_and_weights(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, **options: Any
) -> list[Any]:
    x, w, _ = _input_and_weights(rng, shape, dtype, **options)
    windows = {"strides": 1, **{name: value for name, value in options.items() if name not in ("outputs", "group")}}
    sizes, layout = window_geometry(shape, **windows).output_size, options.get("layout", "NCX")
    return [normal(rng, in_layout((shape[0], options["outputs"]), sizes, layout)).astype(dtype), x, w]


_ALIKE: dict[str, Any] = {"family": "activation"}
_SOFTMAX: dict[str, Any] = {"family": "softmax", "ulp": 8, "large": Example((16, 256, 1000))}
_OVERLAPPING = {"kernel": 3, "strides": 2, "pads": 1}
_POOLING: dict[str, Any] = {
    "family": "pooling",
    "ulp": 4,
    "small": Example((2, 5, 19, 23), _OVERLAPPING),
    "large": Example((8, 64, 112, 112), _OVERLAPPING),
}
_PLANES: dict[str, Any] = {**_POOLING, "small": Example((3, 37, 7, 7)), "large": Example((8, 512, 56, 56))}
_CONVOLUTION: dict[str, Any] = {
    "family": "convolution",
    "ulp": 8,
    "small": Example((2, 6, 19, 23), {"outputs": 8, "kernel": (3, 2), "group": 2, "strides": 2, "pads": 1}),
    "large": Example((8, 64, 56, 56), {"outputs": 64, "kernel": (3, 3), "pads": 1}),
}
OPS = (
    Op(relu_grad, sampler=alike(dy=normal, x=normal), ulp=0, **_ALIKE),
    Op(leaky_relu_grad, sampler=alike(dy=normal, y=normal), ulp=2, **_ALIKE),
    Op(sigmoid_grad, sampler=alike(dy=normal, y=sigmoids), ulp=2, **_ALIKE),
    Op(tanh_grad, sampler=alike(dy=normal, y=tanhs), ulp=2, **_ALIKE),
    Op(quick_gelu_grad, sampler=alike(dy=normal, x=normal), ulp=4, **_ALIKE),
    Op(softmax_grad, sampler=alike(dy=normal, y=probabilities), **_SOFTMAX),
    Op(log_softmax_grad, sampler=alike(dy=normal, y=log_probabilities), **_SOFTMAX),
    Op(max_pool, sampler=_input_and_kernel, **_POOLING),
    Op(max_pool_grad, sampler=_output_and_winners, **_POOLING),
    Op(max_pool_grad_from_input, sampler=_output_and_input, **_POOLING),
    Op(avg_pool, sampler=_input_and_kernel, **_POOLING),
    Op(avg_pool_grad, sampler=_output_and_shape, **_POOLING),
    Op(global_avg_pool_grad, sampler=_means_and_shape, **_PLANES),
    Op(conv, sampler=_input_and_weights, **_CONVOLUTION),
    Op(conv_grad, sampler=_gradient_input_and_weights, **_CONVOLUTION),
)
