"""From checked arrays to kernels: the plan of a convolution, made once for each problem, and its run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import arrays, memory
from ..geometry import Geometry
from ..jit import compile as compiler
from ..jit.target import Target, current
from ..jit.threads import pool
from ..jit.types import Type, f32, f64, i64, pointer, scalar
from . import channel_kernels, choices, packing, plane_kernels, sweeps, weight_kernels
from .choices import ALGORITHMS, Choice, Problem
from .packing import Weights

_DTYPES: dict[Type, np.dtype] = {f32: np.dtype(np.float32), f64: np.dtype(np.float64)}
_LINE = 16
_NESTS: dict[str, Callable[..., None]] = {
    "channels": channel_kernels.sweep_channels,
    "planes": plane_kernels.sweep_planes,
}


@dataclass(frozen=True)
class Plan:
    """Which algorithm computes each part of a convolution, and what it is believed to cost."""

    forward: Choice
    dx: Choice
    dw: Choice


def explain(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: Geometry, group: int, layout: str, dtype: np.dtype
) -> Plan:
    """The plan for these shapes; nothing is compiled."""
    key = (geometry, x_shape, w_shape, group, layout, arrays.TYPES[np.dtype(dtype)])
    target, only = current(), choices.forced()
    return Plan(
        _sweep_choice(*key, False, target, only),
        _sweep_choice(*key, True, target, only),
        _weight_choice(*key, True, True, target, only),
    )


def forward(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, geometry: Geometry, group: int, layout: str, y: np.ndarray
) -> None:
    """Write the convolution of x."""
    _sweep(x, w, b, y, geometry, group, layout, x.shape, transposed=False)


def gradients(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, geometry: Geometry, group: int, layout: str,
    dx: np.ndarray | None, dw: np.ndarray | None, db: np.ndarray | None,
) -> None:  # fmt: skip
    """Write those gradients that are not None; nothing else is computed."""
    if dx is not None:
        _sweep(dy, w, None, dx, geometry, group, layout, x.shape, transposed=True)
    if dw is not None or db is not None:
        _weights(dy, x, w.shape, dw, db, geometry, group, layout)


def weights_of(shape: tuple[int, ...], group: int, layout: str, transposed: bool) -> Weights:
    """Where weights stand, seen by a sweep; `transposed`: its inputs are the convolution's outputs."""
    if layout == "NCX":
        outputs, inputs, *kernel = shape
        taps = math.prod(kernel)
        row, groups = inputs * taps, outputs // group * inputs * taps
        return Weights(groups, taps, row, 1) if transposed else Weights(groups, row, taps, 1)
    *kernel, inputs, outputs = shape
    groups, tap = outputs // group, inputs * outputs
    return Weights(groups, outputs, 1, tap) if transposed else Weights(groups, 1, outputs, tap)


def _channels(shape: tuple[int, ...], layout: str) -> int:
    return shape[1] if layout == "NCX" else shape[-1]


