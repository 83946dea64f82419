"""Optimizers: what a user writes (`bs.AdamW(lr=1e-3)`), and the updates that it stands for.

An optimizer is a value; it holds no state. `Updates` holds the state for the parameters of one training. Each parameter
is updated in place by one kernel, together with its state: the same bits for any number of threads, and
torch.optim's SGD and AdamW to rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from .. import arrays
from ..jit import compile as compiler
from ..jit.threads import pool
from ..jit.types import f64, i64, pointer, scalar
from . import kernels


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have: a learning rate, the names of their states, and a rule of `kernels`."""

    lr: float = 1e-3
    states: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            for number in value if isinstance(value, tuple) else (value,):
                if not 0 <= arrays.number(name, float(number) if isinstance(number, bool) else number) < math.inf:
                    raise ValueError(f"{name} is {value}; expected a number that is not negative, and finite")

    @property
    def rule(self) -> Callable[..., Any]:
        """The formula of the update."""
        raise NotImplementedError

    @property
    def kept(self) -> tuple[str, ...]:
        """The states that the rule keeps for each parameter."""
        return self.states

    def numbers(self, lr: float, step: int) -> tuple[float, ...]:
        """What the rule takes after `scale`, in the step of that number, counted from 1."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The optimizer as plain values; `from_settings` makes it again."""
        return {"optimizer": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: `v = momentum v + g + weight_decay p`, `p = p - lr v`, as torch.optim.SGD.

    With `nesterov`, `p = p - lr (g + weight_decay p + momentum v)`.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    states: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is True, momentum is 0; expected a momentum")

    @property
    def rule(self) -> Callable[..., Any]:
        return (kernels.sgd_nesterov if self.nesterov else kernels.sgd_momentum) if self.momentum else kernels.sgd

    @property
    def kept(self) -> tuple[str, ...]:
        return self.states if self.momentum else ()

    def numbers(self, lr: float, step: int) -> tuple[float, ...]:
        return (lr, self.weight_decay, self.momentum) if self.momentum else (lr, self.weight_decay)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as torch.optim.AdamW.

    `m` and `v` are running means of `g` and `g^2`; `p = p (1 - lr weight_decay) - lr m' / (sqrt(v') + eps)`, where `m'`
    and `v'` are corrected for having started at 0.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    states: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        super().__post_init__()
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise ValueError(f"betas is {self.betas}; expected two numbers from 0 to below 1")

    @property
    def rule(self) -> Callable[..., Any]:
        return kernels.adamw

    def numbers(self, lr: float, step: int) -> tuple[float, ...]:
        beta1, beta2 = self.betas
        root = 1 / math.sqrt(1 - beta2**step)
        return lr / (1 - beta1**step), 1 - lr * self.weight_decay, 1 - beta1, beta2, 1 - beta2, root, self.eps


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.__name__: kind for kind in (SGD, AdamW)}


