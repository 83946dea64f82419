"""From checked shapes to plans: which kernels, how the work is cut, and the tables that they read.

How a tensor is cut depends on its shape and type alone. A plan is made once for shapes, type and windows, and kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import arrays, known, memory
from ..geometry import Counted, Geometry, in_layout
from ..jit import compile as compiler
from ..jit import stage
from ..jit.prepared import Prepared, Step
from ..jit.target import current
from ..jit.types import Param, Type, f32, f64, i16, i32, i64, pointer, scalar
from . import index_kernels, max_kernels, mean_kernels, turned_kernels

SEGMENT = 32768  # elements of dX that are worked on at a time
MOST_PIECES = 64  # beyond, they are made longer
LEAST_PIECES = 16  # where the tensor has so many planes or images
MOST_RING = 1 << 20  # elements of the memory that moves along dX
TURNED = 65536  # elements of planes that are turned at a time
AT_ONCE = 16384  # elements that are not worth waking anybody for
_SLOTS = 64  # threads that may work in scratch memory at once; more wait for each other
_DTYPES: dict[Type, np.dtype] = {f32: np.dtype(np.float32), f64: np.dtype(np.float64), i32: np.dtype(np.int32)}
Shape = tuple[int, ...]


class Plan:
    """Kernels that are ready to run on arrays of known shapes and types.

    `empty()` makes the last of them, the result, and `work()` the one before, where that is working memory.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[Shape, np.dtype]],
        params: Sequence[Param],
        constants: Sequence[int | float],
        steps: Sequence[Step],
        keep: Any,
        **how: Any,
    ) -> None:
        params = [*(pointer(arrays.TYPES.get(dtype, i64)) for _, dtype in shapes), pointer(i64), *params]
        self._prepared, self._keep = Prepared(shapes, params, constants, steps, **how), keep
        self.call, self.shape, self.dtype = self._prepared.call, *shapes[-1]
        self.empty, self.work = _maker(*shapes[-1]), _maker(*shapes[-2])

    def run(self, *given: np.ndarray) -> bool:
        """Run on arrays of these shapes and types, wherever they lie; those to write are dense."""
        if self.call(*given):
            return True
        dense = [_dense(x) for x in given]
        return self._prepared.run(*map(arrays.address, dense))


def _maker(shape: Shape, dtype: np.dtype) -> Callable[[], np.ndarray]:
    """What makes arrays of this kind."""
    make = np.empty if math.prod(shape) * dtype.itemsize < memory.SMALLEST else memory.pool.empty
    return functools.partial(make, shape, dtype)


