"""TensorFlow.js' pooling gradients under their own names: `run("MaxPoolGrad", {"dy": dy, ...}, {"pad": "same", ...})`.

`MaxPoolGrad` is what the CPU backend's kernel computes, bit for bit, and fails where it fails. The other three are the
derivative, which the CPU backend's kernels are not everywhere (docs/differences.md). Arrays are "NXC" throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import arrays, pooling
from ..geometry import Geometry, Rounding, integers, tfjs_pool_2d
from .table import Attribute, Kernel, find

DOMAIN = "tfjs"
TYPES = ("float32", "int32", "bool")


def run(op: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> Any:
    """Run one kernel and return dx: float32, of the shape of `input`, its sums made in double and rounded once.

    inputs: `dy` and `input`, float32, int32 or bool; `output`, which is never read and may be missing.
    attributes: `filterSize` and `strides`, a number or one per axis; `pad`: "same", "valid", a number or, in 2-D, four
    pairs; `dimRoundingMode`, None (truncate), "floor", "ceil" or "round", which counts next to a number or pairs, and
    in 3-D next to "valid".

    `MaxPoolGrad`: of equal maxima the first wins, NaN never does, and the dy of a window in which nothing is greater
    than -infinity goes nowhere. dy may be larger than the windows need, and smaller where no maximum asks for it.
    """
    kernel = find(_KERNELS, "TensorFlow.js", op, DOMAIN)
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs is a {type(inputs).__name__}; expected a dictionary: {', '.join(kernel.inputs)}")
    for name in inputs:
        if name not in kernel.inputs:
            raise ValueError(f"{op} has no input {name!r}; expected {', '.join(kernel.inputs)}")
    given = kernel.checked_inputs([inputs.get(name) for name in kernel.inputs])
    (dx,) = kernel.call(given, kernel.checked_attributes(attributes or {}))
    return dx


def kernels() -> tuple[Kernel, ...]:
    """The table: op, domain, version, inputs, attributes with kinds and defaults, types."""
    return _KERNELS


def _max_pool_grad(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    dy, x = _tensors(inputs, 4)
    geometry, (rows, columns) = _windows_2d(x.shape, attributes)
    picked = dy[: x.shape[0], rows, columns, : x.shape[3]]
    shape = _output_shape(x.shape, geometry)
    if picked.shape != shape:
        picked = _completed(picked, x, shape, geometry)
    return _delivered(pooling.window_max_grad(picked, x, geometry, "NXC", double_sums=True), inputs)


def _completed(dy: np.ndarray, x: np.ndarray, shape: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    """dy with what it lacks: allowed where no window has a maximum, so that nothing is read."""
    _, indices = pooling.window_max(x, geometry, "NXC", return_indices=True)
    asked = indices >= 0
    held = tuple(map(slice, dy.shape))
    asked[held] = False
    if asked.any():
        raise ValueError(f"dy: an element that a window's maximum asks for is missing; expected {shape} of them")
    complete = np.zeros(shape, dy.dtype)
    complete[held] = dy
    return complete


def _avg_pool_grad(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    dy, x = _tensors(inputs, 4)
    geometry, windows = _windows_2d(x.shape, attributes)
    if any(window.start or window.step != 1 for window in windows):
        raise ValueError(f"filterSize, strides, pad: {attributes} given, expected whole numbers, filterSize positive")
    return _mean_grad(dy, x, geometry, inputs)


def _max_pool_3d_grad(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    dy, x = _tensors(inputs, 5)
    geometry = _windows_3d(x.shape, attributes)
    _require_fit(dy, x.shape, geometry)
    return _delivered(pooling.window_max_grad(dy, x, geometry, "NXC", double_sums=True), inputs)


def _avg_pool_3d_grad(inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    dy, x = _tensors(inputs, 5)
    return _mean_grad(dy, x, _windows_3d(x.shape, attributes), inputs)


def _mean_grad(dy: np.ndarray, x: np.ndarray, geometry: Geometry, inputs: list[Any]) -> list[Any]:
    _require_fit(dy, x.shape, geometry)
    return _delivered(pooling.window_mean_grad(dy, x.shape, geometry, "valid", "NXC", double_sums=True), inputs)


def _tensors(inputs: list[Any], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """dy and input in one type that holds the values of both: float32, or float64 where one has int32."""
    if any("complex" in str(getattr(value, "dtype", "")) for value in inputs[2:]):
        raise TypeError("output is complex; expected real numbers, though they are not read")
    dy, x = (_tensor(name, value, rank) for name, value in zip(("dy", "input"), inputs, strict=False))
    common = np.result_type(dy.dtype, x.dtype, np.float32)
    return dy.astype(common, copy=False), x.astype(common, copy=False)


def _tensor(name: str, value: Any, rank: int) -> np.ndarray:
    result = arrays.array(name, value)
    if result.dtype.name not in TYPES or not result.dtype.isnative:
        raise TypeError(f"{name} has type {result.dtype}; expected {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    if result.ndim != rank:
        raise ValueError(f"{name} has shape {result.shape}; expected rank {rank}")
    return result


def _windows_2d(shape: tuple[int, ...], attributes: dict[str, Any]) -> tuple[Geometry, tuple[slice, slice]]:
    return tfjs_pool_2d(
        shape[1:3], attributes["filterSize"], attributes["strides"], attributes["pad"], attributes["dimRoundingMode"]
    )


def _windows_3d(shape: tuple[int, ...], attributes: dict[str, Any]) -> Geometry:
    pad, mode = attributes["pad"], attributes["dimRoundingMode"]
    same = isinstance(pad, str) and pad == "same"
    if isinstance(pad, (str, list, tuple)) and pad not in ("same", "valid"):
        raise ValueError(f"Unknown padding parameter: {pad}")
    if not same and mode and mode not in tuple(_ROUNDINGS):
        raise ValueError(f"Unknown roundingMode {mode}")
    return Geometry.of(
        shape[1:4],
        integers("filterSize", attributes["filterSize"], 3, 1),
        strides=integers("strides", attributes["strides"], 3, 1),
        pads=integers("pad", 0 if isinstance(pad, str) else pad, 1, 0) * 3,
        auto_pad="same_upper" if same else "none",
        rounding="floor" if same else _ROUNDINGS[mode or None],
    )


def _output_shape(shape: tuple[int, ...], geometry: Geometry) -> tuple[int, ...]:
    return (shape[0], *geometry.output_size, shape[-1])


def _require_fit(dy: np.ndarray, shape: tuple[int, ...], geometry: Geometry) -> None:
    expected = _output_shape(shape, geometry)
    if dy.shape != expected:
        raise ValueError(f"dy has shape {dy.shape}; expected {expected} for an input of shape {shape}")


def _delivered(dx: np.ndarray, inputs: list[Any]) -> list[Any]:
    with np.errstate(over="ignore"):
        single = dx.astype(np.float32, copy=False)
    return [arrays.give(single, None, inputs[0])]


@dataclass(frozen=True)
class _Raw(Attribute):
    """An attribute that takes more than one kind; the geometry checks it."""

    def parse(self, value: Any) -> Any:
        return value


_ROUNDINGS: dict[str | None, Rounding] = {None: "trunc", "floor": "floor", "ceil": "ceil", "round": "round"}

_WINDOW = (_Raw("filterSize", "NUMBERS"), _Raw("strides", "NUMBERS"), _Raw("pad", "STRING or NUMBERS"))
_ATTRIBUTES = (*_WINDOW, _Raw("dimRoundingMode", "STRING", None))
_MAX_INPUTS, _AVG_INPUTS = ("dy", "input", "output"), ("dy", "input")


def _max_row(op: str, call: Callable[..., list[Any]]) -> Kernel:
    return Kernel(op, DOMAIN, 1, _MAX_INPUTS, _ATTRIBUTES, call, TYPES, optional_inputs=1)


def _avg_row(op: str, call: Callable[..., list[Any]]) -> Kernel:
    return Kernel(op, DOMAIN, 1, _AVG_INPUTS, _ATTRIBUTES, call, TYPES)


_KERNELS = (
    _max_row("MaxPoolGrad", _max_pool_grad),
    _avg_row("AvgPoolGrad", _avg_pool_grad),
    _max_row("MaxPool3DGrad", _max_pool_3d_grad),
    _avg_row("AvgPool3DGrad", _avg_pool_3d_grad),
)

__all__ = ["kernels", "run"]
