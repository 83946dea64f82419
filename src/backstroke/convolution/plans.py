"""From checked shapes to kernels: what computes a convolution, prepared once for each problem, and its run.

A call is a few nests in turn: weights are packed, the sweep runs, the gradient of the weights is summed up and put into
the caller's order. All of them get the same arguments, the arrays' addresses, among them one array of working memory;
what a nest takes of these is said by `Part`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arrays, known, memory
from ..geometry import Geometry
from ..jit import compile as compiler
from ..jit.prepared import Prepared, Step
from ..jit.target import Target, current
from ..jit.threads import pool
from ..jit.types import Type, i8, i64, pointer, scalar
from . import (
    channel_kernels,
    choices,
    depthwise_kernels,
    depthwise_pixels,
    packing,
    patch_kernels,
    plane_kernels,
    sweeps,
    weight_kernels,
)
from .choices import ALGORITHMS, Choice, Problem
from .depthwise_kernels import DepthwisePlan, DepthwiseWeightPlan
from .depthwise_pixels import Pixels
from .packing import Weights
from .shapes import Shape, Shapes

if TYPE_CHECKING:
    from ..jit.trace import Trace, Value

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


def explain(shapes: Shapes, dtype: np.dtype) -> Plan:
    """The plan for these shapes; nothing is compiled."""
    type, target, only = arrays.TYPES[np.dtype(dtype)], current(), choices.forced()
    key = (shapes.geometry, shapes.x, shapes.w, shapes.group, shapes.layout, type)
    return Plan(
        _sweep_choice(*key, False, target, only),
        _input_choice(shapes, type, target, only),
        _weight_choice(*key, True, True, target, only),
    )


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


@known.kept
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


@known.kept
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


# ---- calls ----------------------------------------------------------------------------------------------------------

_LINE = 64  # bytes
_UNUSED = -1
AT_ONCE = 1 << 21  # multiplications and additions that are not worth waking anybody for
Nest = Callable[..., None]
Parts = tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class Part:
    """One argument of a nest: an argument of the call, or what lies `offset` bytes into the working memory."""

    argument: int
    type: Type
    offset: int | None = None
    scalar: bool = False


def with_parts(k: Trace, piece: Value, *arguments: Any, nest: Nest, parts: tuple[Part, ...], **constants: Any) -> None:
    """A piece of a nest, which gets those parts of the call's arguments."""
    given: list[Any] = []
    for part in parts:
        if part.argument == _UNUSED:
            given.append(k.dereference(k.value(0, i64), part.type))
        elif part.scalar:
            given.append(arguments[part.argument])
        elif part.offset is None:
            given.append(k.dereference(arguments[part.argument].address, part.type))
        else:
            first = arguments[part.argument].address + (_LINE - 1) & -_LINE
            given.append(k.dereference(first + part.offset, part.type))
    nest(k, piece, *given, **constants)


@dataclass(frozen=True)
class _Turn:
    """A nest of a call. Its parts are named: arrays of the call, rooms of its pass, and the threads' scratch memory."""

    nest: Nest
    pieces: int
    parts: Parts
    constants: dict[str, Any]


Pass = tuple[list[_Turn], dict[str, int], int]  # nests, rooms between them in bytes, scratch bytes of a thread


