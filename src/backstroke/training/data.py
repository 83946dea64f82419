"""What the model expects of data, and the data of a training: checked once, with names, then dealt out in batches.

A batch is gathered into memory that the next one uses again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import arrays


@dataclass(frozen=True)
class Port:
    """An input or output of the model. Sizes that are not fixed are None; `shape` is None where nothing is known."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int | None, ...] | None

    def check(self, what: str, x: np.ndarray) -> None:
        """`x` must be samples for this port: of its type, and of its shape but for the first axis."""
        if self.dtype is not None and x.dtype != self.dtype:
            raise TypeError(f"{what} has type {x.dtype}; expected {self.dtype}, the type of the model's {self.name!r}")
        if x.ndim == 0 or len(x) == 0:
            raise ValueError(f"{what} is empty: its shape is {x.shape}")
        if self.shape is None:
            return
        sizes = zip(x.shape[1:], self.shape[1:], strict=False)
        if x.ndim != len(self.shape) or any(want is not None and have != want for have, want in sizes):
            wanted = ", ".join(["samples", *("any" if n is None else str(n) for n in self.shape[1:])])
            raise ValueError(f"{what} has shape {x.shape}; expected ({wanted}), the shape of the model's {self.name!r}")

    @property
    def batch(self) -> int | None:
        """The batch size, where the model has a fixed one."""
        return self.shape[0] if self.shape else None


def ports(values: Sequence[Any]) -> list[Port]:
    """The ports that ONNX describes in these ValueInfoProtos."""
    from onnx import helper

    found = []
    for value in values:
        kind = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else None
        shape = None
        if kind.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim)
        found.append(Port(value.name, dtype, shape))
    return found


def checked_inputs(what: str, x: Any, inputs: Sequence[Port]) -> dict[str, np.ndarray]:
    """The samples by the names of the model's inputs: from an array, where it has one, or from a mapping."""
    if isinstance(x, Mapping):
        missing = [port.name for port in inputs if port.name not in x]
        unknown = [name for name in x if name not in {port.name for port in inputs}]
        if missing or unknown:
            raise ValueError(
                f"{what} has arrays for {_names(x)}; expected one for each of {_names(p.name for p in inputs)}"
            )
        given = {port.name: arrays.array(f"{what}[{port.name!r}]", x[port.name]) for port in inputs}
        label = {name: f"{what}[{name!r}]" for name in given}
    elif len(inputs) != 1:
        raise TypeError(
            f"{what} is a {type(x).__name__}; expected a dictionary with arrays for {_names(p.name for p in inputs)}"
        )
    else:
        given, label = {inputs[0].name: arrays.array(what, x)}, {inputs[0].name: what}
    for port in inputs:
        port.check(label[port.name], given[port.name])
    sizes = {name: len(array) for name, array in given.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{what} has different numbers of samples: {sizes}")
    return given


def check_batch_size(batch_size: Any, samples: int, inputs: Sequence[Port]) -> int:
    """A batch size that the model takes."""
    size = whole("batch_size", batch_size)
    for port in inputs:
        if port.batch is None:
            continue
        if size != port.batch:
            raise ValueError(
                f"batch_size is {size}; expected {port.batch}, for the model's input {port.name!r} has that fixed size"
            )
        if samples % size:
            raise ValueError(
                f"there are {samples} samples; expected a multiple of {size}, the fixed batch size of the model's "
                f"input {port.name!r}"
            )
    return size


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is not below `least`."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a {type(value).__name__}; expected a whole number")
    if value.__index__() < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")
    return int(value.__index__())


class Batches:
    """Rows of arrays of samples, gathered into the same memory again and again."""

    def __init__(self, samples: Mapping[str, np.ndarray], size: int) -> None:
        self._samples = samples
        self._memory = {name: np.empty((size, *x.shape[1:]), x.dtype) for name, x in samples.items()}
        self._views: dict[int, dict[str, np.ndarray]] = {}

    def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Those rows; the arrays are written over by the next call."""
        views = self._views.get(len(rows))
        if views is None:  # the same array objects for the same size, so that bindings to them hold
            views = self._views[len(rows)] = {name: m[: len(rows)] for name, m in self._memory.items()}
        for name, view in views.items():
            np.take(self._samples[name], rows, axis=0, out=view, mode="clip")  # "raise" would go through a copy
        return views


def _names(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"