def from_settings(settings: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `settings` were taken of."""
    values = dict(settings)
    return OPTIMIZERS[values.pop("optimizer")](**values)


class Updates:
    """Updates the parameters of one training, in place.

    All of them at once: a network has hundreds, most of them small, and a call for each would take longer than the
    arithmetic.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, np.ndarray]) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.states = {n: {s: np.zeros_like(p) for s in optimizer.kept} for n, p in parameters.items()}
        self._parameters = {name: _checked(name, p) for name, p in parameters.items()}
        self._tables = [
            _Table({n: [p, *self.states[n].values()] for n, p in self._parameters.items() if p.dtype == dtype})
            for dtype in dict.fromkeys(p.dtype for p in self._parameters.values())
        ]

    def norm(self, gradients: Mapping[str, np.ndarray]) -> float:
        """The root of the sum of squares of all gradients: the same bits for any number of threads."""
        sums = []
        for table in self._tables:
            pieces, address = table.with_gradients(gradients)
            states = len(self.optimizer.kept)
            params = pointer(i64), pointer(f64)
            kernel = compiler.kernel(kernels.sum_of_squares, *params, states=states, type=table.type)
            pool.run(kernel, kernel.pack(address, arrays.address(table.sums)), pieces)
            sums.append(table.sums)
        every = np.concatenate([np.empty(0), *sums])
        total = float(every.sum()) if not np.isfinite(every).all() else math.fsum(every.tolist())
        return math.sqrt(total)

    def first_bad(self, gradients: Mapping[str, np.ndarray]) -> str | None:
        """The name of the last parameter, so the first on the way back, whose gradient is not finite."""
        return next((name for name in reversed(self._parameters) if not np.isfinite(gradients[name]).all()), None)

    def step(self, gradients: Mapping[str, np.ndarray], lr: float, scale: float = 1.0) -> None:
        """Update all parameters with `scale` times the gradients."""
        given = [table.with_gradients(gradients) for table in self._tables]
        self.steps += 1
        numbers = (scale, *self.optimizer.numbers(lr, self.steps))
        for table, (pieces, address) in zip(self._tables, given, strict=True):
            params = [pointer(i64), *[scalar(table.type)] * len(numbers)]
            states = len(self.optimizer.kept)
            kernel = compiler.kernel(kernels.update, *params, rule=self.optimizer.rule, states=states, type=table.type)
            pool.run(kernel, kernel.pack(address, *numbers), pieces)


class _Table:
    """Where the pieces of all parameters of one type lie, with their states and gradients."""

    def __init__(self, arrays_of: Mapping[str, list[np.ndarray]]) -> None:
        self._arrays = arrays_of
        first = next(iter(arrays_of.values()))
        self.type = arrays.TYPES[first[0].dtype]
        self._counts = {name: kernels.pieces(places[0].size) for name, places in arrays_of.items()}
        self._rows = np.empty((sum(self._counts.values()), 2 + len(first)), np.int64)
        self.sums = np.empty(len(self._rows))
        self._gradients: list[np.ndarray] = []
        start = 0
        for name, places in arrays_of.items():
            steps = np.arange(self._counts[name]) * kernels.CHUNK
            rows = self._rows[start : start + len(steps)]
            rows[:, 0] = np.minimum(places[0].size - steps, kernels.CHUNK)
            for i, place in enumerate(places, 2):
                rows[:, i] = arrays.address(place) + steps * place.itemsize
            start += len(steps)

    def with_gradients(self, gradients: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """The number of pieces, and the address of the table, with these gradients, which it keeps alive."""
        given = [gradients[name] for name in self._arrays]
        if len(given) != len(self._gradients) or any(map(operator.is_not, given, self._gradients)):
            self._gradients = []
            dense = [_matching(n, g, places[0]) for g, (n, places) in zip(given, self._arrays.items(), strict=True)]
            start = 0
            for g, count in zip(dense, self._counts.values(), strict=True):
                self._rows[start : start + count, 1] = arrays.address(g) + np.arange(count) * (
                    kernels.CHUNK * g.itemsize
                )
                start += count
            self._gradients = dense  # one that had to be made dense is another array, and made so again the next time
        return len(self._rows), arrays.address(self._rows)


def _checked(name: str, p: np.ndarray) -> np.ndarray:
    """A parameter that can be updated in place."""
    if p.dtype not in (np.float32, np.float64):
        raise TypeError(f"parameter {name} has type {p.dtype}; expected float32 or float64")
    if not (p.flags.c_contiguous and p.flags.aligned and p.flags.writeable):
        raise ValueError(f"parameter {name} is read-only, strided or misaligned; expected a dense array")
    return p


def _matching(name: str, g: np.ndarray, p: np.ndarray) -> np.ndarray:
    if g.shape != p.shape or g.dtype != p.dtype:
        given, wanted = (f"{a.dtype} of shape {a.shape}" for a in (g, p))
        raise ValueError(f"the gradient of {name} is {given}; expected {wanted}")
    return np.ascontiguousarray(g)