class Call:
    """Nests that are ready to run in turn on arrays of known shapes and types, one of them working memory.

    `call(*inputs, work(), *outputs)` runs them where all is plain, and says whether it did.
    """

    def __init__(
        self, inputs: dict[str, Shape], outputs: dict[str, Shape], dtype: np.dtype,
        passes: Sequence[Pass], operations: int,
    ) -> None:  # fmt: skip
        """`passes` follow one another and share working memory."""
        slots, work = pool.threads, 0
        names = [*inputs, "work", *outputs]
        steps = []
        params = [pointer(arrays.TYPES[dtype])] * len(names) + [pointer(i64), pointer(i64), scalar()]
        params[len(inputs)] = pointer(i8)
        for turns, rooms, scratch in passes:
            end, places = 0, {}
            for name, size in (*rooms.items(), ("memory", scratch * slots)):
                places[name] = end
                end += -(-size // _LINE) * _LINE
            work = max(work, end)
            for turn in turns:
                parts = []
                for name, type in turn.parts:
                    if name in places:
                        parts.append(Part(len(inputs), type, places[name]))
                    elif name in ("flags", "slots"):
                        parts.append(Part(len(names) + 1 + (name == "slots"), type, scalar=name == "slots"))
                    else:
                        parts.append(Part(names.index(name) if name in names else _UNUSED, type))
                kernel = compiler.kernel(with_parts, *params, nest=turn.nest, parts=tuple(parts), **turn.constants)
                steps.append(Step(kernel, turn.pieces))
        self._flags = np.zeros(slots * 8 + 8, np.int64)
        first = arrays.address(self._flags)
        self.work_bytes = work + _LINE
        shapes = [(shape, dtype) for shape in inputs.values()]
        shapes += [((self.work_bytes,), np.dtype(np.uint8)), *((shape, dtype) for shape in outputs.values())]
        self._prepared = Prepared(
            shapes, params, (first + -first % _LINE, slots), steps, written=1 + len(outputs),
            at_once=operations <= AT_ONCE,
        )  # fmt: skip
        self.call = self._prepared.call
        self.work = self._maker((self.work_bytes,), np.dtype(np.uint8))
        self.results = [self._maker(shape, dtype) for shape in outputs.values()]

    @staticmethod
    def _maker(shape: Shape, dtype: np.dtype) -> Callable[[], np.ndarray]:
        return lambda: memory.pool.empty(shape, dtype)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run on arrays of these shapes and types, wherever they lie; those to write are dense."""
        work = self.work()
        if not self.call(*inputs, work, *outputs):
            dense = [*(arrays.in_order(x, range(x.ndim)) for x in inputs), work, *outputs]
            self._prepared.run(*map(arrays.address, dense))


def forward(shapes: Shapes, dtype: np.dtype, biased: bool) -> Call:
    """The call of a forward pass: of (x, w, bias, if there is one) and y."""
    return _forward(shapes, dtype, biased, current(), choices.forced(), pool.threads)


def gradients(shapes: Shapes, dtype: np.dtype, wrt: tuple[str, ...]) -> tuple[Call, tuple[str, ...]]:
    """The call of those gradients, which come in this order, and the names of the arrays that it reads."""
    return _gradients(shapes, dtype, wrt, current(), choices.forced(), pool.threads)


@known.kept
def _forward(shapes: Shapes, dtype: np.dtype, biased: bool, target: Target, only: str, threads: int) -> Call:
    key = (shapes.geometry, shapes.x, shapes.w, shapes.group, shapes.layout, arrays.TYPES[dtype])
    choice = _sweep_choice(*key, False, target, only)
    inputs = {"x": shapes.x, "w": shapes.w} | ({"b": shapes.b} if biased else {})
    operations = 2 * shapes.products
    turns = _sweep_turns(choice, shapes.w, False, "x", "b" if biased else "", "y", target)
    return Call(inputs, {"y": shapes.y}, dtype, [turns], operations)


@known.kept
def _gradients(
    shapes: Shapes, dtype: np.dtype, wrt: tuple[str, ...], target: Target, only: str, threads: int
) -> tuple[Call, tuple[str, ...]]:
    key = (shapes.geometry, shapes.x, shapes.w, shapes.group, shapes.layout, arrays.TYPES[dtype])
    whole = {"dy": shapes.y} | ({"x": shapes.x} if "w" in wrt else {}) | ({"w": shapes.w} if "x" in wrt else {})
    results = {"d" + name: {"x": shapes.x, "w": shapes.w, "b": shapes.b}[name] for name in wrt}
    passes = []
    if "x" in wrt:
        passes.append(_input_turns(shapes, arrays.TYPES[dtype], target, only))
    if "w" in wrt or "b" in wrt:
        choice = _weight_choice(*key, "w" in wrt, "b" in wrt, target, only)
        passes.append(_weight_turns(choice, shapes.w, target))
    operations = 2 * shapes.products * len({"x", "w"} & set(wrt)) + math.prod(shapes.y)
    return Call(whole, results, dtype, passes, operations), tuple(whole)


_SCRATCH = (("flags", i64), ("slots", i64))


def _input_turns(shapes: Shapes, type: Type, target: Target, only: str) -> Pass:
    """The nests of an input's gradient."""
    patches = patch_kernels.patches_of(shapes)
    choice = _input_choice(shapes, type, target, only)
    if patches is None:
        return _sweep_turns(choice, shapes.w, True, "dy", "", "dx", target)
    turns, rooms, scratch = _sweep_turns(choice, patches.w, True, "dy", "", "patches", target)
    geometry, channels = shapes.geometry.in_three(), _channels(shapes.x, shapes.layout)
    place = _Turn(
        patch_kernels.place_patches, patch_kernels.pieces(geometry, shapes.x[0], channels, shapes.layout),
        (("patches", type), ("dx", type)),
        {"geometry": geometry, "channels": channels, "groups": shapes.group, "layout": shapes.layout},
    )  # fmt: skip
    return [*turns, place], {**rooms, "patches": math.prod(patches.x) * type.bytes}, scratch


def _input_choice(shapes: Shapes, type: Type, target: Target, only: str) -> Choice:
    """How an input's gradient is swept, or the product of its patches."""
    s = patch_kernels.patches_of(shapes) or shapes
    return _sweep_choice(s.geometry, s.x, s.w, s.group, s.layout, type, True, target, only)


def _sweep_turns(
    choice: Choice, w_shape: Shape, transposed: bool, source: str, bias: str, goal: str, target: Target
) -> Pass:
    """The nests of a sweep, the room between them, and the scratch memory of a thread, in bytes."""
    plan = choice.plan
    type, sums, sweep = plan.type, plan.type.compute, plan.sweep
    lanes = target.lanes(type)
    given: Parts = ((source, type), ("w", type), (bias, type), (goal, type))
    if isinstance(plan, Pixels):
        turn = _Turn(depthwise_pixels.sweep_pixels, plan.pieces(), given, {"plan": plan, "biased": bool(bias)})
        return [turn], {}, 0
    if isinstance(plan, DepthwisePlan):
        given = (*given, *_SCRATCH, ("memory", sums))
        nest = depthwise_kernels.sweep_depthwise
        return [_Turn(nest, plan.pieces, given, {"plan": plan, "biased": bool(bias)})], {}, _scratch_bytes(plan, lanes)
    blocks, slices = plan.groups * plan.blocks(lanes), -(-plan.steps // plan.slice_depth)
    pack = _Turn(
        packing.pack, blocks * slices, (("w", type), ("packed", sums)),
        {
            "weights": weights_of(w_shape, plan.groups, plan.layout, transposed), "inputs": plan.inputs,
            "outputs": plan.outputs, "block": plan.block(lanes), "taps": plan.packed_taps(lanes),
            "kernel": math.prod(sweep.kernel), "depth": plan.slice_depth * plan.unit,
            "unit": plan.unit,
        },
    )  # fmt: skip
    parts = ((source, type), ("packed", sums), (bias, type), (goal, type), *_SCRATCH, ("memory", sums))
    turn = _Turn(_NESTS[choice.algorithm], plan.pieces, parts, {"plan": plan, "biased": bool(bias)})
    packed = blocks * sweep.taps * plan.steps * plan.block(lanes) * sums.bytes
    return [pack, turn], {"packed": packed}, _scratch_bytes(plan, lanes)


def _weight_turns(choice: Choice, w_shape: Shape, target: Target) -> Pass:
    """The nests of a gradient of weights, the room between them, and the scratch memory of a thread, in bytes."""
    plan = choice.plan
    type, sums = plan.type, plan.type.compute
    lanes = target.lanes(type)
    if isinstance(plan, Pixels):
        size, places = (math.prod(plan.sweep.kernel) + 1), (("partial", sums), ("dw", type), ("db", type))
        first = (("dy", type), ("x", type), ("partial", sums))
        turn = _Turn(depthwise_pixels.weights_of_pixels, plan.pieces(), first, {"plan": plan})
        join = _Turn(depthwise_pixels.join_pixels, size, places, {"plan": plan})
        return [turn, join], {"partial": plan.pieces() * size * plan.channels * sums.bytes}, 0
    if isinstance(plan, DepthwiseWeightPlan):
        given = (("dy", type), ("x", type), ("dw", type), ("db", type), *_SCRATCH, ("memory", sums))
        nest = depthwise_kernels.depthwise_weights
        return [_Turn(nest, plan.pieces(lanes), given, {"plan": plan})], {}, _scratch_bytes(plan, lanes)
    blocks = plan.groups * plan.output_blocks(lanes)
    chunk = blocks * plan.sums(lanes)
    parts = (("dy", type), ("x", type), ("partial", sums), *_SCRATCH, ("memory", sums))
    turn = _Turn(weight_kernels.weight_gradient, plan.pieces(lanes), parts, {"plan": plan})
    unpack = _Turn(
        packing.unpack, blocks, (("partial", sums), ("dw", type), ("db", type)),
        {
            "weights": weights_of(w_shape, plan.groups, plan.layout, False), "inputs": plan.inputs,
            "outputs": plan.outputs, "block": plan.block(lanes), "kernel": plan.taps, "chunks": plan.chunks,
            "chunk": chunk, "biased": plan.biased, "type": type,
        },
    )  # fmt: skip
    return [turn, unpack], {"partial": plan.chunks * chunk * sums.bytes}, _scratch_bytes(plan, lanes)


def _scratch_bytes(plan: Any, lanes: int) -> int:
    """What a thread needs, in whole cache lines."""
    size: int = (sum(plan.scratch(lanes)) + 16) * plan.type.compute.bytes
    return -(-size // _LINE) * _LINE


__all__: list[Any] = ["ALGORITHMS", "Call", "Plan", "explain", "forward", "gradients"]
