"""Losses: value, metric and gradient in one pass over the model's output.

Each takes the output and the targets, and gives `(value, gradient)`; the value is the mean over all elements (for
cross_entropy: over all positions). float32, float64, float16 and bfloat16; computed in float32 (float64 for float64),
summed in float64, and the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import arrays
from ..jit import compile as compiler
from ..jit.target import current
from ..jit.threads import pool
from ..jit.types import i64, pointer, scalar
from . import kernels
from .data import Port


@dataclass(frozen=True)
class Sums:
    """What a pass found: the sums of loss and metric over `count` elements or positions."""

    loss: float
    metric: float
    count: int

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.loss + other.loss, self.metric + other.metric, self.count + other.count)


NOTHING = Sums(0.0, 0.0, 0)


@dataclass(frozen=True)
class Loss:
    """A loss by name. `metric` is what is shown beside it, `finish` makes it of the mean that the kernel gives."""

    name: str
    metric: str
    formula: Callable[..., Any] | None = None
    finish: Callable[[float], float] = float

    def results(self, sums: Sums) -> dict[str, float]:
        """Loss and metric, as means."""
        return {"loss": sums.loss / sums.count, self.metric: self.finish(sums.metric / sums.count)}

    def __call__(self, output: Any, targets: Any, *, out: Any = None) -> tuple[float, Any]:
        values, wanted = arrays.floating("output", output), arrays.array("targets", targets)
        self.check(values, wanted)
        inputs = {"output": values, "targets": wanted}
        gradient = np.empty(values.shape, values.dtype)
        if out is not None:
            gradient = arrays.check_out(out, values.shape, values.dtype, inputs)
            if not gradient.flags.c_contiguous:
                raise ValueError("out is not contiguous; expected an array that lies densely in memory")
        sums = self.run(values, wanted, gradient, 1 / self.count(wanted))
        return sums.loss / sums.count, arrays.give(gradient, out, output)

    def count(self, targets: np.ndarray) -> int:
        """What the mean is taken over."""
        return targets.size

    def check_targets(self, what: str, targets: np.ndarray, port: Port) -> None:
        """Raise where the targets do not go with what is known of the model's output before it is computed."""
        if self.formula is not None:
            port.check(what, targets)
            return
        if targets.dtype.kind not in "iu":
            raise TypeError(f"{what} has type {targets.dtype}; expected whole numbers, the labels of {self.name}")
        if targets.size == 0:
            raise ValueError(f"{what} is empty: its shape is {targets.shape}")
        if port.shape is None:
            return
        if len(port.shape) < 2:
            raise ValueError(f"the model's {port.name!r} has {len(port.shape)} axes; expected (samples, classes, ...)")
        classes, sizes = port.shape[1], port.shape[2:]
        given = targets.shape[1:]
        if len(given) != len(sizes) or any(want not in (None, n) for n, want in zip(given, sizes, strict=True)):
            wanted = ", ".join(["samples", *("any" if n is None else str(n) for n in sizes)])
            raise ValueError(f"{what} has shape {targets.shape}; expected ({wanted}), a label for each position")
        if classes is not None:
            check_range(what, targets, classes)

    def check(self, output: np.ndarray, targets: np.ndarray) -> None:
        """Raise where the two do not go together."""
        if self.formula is None:
            _check_labels(output, targets)
            return
        if targets.dtype != output.dtype:
            raise TypeError(f"targets have type {targets.dtype}; expected {output.dtype}, the output's")
        if targets.shape != output.shape:
            raise ValueError(f"targets have shape {targets.shape}; expected {output.shape}, the output's")
        if output.size == 0:
            raise ValueError(f"output is empty: its shape is {output.shape}")

    def run(self, output: np.ndarray, targets: np.ndarray, gradient: np.ndarray, scale: float) -> Sums:
        """The sums; `gradient` gets `scale` times the derivative of the sum. All is checked already."""
        output, type = np.ascontiguousarray(output), arrays.TYPES[output.dtype]
        build: Callable[..., None]
        if self.formula is not None:
            targets = np.ascontiguousarray(targets)
            sizes, pieces = [output.size], kernels.pieces(output.size)
            build, options = kernels.elementwise_loss, {"formula": self.formula}
        else:
            targets, options = np.ascontiguousarray(targets, np.int64), {}
            samples, classes, *rest = output.shape
            inner = math.prod(rest)
            if inner == 1:
                build, sizes = kernels.cross_entropy_along_rows, [samples, classes]
                pieces = -(-samples // kernels.rows_of_a_piece(classes))
            else:
                build, sizes = kernels.cross_entropy_across, [classes, inner]
                pieces = samples * -(-inner // (kernels.STRIP * current().lanes(type)))
        sums = np.empty((pieces, 2))
        params = [*[scalar()] * len(sizes), pointer(type), pointer(i64 if self.formula is None else type)]
        params += [pointer(type), _SUMS, scalar(type.compute)]
        kernel = compiler.kernel(build, *params, type=type, **options)
        places = [arrays.address(each) for each in (output, targets, gradient, sums)]
        pool.run(kernel, kernel.pack(*sizes, *places, scale), pieces)
        loss, metric = (_exact_sum(column) for column in sums.T.tolist())
        return Sums(loss, metric, targets.size)


_SUMS = pointer(arrays.TYPES[np.dtype(np.float64)])


def _exact_sum(terms: list[float]) -> float:
    """The sum, rounded once; what is not finite is added as it comes."""
    return math.fsum(terms) if all(map(math.isfinite, terms)) else sum(terms)


def _check_labels(output: np.ndarray, labels: np.ndarray) -> None:
    if output.ndim < 2:
        raise ValueError(f"output has shape {output.shape}; expected (samples, classes, ...) for cross_entropy")
    expected = output.shape[:1] + output.shape[2:]
    if labels.dtype.kind not in "iu":
        raise TypeError(f"targets have type {labels.dtype}; expected whole numbers, the labels of cross_entropy")
    if labels.shape != expected:
        raise ValueError(f"targets have shape {labels.shape}; expected {expected} for an output of {output.shape}")
    if labels.size == 0:
        raise ValueError(f"targets are empty: their shape is {labels.shape}")
    check_range("targets", labels, output.shape[1])


def check_range(what: str, labels: np.ndarray, classes: int) -> None:
    """Every label must name one of the classes."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        where = np.argwhere((labels < 0) | (labels >= classes))[0].tolist()
        found = labels[tuple(where)]
        raise ValueError(f"{what}{where} is {found}; expected labels from 0 to {classes - 1}, for {classes} classes")


cross_entropy = Loss("cross_entropy", "accuracy")
mse = Loss("mse", "mae", kernels.mse)
l1 = Loss("l1", "rmse", kernels.l1, math.sqrt)
bce_with_logits = Loss("bce_with_logits", "accuracy", kernels.bce_with_logits)

LOSSES = {loss.name: loss for loss in (cross_entropy, mse, l1, bce_with_logits)}


def named(loss: Any) -> Loss:
    """A loss, or the one of that name."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; expected one of {', '.join(LOSSES)}")
    return LOSSES[loss]