@known.kept
def _scratch(size: int) -> tuple[tuple[int, int, int], np.ndarray, np.ndarray]:
    """Memory of `size` bytes for each thread that may work at once: ((flags, slots, place), what holds them).

    Memory that no thread has touched is not there yet.
    """
    slots = max(2, min(_SLOTS, (256 << 20) // size))
    flags, place = np.zeros(slots * 8 + 8, np.int64), np.empty(slots * size + 64, np.uint8)
    first, start = arrays.address(flags), arrays.address(place)
    return (first + -first % 64, slots, start + -start % 64), flags, place


def _borrowed(count: int, type: Type) -> tuple[list[Param], tuple[int, int, int], Any]:
    """Scratch memory of at least `count` elements: its parameters, its constants, what to keep."""
    arguments, *keep = _scratch(1 << (count * type.bytes + 127).bit_length())
    return [pointer(i64), scalar(), pointer(type)], arguments, keep


def _sums(dtype: np.dtype, double: bool) -> Type:
    return f64 if double else arrays.TYPES[dtype].compute


def _split(shape: Shape, layout: str) -> tuple[int, int]:
    """How many planes or images there are, and how many channels run innermost."""
    return (shape[0] * shape[1], 1) if layout == "NCX" else (shape[0], shape[-1])


def _dense(x: np.ndarray) -> np.ndarray:
    return arrays.in_order(x, range(x.ndim))


def _is_large(shape: Shape, dtype: np.dtype, inputs: float = 1) -> bool:
    """Whether to write past the caches, where so many times as much is read."""
    return math.prod(shape) * dtype.itemsize > memory.large_output(inputs)


def _step(
    build: Any, params: Any, pieces: int, *,
    row: int, shape: Shape, dtype: np.dtype, inputs: float = 1, **constants: Any,
) -> Step:  # fmt: skip
    """A kernel, which streams large outputs unless a `row` of them is too long."""
    stream = _is_large(shape, dtype, inputs) and not stage.too_long(row, arrays.TYPES[dtype])
    return Step(compiler.kernel(build, *params, stream=stream, type=arrays.TYPES[dtype], **constants), pieces)


def _params(dtypes: Sequence[np.dtype], more: Sequence[Param]) -> list[Param]:
    return [*(pointer(arrays.TYPES.get(dtype, i64)) for dtype in dtypes), pointer(i64), *more]


def _require_places(geometry: Geometry) -> None:
    if math.prod(geometry.input_size) >= 2**31 - 1:
        raise ValueError(f"a plane of {geometry.input_size} is too large: expected less than 2^31 - 1 positions")


# ---- averages -------------------------------------------------------------------------------------------------------


def _covering(geometry: Geometry) -> np.ndarray:
    """The tables of the windows over each position, one axis after the other."""
    return np.concatenate([geometry.covering(axis).reshape(-1) for axis in range(3)])


def _weights(geometry: Geometry, counted: Counted, sums: np.dtype) -> tuple[float, np.ndarray, np.ndarray]:
    """(the one weight of all windows or 0, weights by class and last axis, the class of each leading position)."""
    lead, last = _divisors(geometry, counted)
    classes, which = np.unique(lead, return_inverse=True)
    weights = (1.0 / np.multiply.outer(classes, last)).astype(sums)
    uniform = float(weights.flat[0]) if weights.size and (weights == weights.flat[0]).all() else 0.0
    return uniform, weights, which.reshape(-1).astype(np.int64)


def _divisors(geometry: Geometry, counted: Counted) -> tuple[np.ndarray, np.ndarray]:
    first, second, last = (axis.astype(np.float64) for axis in geometry.divisors(counted))
    return np.multiply.outer(first, second).reshape(-1), last


def _one_window(geometry: Geometry) -> bool:
    """Whether there is one window, and it sees everything."""
    return geometry.output_size == (1, 1, 1) and all(
        len(geometry.axis_taps(axis, 0)) == size for axis, size in enumerate(geometry.input_size)
    )


def _inputs(geometry: Geometry) -> float:
    """What is read, as a share of what is written."""
    return math.prod(geometry.output_size) / max(1, math.prod(geometry.input_size))


@known.kept
def mean_grad(shape: Shape, dtype: np.dtype, geometry: Geometry, counted: Counted, layout: str, double: bool) -> Plan:
    """The gradient of an average: (dy, dx)."""
    geometry.require_int64()
    items, channels = _split(shape, layout)
    three, sums = geometry.in_three(), _sums(dtype, double)
    both = [(in_layout(shape, geometry.output_size, layout), dtype), (shape, dtype)]
    at_once = math.prod(shape) <= AT_ONCE
    if _one_window(three):
        return _broadcast(both, three, counted, items, channels, sums)
    uniform, weights, classes = _weights(three, counted, _DTYPES[sums])
    width = three.input_size[2]
    rows = three.input_size[0] * three.input_size[1]
    # Two bands read what is between them twice: where there are images enough they are not cut small.
    band = min(rows, max(1, SEGMENT // (width * channels), items * rows // MOST_PIECES))
    pieces = items * -(-rows // band)
    options: dict[str, Any] = {"geometry": three, "band": band, "uniform": uniform, "sums": sums}
    options |= {"shape": shape, "dtype": dtype, "inputs": _inputs(three)}
    if channels > 1:
        over, columns = _rows_over(three), _lists(three.covering(2))
        keep: Any = (weights, classes, over, columns)
        more, constants = [pointer(sums), *[pointer(i64)] * 3], [*map(arrays.address, keep)]
        options |= {"reach": (over.shape[1] - 2, columns.shape[1] - 1), "channels": channels}
        step = _step(mean_kernels.mean_grad_channels, _params([dtype] * 2, more), pieces, row=channels, **options)
        return Plan(both, more, constants, [step], keep, at_once=at_once)
    if _turns(three, items, current().lanes(sums)):
        return _turned(both, three, items, sums, uniform, (weights, classes))
    covering = _covering(three)
    keep = (weights, classes, covering)
    more, constants = [pointer(sums), *[pointer(i64)] * 2], [*map(arrays.address, keep)]
    columns = covering[-three.covering(2).size :] if covering.size else covering
    scratch = _borrowed(2 * mean_kernels.row_scratch(three, current().lanes(sums))[1], sums)
    more, constants = [*more, pointer(i64), *scratch[0]], [*constants, arrays.address(columns), *scratch[1]]
    step = _step(mean_kernels.mean_grad_planes, _params([dtype] * 2, more), pieces, row=width, **options)
    return Plan(both, more, constants, [step], (keep, scratch), at_once=at_once)


def _turns(geometry: Geometry, items: int, lanes: int) -> bool:
    """Whether planes are better turned on their side: there are some of them, and their rows are short.

    Short rows cost what finding their windows costs, and waiting for sums that are read in other vectors than they were
    written in. Where each vector of sums becomes some whole vectors of dX, nothing waits. A row is traced column by
    column, so that long ones take a while to compile: they are turned where there is much to do.
    """
    columns = max(geometry.input_size[2], geometry.output_size[2])
    apart = geometry.kernel[2] <= geometry.strides[2] and geometry.dilations[2] == 1 and geometry.pads[2][0] == 0
    fitting = apart and geometry.output_size[2] % lanes == 0
    most = turned_kernels.MOST_COLUMNS if _is_much(items, geometry) else turned_kernels.MOST_COLUMNS // 2
    short = 0 < columns <= most and math.prod(geometry.output_size) > 0
    return short and items > lanes // 4 and not fitting


def _is_much(items: int, geometry: Geometry) -> bool:
    """Whether there is so much to do that it is worth compiling more."""
    return items * math.prod(geometry.input_size) >= turned_kernels.MUCH


def _turned(
    both: list[tuple[Shape, np.dtype]], geometry: Geometry, items: int, sums: Type, uniform: float,
    keep: tuple[np.ndarray, np.ndarray],
) -> Plan:  # fmt: skip
    (shape, dtype), lanes = both[-1], current().lanes(sums)
    over = _rows_over(geometry)
    rows, width = len(over), geometry.input_size[2]
    # A band is made of whole slices of the first axis: their windows are next to each other in dY.
    unit = geometry.input_size[1] if geometry.input_size[0] > 1 else 1
    slices = -(-rows // unit)
    band = -(-slices // -(-slices * unit * width * lanes // TURNED)) * unit
    spans = np.array([_span(over[i : i + band]) for i in range(0, rows, band)], np.int64) * geometry.output_size[2]
    span = int((spans[:, 1] - spans[:, 0]).max())
    groups, bands = -(-items // lanes), len(spans)
    # More groups in a piece than its size asks for, where there are plenty: it is the next one that is prefetched.
    batch = max(1, SEGMENT // (rows * width * lanes), min(16, groups // 32)) if bands == 1 else 1
    tables = (*keep, over, spans)
    scratch = _borrowed(turned_kernels.scratch_size(span, band * width, lanes), sums)
    more = [pointer(sums), *[pointer(i64)] * 3, scalar(), *scratch[0]]
    constants = [*map(arrays.address, tables), items, *scratch[1]]
    options: dict[str, Any] = {"geometry": geometry, "band": band, "batch": batch, "reach": over.shape[1] - 2}
    options |= {"span": span, "uniform": uniform, "sums": sums}
    options["forms"] = turned_kernels.Forms(items % lanes > 0, not _is_much(items, geometry))
    options |= {"shape": shape, "dtype": dtype, "inputs": _inputs(geometry)}
    build, params = turned_kernels.mean_grad_turned, _params([dtype] * 2, more)
    step = _step(build, params, -(-groups // batch) * bands, row=1, **options)
    return Plan(both, more, constants, [step], (tables, scratch), at_once=math.prod(shape) <= AT_ONCE)


def _lists(covering: np.ndarray) -> np.ndarray:
    """For each position how many windows see it, and which: the table without its gaps."""
    seen = covering >= 0
    order = np.argsort(~seen, axis=1, kind="stable")
    return np.hstack([seen.sum(1, keepdims=True), np.take_along_axis(covering, order, 1)])


def _rows_over(geometry: Geometry) -> np.ndarray:
    """For each row of dX the last row of dY that the next one needs, how many rows of dY see it, and which, ascending.

    After the last row come the first ones of what follows in memory.
    """
    first, second = (geometry.covering(axis)[:, None, :, None] for axis in range(2))
    second = second.transpose(1, 0, 3, 2)
    lines = np.where((first >= 0) & (second >= 0), first * geometry.output_size[1] + second, -1)
    lines = lines.reshape(geometry.input_size[0] * geometry.input_size[1], -1)
    count = geometry.output_size[0] * geometry.output_size[1]
    ahead = np.append(np.maximum.accumulate(lines.max(axis=1, initial=0)), count)[1:]
    return np.ascontiguousarray(np.hstack([ahead[:, None], _lists(lines)]))


def _span(over: np.ndarray) -> tuple[int, int]:
    """The first row of dY that these rows of dX need, and the one after the last."""
    needed = [row[2 : 2 + row[1]] for row in over if row[1]]
    return (min(int(r[0]) for r in needed), 1 + max(int(r[-1]) for r in needed)) if needed else (0, 0)


def _broadcast(
    both: list[tuple[Shape, np.dtype]], geometry: Geometry, counted: Counted, items: int, channels: int, sums: Type
) -> Plan:
    elements, (shape, dtype) = math.prod(geometry.input_size), both[-1]
    divisor = math.prod(int(axis[0]) for axis in geometry.divisors(counted))
    band = max(1, SEGMENT // (elements * channels))
    params = [scalar(), scalar(sums)]
    options: dict[str, Any] = {"elements": elements, "channels": channels, "band": band, "sums": sums}
    options |= {"shape": shape, "dtype": dtype, "inputs": 0}
    step = _step(mean_kernels.broadcast, _params([dtype] * 2, params), -(-items // band), row=channels, **options)
    return Plan(both, params, [items, float(divisor)], [step], None, at_once=math.prod(shape) <= AT_ONCE)


@known.kept
def mean(shape: Shape, dtype: np.dtype, geometry: Geometry, counted: Counted, layout: str) -> Plan:
    """The averages: (x, y)."""
    geometry.require_int64()
    items, channels = _split(shape, layout)
    three, type = geometry.in_three(), arrays.TYPES[dtype]
    both = [(shape, dtype), (in_layout(shape, geometry.output_size, layout), dtype)]
    lead, last = (part.astype(_DTYPES[type.compute]) for part in _divisors(three, counted))
    more = [pointer(type.compute)] * 2
    params = _params([dtype] * 2, more)
    kernel = compiler.kernel(mean_kernels.mean, *params, geometry=three, channels=channels, type=type)
    step = Step(kernel, items * three.output_size[0] * three.output_size[1])
    places = [arrays.address(lead), arrays.address(last)]
    return Plan(both, more, places, [step], (lead, last), at_once=math.prod(shape) <= AT_ONCE)


# ---- maxima ---------------------------------------------------------------------------------------------------------


@known.kept
def maxima(shape: Shape, dtype: np.dtype, geometry: Geometry, layout: str, indexed: bool) -> Plan:
    """The maxima, and where they stand: (x, y), or (x, y, indices)."""
    geometry.require_int64()
    _require_places(geometry)
    items, channels = _split(shape, layout)
    three, output = geometry.in_three(), in_layout(shape, geometry.output_size, layout)
    every = [(shape, dtype), (output, dtype)] + ([(output, np.dtype(np.int64))] if indexed else [])
    options: dict[str, Any] = {"geometry": three, "type": arrays.TYPES[dtype], "indexed": indexed}
    params = _params([each for _, each in every], [])
    if layout == "NXC":
        kernel = compiler.kernel(max_kernels.max_channels, *params, channels=channels, **options)
    else:
        kernel = compiler.kernel(max_kernels.max_planes, *params, **options)
    step = Step(kernel, items * three.output_size[0] * three.output_size[1])
    return Plan(every, [], [], [step], None, written=len(every) - 1, at_once=math.prod(shape) <= AT_ONCE)


@known.kept
def max_grad(shape: Shape, dtype: np.dtype, geometry: Geometry, layout: str, double: bool) -> Plan:
    """The gradient of the maxima, found again in x: (dy, x, dx)."""
    geometry.require_int64()
    _require_places(geometry)
    items, channels = _split(shape, layout)
    three, sums = geometry.in_three(), _sums(dtype, double)
    every = [(in_layout(shape, geometry.output_size, layout), dtype), (shape, dtype), (shape, dtype)]
    inputs = three.input_size
    # The first axis that can be cut. A row of planes is not: its windows are walked by vectors.
    axis = next((a for a in range(3 if layout == "NXC" else 2) if inputs[a] > 1), 0)
    slice_size = math.prod(inputs) // inputs[axis]
    band = _band(items, inputs[axis], three.extents[axis], slice_size * channels, layout)
    pieces = items * -(-inputs[axis] // band)
    options: dict[str, Any] = {"geometry": three, "axis": axis, "band": band, "sums": sums}
    options |= {"shape": shape, "dtype": dtype}
    at_once = math.prod(shape) <= AT_ONCE
    if layout == "NCX":
        more, constants, keep = _borrowed(band * slice_size + max_kernels.PADDING, sums)
        step = _step(max_kernels.max_grad_planes, _params([dtype] * 3, more), pieces, row=1, **options)
        return Plan(every, more, constants, [step], keep, at_once=at_once)
    windows = min(three.output_size[axis], (band - 1 + three.extents[axis] - 1) // three.strides[axis] + 2)
    most = windows * math.prod(three.output_size) // three.output_size[axis]
    more, constants, keep = _borrowed(most * channels + max_kernels.PADDING, i32)
    lists = np.concatenate([_lists(three.covering(i)).reshape(-1) for i in range(3)])
    more, params = [pointer(i64), *more], _params([dtype] * 3, [pointer(i64), *more])
    build = max_kernels.max_grad_channels
    step = _step(build, params, pieces, row=channels, channels=channels, most=most, **options)
    return Plan(every, more, [arrays.address(lists), *constants], [step], (keep, lists), at_once=at_once)


def _band(items: int, size: int, extent: int, slice_size: int, layout: str) -> int:
    """How many slices along an axis are a piece of a gradient from the input.

    Windows that reach into two bands are looked at twice, so bands are some windows high where there are pieces enough.
    """
    least = max(1, SEGMENT // slice_size)
    band = max(least, 4 * extent, (4 if layout == "NXC" else 1) * SEGMENT // slice_size)
    while band > least and items * -(-size // min(band, size)) < LEAST_PIECES:
        band = max(least, band // 2)
    return min(size, band)


def _has_planes(dy: Shape, shape: Shape) -> bool:
    """Whether the arrays look as if channels came first."""
    return len(dy) == len(shape) > 2 and dy[:2] == shape[:2] and dy[2:] != shape[2:]


def _is_small(dy: Shape, shape: Shape) -> bool:
    """Whether a gradient by indices is not worth waking anybody for."""
    return math.prod(shape) + 2 * math.prod(dy) <= AT_ONCE


def _segment(dy: Shape, shape: Shape) -> int:
    """How many elements of dX are added up at a time where they lie.

    Whole planes or images, if the arrays look as if they had some and these are small enough; else equal parts of them.
    A segment reads all gradients that may reach into it, so that small ones would read the same gradients again and
    again.
    """
    size = math.prod(shape)
    if _is_small(dy, shape):
        return size
    planes = _has_planes(dy, shape)
    unit = math.prod(shape[2:] if planes else shape[1:])
    target = SEGMENT if planes and unit <= SEGMENT else 16 * SEGMENT
    if unit <= target:
        return max(1, min(target // unit, size // unit // LEAST_PIECES)) * unit
    return -(-unit // -(-unit // target))


def _ring(dy: Shape, shape: Shape) -> tuple[int, int]:
    """(how far the windows of a chunk may be apart, the largest ring that is made for them), in elements: a guess, as
    windows of neighbours see some rows. Where it is wrong, another nest does the work."""
    rows = 4 * math.prod(shape[3 if _has_planes(dy, shape) else 2 :])
    chunk = index_kernels.CHUNK * math.prod(shape) // math.prod(dy)
    wanted = rows + 2 * index_kernels.BLOCK * chunk
    return rows + chunk, min(MOST_RING, 1 << max(wanted, index_kernels.LEAST_RING).bit_length())


@known.kept
def scatter(dy: Shape, dtype: np.dtype, shape: Shape) -> Plan:
    """The gradient of maxima by their indices: (dy, indices, working memory, dx). It stops before dx is written where
    an index is out of range."""
    count, size = math.prod(dy), math.prod(shape)
    type, sums = arrays.TYPES[dtype], arrays.TYPES[dtype].compute
    apart, ring = _ring(dy, shape)
    inputs = min(1.0, 3 * count / size)  # what is read, in units of what is written
    direct = type is sums and (not _is_large(shape, dtype, inputs) or apart > MOST_RING)
    near = i16 if apart <= 1 << i16.bits else i32
    segment = _segment(dy, shape) if direct else min(max(8 * SEGMENT, 8 * ring), -(-size // LEAST_PIECES))
    # Where windows reach far, small segments would all walk the same chunks.
    segment = max(segment, min(4 * apart, -(-size // 4)))
    chunks, segments = index_kernels.chunks_of(count), -(-size // segment)
    room = mean_kernels.LINE + (0 if direct else max(segment, ring))
    borrowed, scratch, keep = _borrowed(room, sums)
    # Sizes come in when the nests run: every shape has the same machine code.
    more = [*[scalar()] * 7, *borrowed]
    constants = [count, size, chunks, segments, segment, ring, room, *scratch]
    work = (index_kernels.work_words(count, segments, near),)
    every = [(dy, dtype), (dy, np.dtype(np.int64)), (work, np.dtype(np.int64)), (shape, dtype)]
    params = _params([each for _, each in every], more)
    far = index_kernels.near_bytes(count, near) > memory.large_output(inputs=1)
    survey = compiler.kernel(index_kernels.survey, *params, near=near, stream=far)
    assign = compiler.kernel(index_kernels.assign, *params, near=near, direct=direct)
    steps = [Step(survey, index_kernels.blocks_of(count)), Step(assign, 1)]
    how: dict[str, Any] = {"near": near, "sums": sums, "row": 1, "shape": shape, "dtype": dtype, "inputs": inputs}
    if not direct:
        steps.append(_step(index_kernels.slide, params, segments, **how))
    steps.append(_step(index_kernels.scatter, params, segments, direct=direct, **how))
    return Plan(every, more, constants, steps, keep, written=2, alone=True, at_once=_is_small(dy, shape))


__all__ = ["Plan", "max_grad", "maxima", "mean", "mean_grad", "scatter"]