@functools.lru_cache(maxsize=1024)
def _sweep_choice(
    geometry: Geometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...], group: int, layout: str, type: Type,
    transposed: bool, target: Target, only: str,
) -> Choice:  # fmt: skip
    inputs, outputs = _channels(x_shape, layout), w_shape[0] if layout == "NCX" else w_shape[-1]
    if transposed:
        inputs, outputs = outputs, inputs
    three, images = _in_three(geometry, x_shape[0], layout)
    sweep = sweeps.input_gradient(three) if transposed else sweeps.forward(three)
    problem = Problem(layout, images, group, inputs // group, outputs // group, type)
    return choices.best(choices.SWEEPS, only, sweep, problem, target)


@functools.lru_cache(maxsize=1024)
def _weight_choice(
    geometry: Geometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...], group: int, layout: str, type: Type,
    weighted: bool, biased: bool, target: Target, only: str,
) -> Choice:  # fmt: skip
    inputs, outputs = _channels(x_shape, layout), w_shape[0] if layout == "NCX" else w_shape[-1]
    three, images = _in_three(geometry, x_shape[0], layout)
    problem = Problem(layout, images, group, inputs // group if weighted else 0, outputs // group, type)
    return choices.best(choices.WEIGHTS, only, three, problem, biased, target)


def _in_three(geometry: Geometry, images: int, layout: str) -> tuple[Geometry, int]:
    """The windows on three axes, and the images.

    Where windows are single elements, one after the other, an image is one row; and so are all, if channels come last.
    """
    three = geometry.in_three()
    ones = (1, 1, 1)
    if (three.kernel, three.strides) != (ones, ones) or any(pad != (0, 0) for pad in three.pads):
        return three, images
    size = math.prod(three.input_size) * (images if layout == "NXC" else 1)
    return Geometry.of((1, 1, size), ones, strides=1), 1 if layout == "NXC" else images


class _Scratch:
    """Memory for each thread that may work at once, and the flags by which it is borrowed."""

    def __init__(self, size: int, type: Type) -> None:
        size = -(-size // _LINE) * _LINE
        self._slots = pool.threads
        self._flags = np.zeros(self._slots * 8 + 8, np.int64)
        self._memory = _room(self._slots * size, type)

    @property
    def arguments(self) -> tuple[int, int, int]:
        flags = arrays.address(self._flags)
        return flags + -flags % 64, self._slots, _aligned(self._memory)


def _room(size: int, type: Type) -> np.ndarray:
    """Room for so many elements behind the next cache line."""
    fresh: np.ndarray = memory.pool.empty((size + 64,), _DTYPES[type])
    return fresh


def _aligned(room: np.ndarray) -> int:
    place = arrays.address(room)
    return place + -place % 64


@dataclass(frozen=True)
class _Run:
    """The kernels of one choice, compiled, and how their work is cut."""

    first: compiler.Function
    first_pieces: int
    second: compiler.Function
    second_pieces: int
    room: int  # elements between the two: packed weights, or sums that are not yet in order
    scratch: int
    sums: Type


@functools.lru_cache(maxsize=1024)
def _sweep_run(choice: Choice, w_shape: tuple[int, ...], transposed: bool, biased: bool, target: Target) -> _Run:
    plan = choice.plan
    type, sums, sweep = plan.type, plan.type.compute, plan.sweep
    lanes = target.lanes(type)
    blocks, slices = plan.groups * plan.blocks(lanes), -(-plan.inputs // plan.slice_depth)
    pack = compiler.kernel(
        packing.pack, pointer(type), pointer(sums), weights=weights_of(w_shape, plan.groups, plan.layout, transposed),
        inputs=plan.inputs, outputs=plan.outputs, block=plan.block(lanes), taps=plan.packed_taps(lanes),
        kernel=math.prod(sweep.kernel), depth=plan.slice_depth,
    )  # fmt: skip
    params = [pointer(type), pointer(sums), pointer(type), pointer(type), pointer(i64), scalar(), pointer(sums)]
    kernel = compiler.kernel(_NESTS[choice.algorithm], *params, plan=plan, biased=biased)
    room = blocks * sweep.taps * plan.inputs * plan.block(lanes)
    return _Run(pack, blocks * slices, kernel, plan.pieces, room, sum(plan.scratch(lanes)), sums)


def _sweep(
    source: np.ndarray, w: np.ndarray, bias: np.ndarray | None, target: np.ndarray, geometry: Geometry, group: int,
    layout: str, x_shape: tuple[int, ...], *, transposed: bool,
) -> None:  # fmt: skip
    key = (geometry, x_shape, w.shape, group, layout, arrays.TYPES[target.dtype])
    choice = _sweep_choice(*key, transposed, current(), choices.forced())
    run = _sweep_run(choice, w.shape, transposed, bias is not None, current())
    source, w = _dense(source), _dense(w)
    bias = None if bias is None else _dense(bias)
    packed, scratch = _room(run.room, run.sums), _Scratch(run.scratch, run.sums)
    pool.run(run.first, run.first.pack(arrays.address(w), _aligned(packed)), run.first_pieces)
    places = [arrays.address(source), _aligned(packed), _address(bias), arrays.address(target)]
    pool.run(run.second, run.second.pack(*places, *scratch.arguments), run.second_pieces)


@functools.lru_cache(maxsize=1024)
def _weight_run(choice: Choice, w_shape: tuple[int, ...], target: Target) -> _Run:
    plan = choice.plan
    type, sums = plan.type, plan.type.compute
    lanes = target.lanes(type)
    blocks = plan.groups * plan.output_blocks(lanes)
    chunk = blocks * plan.sums(lanes)
    params = [pointer(type), pointer(type), pointer(sums), pointer(i64), scalar(), pointer(sums)]
    kernel = compiler.kernel(weight_kernels.weight_gradient, *params, plan=plan)
    unpack = compiler.kernel(
        packing.unpack, pointer(sums), pointer(type), pointer(type),
        weights=weights_of(w_shape, plan.groups, plan.layout, False), inputs=plan.inputs, outputs=plan.outputs,
        block=plan.block(lanes), kernel=plan.taps, chunks=plan.chunks, chunk=chunk, biased=plan.biased, type=type,
    )  # fmt: skip
    return _Run(kernel, plan.pieces(lanes), unpack, blocks, plan.chunks * chunk, sum(plan.scratch(lanes)) + 16, sums)


def _weights(
    dy: np.ndarray, x: np.ndarray, w_shape: tuple[int, ...], dw: np.ndarray | None, db: np.ndarray | None,
    geometry: Geometry, group: int, layout: str,
) -> None:  # fmt: skip
    key = (geometry, x.shape, w_shape, group, layout, arrays.TYPES[dy.dtype])
    choice = _weight_choice(*key, dw is not None, db is not None, current(), choices.forced())
    run = _weight_run(choice, w_shape, current())
    dy, x = _dense(dy), _dense(x)
    partial, scratch = _room(run.room, run.sums), _Scratch(run.scratch, run.sums)
    places = [arrays.address(dy), arrays.address(x), _aligned(partial)]
    pool.run(run.first, run.first.pack(*places, *scratch.arguments), run.first_pieces)
    pool.run(run.second, run.second.pack(_aligned(partial), _address(dw), _address(db)), run.second_pieces)


def _address(x: np.ndarray | None) -> int:
    return 0 if x is None else arrays.address(x)


def _dense(x: np.ndarray) -> np.ndarray:
    return arrays.in_order(x, range(x.ndim))


__all__: list[Any] = ["ALGORITHMS", "Plan", "explain", "forward", "gradients"]
