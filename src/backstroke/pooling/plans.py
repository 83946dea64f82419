"""From checked arrays to kernels: which one, how the work is cut, and the tables that it reads.

How a tensor is cut depends on its shape and type alone. Tables that depend on the geometry only are kept.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import arrays, memory
from ..geometry import Counted, Geometry
from ..jit import compile as compiler
from ..jit.target import current
from ..jit.threads import pool
from ..jit.types import Type, f32, f64, i32, i64, pointer, scalar
from . import max_kernels, mean_kernels

SEGMENT = 32768  # elements of dX that are worked on at a time
_DTYPES: dict[Type, np.dtype] = {f32: np.dtype(np.float32), f64: np.dtype(np.float64), i32: np.dtype(np.int32)}


class _Scratch:
    """Memory for each thread that may work at once, and the flags by which it is borrowed."""

    def __init__(self, size: int, type: Type) -> None:
        self._slots = pool.threads
        self._flags = np.zeros(self._slots * 8 + 8, np.int64)
        self._memory = memory.pool.empty((self._slots * size + 64,), _DTYPES[type])

    @property
    def arguments(self) -> tuple[int, int, int]:
        flags, place = arrays.address(self._flags), arrays.address(self._memory)
        return flags + -flags % 64, self._slots, place + -place % 64


def _sums(dtype: np.dtype, double: bool) -> Type:
    return f64 if double else arrays.TYPES[dtype].compute


def _split(x: np.ndarray, layout: str) -> tuple[int, int]:
    """How many planes or images there are, and how many channels run innermost."""
    return (x.shape[0] * x.shape[1], 1) if layout == "NCX" else (x.shape[0], x.shape[-1])


def _dense(x: np.ndarray) -> np.ndarray:
    return arrays.in_order(x, range(x.ndim))


def _streams(result: np.ndarray, row: int) -> tuple[bool, bool]:
    """Whether to write past the caches, and whether rows of `row` elements can be written so."""
    large = result.nbytes > memory.large_output(inputs=1)
    vector = current().vector_bytes
    return large, large and arrays.address(result) % vector == 0 and row * result.itemsize % vector == 0


def _require_places(geometry: Geometry) -> None:
    if math.prod(geometry.input_size) >= 2**31 - 1:
        raise ValueError(f"a plane of {geometry.input_size} is too large: expected less than 2^31 - 1 positions")


# ---- averages -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _covering(geometry: Geometry) -> np.ndarray:
    """The tables of the windows over each position, one axis after the other."""
    return np.concatenate([geometry.covering(axis).reshape(-1) for axis in range(3)])


@functools.lru_cache(maxsize=64)
def _weights(geometry: Geometry, counted: Counted, sums: str) -> tuple[float, np.ndarray, np.ndarray]:
    """(the one weight of all windows or 0, weights by class and last axis, the class of each leading position)."""
    lead, last = _divisors(geometry, counted)
    classes, which = np.unique(lead, return_inverse=True)
    weights = (1.0 / np.multiply.outer(classes, last)).astype(sums)
    uniform = float(weights.flat[0]) if weights.size and (weights == weights.flat[0]).all() else 0.0
    return uniform, weights, which.reshape(-1).astype(np.int64)


@functools.lru_cache(maxsize=64)
def _divisors(geometry: Geometry, counted: Counted) -> tuple[np.ndarray, np.ndarray]:
    first, second, last = (axis.astype(np.float64) for axis in geometry.divisors(counted))
    return np.multiply.outer(first, second).reshape(-1), last


def _one_window(geometry: Geometry) -> bool:
    """Whether there is one window, and it sees everything."""
    return geometry.output_size == (1, 1, 1) and all(
        len(geometry.axis_taps(axis, 0)) == size for axis, size in enumerate(geometry.input_size)
    )


def window_mean_grad(
    dy: np.ndarray, geometry: Geometry, counted: Counted, layout: str, dx: np.ndarray, double: bool
) -> None:
    """Write the gradient of an average."""
    geometry.require_int64()
    items, channels = _split(dx, layout)
    if not dx.size:
        return
    if not dy.size:
        dx[...] = 0
        return
    three, dy = geometry.in_three(), _dense(dy)
    type, sums = arrays.TYPES[dx.dtype], _sums(dx.dtype, double)
    if _one_window(three):
        _broadcast(dy, three, counted, items, channels, dx, sums)
        return
    uniform, weights, classes = _weights(three, counted, _DTYPES[sums].name)
    covering = _covering(three)
    width = three.input_size[2]
    rows = three.input_size[0] * three.input_size[1]
    band = min(rows, max(1, SEGMENT // (width * channels)))
    pieces = items * -(-rows // band)
    _, stream = _streams(dx, width if channels == 1 else channels)
    places = [arrays.address(x) for x in (dy, dx, weights, classes, covering)]
    params = [pointer(type), pointer(type), pointer(sums), pointer(i64), pointer(i64)]
    options = {"geometry": three, "band": band, "uniform": uniform, "type": type, "sums": sums, "stream": stream}
    if channels > 1:
        build = mean_kernels.mean_grad_channels
        kernel = compiler.kernel(build, *params, channels=channels, **options)
        pool.run(kernel, kernel.pack(*places), pieces)
        return
    columns = covering[-three.covering(2).size :] if covering.size else covering
    size = mean_kernels.row_scratch(three, current().lanes(sums))[1]
    scratch = _Scratch(2 * size, sums)
    params += [pointer(i64), pointer(i64), scalar(), pointer(sums)]
    kernel = compiler.kernel(mean_kernels.mean_grad_planes, *params, **options)
    pool.run(kernel, kernel.pack(*places, arrays.address(columns), *scratch.arguments), pieces)


def _broadcast(
    dy: np.ndarray, geometry: Geometry, counted: Counted, items: int, channels: int, dx: np.ndarray, sums: Type
) -> None:
    elements, type = math.prod(geometry.input_size), arrays.TYPES[dx.dtype]
    divisor = math.prod(int(axis[0]) for axis in geometry.divisors(counted))
    band = max(1, SEGMENT // (elements * channels))
    large, whole = _streams(dx, channels)
    build = mean_kernels.broadcast
    params = [scalar(), pointer(type), pointer(type), scalar(sums)]
    options = {"type": type, "sums": sums, "stream": large if channels == 1 else whole}
    kernel = compiler.kernel(build, *params, elements=elements, channels=channels, band=band, **options)
    packed = kernel.pack(items, arrays.address(dy), arrays.address(dx), float(divisor))
    pool.run(kernel, packed, -(-items // band))


def window_mean(x: np.ndarray, geometry: Geometry, counted: Counted, layout: str, y: np.ndarray) -> None:
    """Write the averages."""
    geometry.require_int64()
    items, channels = _split(x, layout)
    if not y.size:
        return
    three, x, type = geometry.in_three(), _dense(x), arrays.TYPES[x.dtype]
    sums = _DTYPES[type.compute]
    lead, last = (part.astype(sums) for part in _divisors(three, counted))
    params = [pointer(type), pointer(type), pointer(type.compute), pointer(type.compute)]
    kernel = compiler.kernel(mean_kernels.mean, *params, geometry=three, channels=channels, type=type)
    packed = kernel.pack(*(arrays.address(a) for a in (x, y, lead, last)))
    pool.run(kernel, packed, items * three.output_size[0] * three.output_size[1])


# ---- maxima ---------------------------------------------------------------------------------------------------------


def window_max(x: np.ndarray, geometry: Geometry, layout: str, y: np.ndarray, indices: np.ndarray | None) -> None:
    """Write the maxima, and where they stand."""
    geometry.require_int64()
    _require_places(geometry)
    items, channels = _split(x, layout)
    if not y.size:
        return
    three, x, type = geometry.in_three(), _dense(x), arrays.TYPES[x.dtype]
    params = [pointer(type), pointer(type), pointer(i64)]
    options: dict[str, Any] = {"geometry": three, "type": type, "indexed": indices is not None}
    if layout == "NXC":
        kernel = compiler.kernel(max_kernels.max_channels, *params, channels=channels, **options)
    else:
        kernel = compiler.kernel(max_kernels.max_planes, *params, **options)
    places = arrays.address(x), arrays.address(y), 0 if indices is None else arrays.address(indices)
    pool.run(kernel, kernel.pack(*places), items * three.output_size[0] * three.output_size[1])


def window_max_grad(
    dy: np.ndarray, x: np.ndarray, geometry: Geometry, layout: str, dx: np.ndarray, double: bool
) -> None:
    """Write the gradient of the maxima, found again in x."""
    geometry.require_int64()
    _require_places(geometry)
    items, channels = _split(x, layout)
    if not dx.size:
        return
    if not dy.size:
        dx[...] = 0
        return
    three, dy, x = geometry.in_three(), _dense(dy), _dense(x)
    type, sums = arrays.TYPES[dx.dtype], _sums(dx.dtype, double)
    inputs = three.input_size
    # The first axis that can be cut. A row of planes is not: its windows are walked by vectors.
    axis = next((a for a in range(3 if layout == "NXC" else 2) if inputs[a] > 1), 0)
    slice_size = math.prod(inputs) // inputs[axis]
    band = min(inputs[axis], max(1, SEGMENT // (slice_size * channels)))
    pieces = items * -(-inputs[axis] // band)
    large, whole = _streams(dx, channels)
    params = [pointer(type)] * 3
    options = {"geometry": three, "axis": axis, "band": band, "type": type, "sums": sums}
    places = [arrays.address(a) for a in (dy, x, dx)]
    if layout == "NCX":
        scratch = _Scratch(band * slice_size + max_kernels.PADDING, sums)
        params += [pointer(i64), scalar(), pointer(sums)]
        kernel = compiler.kernel(max_kernels.max_grad_planes, *params, stream=large, **options)
        pool.run(kernel, kernel.pack(*places, *scratch.arguments), pieces)
        return
    windows = min(three.output_size[axis], (band - 1 + three.extents[axis] - 1) // three.strides[axis] + 2)
    most = windows * math.prod(three.output_size) // three.output_size[axis]
    scratch = _Scratch(most * channels + max_kernels.PADDING, i32)
    covering = _covering(three)
    params += [pointer(i64), pointer(i64), scalar(), pointer(i32)]
    build = max_kernels.max_grad_channels
    kernel = compiler.kernel(build, *params, channels=channels, most=most, stream=whole, **options)
    pool.run(kernel, kernel.pack(*places, arrays.address(covering), *scratch.arguments), pieces)


def max_grad_from_indices(dy: np.ndarray, indices: np.ndarray, shape: tuple[int, ...], out: Any, original: Any) -> Any:
    """Check all indices, then scatter; -> the result as the caller gets it."""
    size = math.prod(shape)
    inputs = {"dy": dy, "indices": indices}
    if out is not None:
        result = arrays.result(out, shape, dy.dtype, inputs)
    elif size * dy.itemsize > 2**62:
        raise ValueError(f"input_shape: {shape} given, which is too large for any memory")
    dy, indices = _dense(dy), _dense(indices)
    chunks = -(-dy.size // max_kernels.CHUNK)
    ranges = np.empty((chunks, 2), np.int64)
    per_piece = 16
    survey = compiler.kernel(max_kernels.survey, scalar(), pointer(i64), pointer(i64), per_piece=per_piece)
    packed = survey.pack(dy.size, arrays.address(indices), arrays.address(ranges))
    pool.run(survey, packed, -(-chunks // per_piece))
    if chunks and (ranges[:, 0].min() < 0 or ranges[:, 1].max() >= size):
        flat = indices.reshape(-1)
        position = int(np.flatnonzero((flat < 0) | (flat >= size))[0])
        raise ValueError(f"indices: {flat[position]} at position {position} is out of range [0, {size})")
    if out is None:
        result = memory.pool.empty(shape, dy.dtype)
    if size:
        _scatter(dy, indices, ranges, result)
    return arrays.give(result, out, original)


def _scatter(dy: np.ndarray, indices: np.ndarray, ranges: np.ndarray, dx: np.ndarray) -> None:
    type, sums = arrays.TYPES[dx.dtype], arrays.TYPES[dx.dtype].compute
    segments = -(-dx.size // SEGMENT)
    spans = np.empty((segments, 2), np.int64)
    assign = compiler.kernel(max_kernels.assign, scalar(), scalar(), pointer(i64), pointer(i64), segment=SEGMENT)
    pool.run(assign, assign.pack(len(ranges), segments, arrays.address(ranges), arrays.address(spans)), 1)
    scratch = _Scratch(SEGMENT + max_kernels.PADDING, sums)
    params = [scalar(), scalar(), pointer(type), pointer(i64), pointer(type), pointer(i64), pointer(i64), pointer(i64)]
    params += [scalar(), pointer(sums)]
    large, _ = _streams(dx, 1)
    options = {"segment": SEGMENT, "type": type, "sums": sums, "stream": large}
    kernel = compiler.kernel(max_kernels.scatter, *params, **options)
    places = [arrays.address(a) for a in (dy, indices, dx, ranges, spans)]
    pool.run(kernel, kernel.pack(dy.size, dx.size, *places, *scratch.arguments), segments)


__all__ = ["max_grad_from_indices", "window_max", "window_max_grad", "window_mean", "window_mean_grad"]
