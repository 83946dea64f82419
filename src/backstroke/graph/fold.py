"""The gradient graph's arithmetic on shapes: nodes whose inputs are all known are computed when a plan is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

Values = Sequence["np.ndarray | None"]


def _div(values: Values, attributes: dict[str, Any]) -> np.ndarray:
    a, b = values
    assert a is not None
    assert b is not None
    return np.asarray(a // b if a.dtype.kind == "i" else a / b)


def _slice(values: Values, attributes: dict[str, Any]) -> np.ndarray:
    x = values[0]
    assert x is not None
    return x[slices(x.shape, values[1:])]


def slices(shape: Sequence[int], values: Values) -> tuple[slice, ...]:
    """Python's slices for ONNX' starts, ends, axes and steps."""
    starts, ends, axes, steps = (
        [int(n) for n in v.reshape(-1)] if v is not None else None for v in (*values, None, None)[:4]
    )
    assert starts is not None
    assert ends is not None
    result = [slice(None)] * len(shape)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[i] if axes is not None else i) % len(shape)
        step, size = steps[i] if steps is not None else 1, shape[axis]
        start, end = (n + size if n < 0 else n for n in (start, end))
        if step > 0:
            result[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            last = min(max(end, -1), size - 1)
            result[axis] = slice(min(max(start, 0), size - 1), None if last < 0 else last, step)
    return tuple(result)


def _reshape(values: Values, attributes: dict[str, Any]) -> np.ndarray:
    x, shape = values
    assert x is not None
    assert shape is not None
    return x.reshape(resolve(x.shape, shape))


def resolve(shape: Sequence[int], wanted: np.ndarray) -> tuple[int, ...]:
    """The shape that Reshape makes: 0 keeps an axis, -1 is what is left."""
    return tuple(shape[i] if n == 0 and i < len(shape) else int(n) for i, n in enumerate(wanted.reshape(-1)))


def _cast(values: Values, attributes: dict[str, Any]) -> np.ndarray:
    x = values[0]
    assert x is not None
    return x.astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))


_FOLD: dict[str, Callable[[Values, dict[str, Any]], Any]] = {
    "Add": lambda v, _: np.add(v[0], v[1]),  # type: ignore[arg-type]
    "Cast": _cast,
    "Concat": lambda v, a: np.concatenate(v, axis=a["axis"]),  # type: ignore[arg-type]
    "Div": _div,
    "Mul": lambda v, _: np.multiply(v[0], v[1]),  # type: ignore[arg-type]
    "Neg": lambda v, _: np.negative(v[0]),  # type: ignore[arg-type]
    "Reshape": _reshape,
    "Slice": _slice,
    "Sub": lambda v, _: np.subtract(v[0], v[1]),  # type: ignore[arg-type]
}


def evaluate(op: str, values: Values, attributes: dict[str, Any]) -> np.ndarray | None:
    """What a node of known inputs gives; None where that is not known here."""
    compute = _FOLD.get(op)
    return None if compute is None else np.asarray(compute(values, attributes))
