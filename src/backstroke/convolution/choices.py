"""Which nest computes a convolution, and how it is cut: a cost model in cycles, with its constants in one table.

Every algorithm offers plans; the model counts what the inner loops issue (multiplications, loads), what they read from
the second cache, and what is staged and delivered around them; the cheapest plan wins. Nothing here knows a shape by
name, and nothing depends on the number of threads. `BACKSTROKE_CONV_ALGORITHM` restricts the choice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..geometry import Geometry
from ..jit.target import Target
from ..jit.types import Type, bf16
from . import depthwise_kernels, sweeps
from .channel_kernels import ChannelPlan
from .depthwise_kernels import DepthwisePlan, DepthwiseWeightPlan, Rows
from .depthwise_pixels import Pixels, bands_of
from .plane_kernels import PlanePlan
from .sweeps import Sweep, tap_count
from .weight_kernels import WeightPlan, column_runs, sparse


@dataclass(frozen=True)
class Constants:
    """What the model believes of a core. Cycles, bytes, or plain numbers."""

    issue: int = 2  # multiply-adds that start in a cycle
    load: float = 0.55  # cycles of a load
    latency: int = 4  # cycles until a sum can be used again
    turn: float = 0.6  # cycles that a turn of the inner loop costs by itself
    second_cache: int = 32  # bytes a cycle from there
    staged: float = 0.25  # cycles to stage one element
    row: float = 6.0  # cycles to stage a vector of a row of x
    far: int = 16  # bytes a cycle from behind the second cache
    delivered: float = 0.8  # cycles to turn one element and store it
    kept: float = 0.2  # cycles to store one element as it lies
    tile: float = 12.0  # cycles to begin and end a register tile
    shifted: float = 0.8  # cycles of a multiply-add with a vector that begins anywhere
    tile_room: int = 28  # registers of a tile where there are 32; half of it where there are 16
    stage_bytes: int = 384 << 10  # staged input of a box, so that it stays in the second cache
    sums_bytes: int = 256 << 10
    weight_bytes: int = 128 << 10  # packed weights that a slice of input channels takes
    ways: int = 8  # cache lines of the same place that a cache holds at ease
    way_bytes: int = 4096  # so far apart is the same place of the first cache, and of the second
    second_way_bytes: int = 64 << 10
    strip_bytes: int = 24 << 10  # turned dy of a box, so that it stays in the first cache
    pieces: int = 8  # as many pieces are wanted at least
    partial_bytes: int = 4 << 20  # sums of weights that are kept apart
    most_runs: int = 9  # of columns that see the same taps, each traced by itself
    most_traced: int = 3000  # multiply-adds in the code of one nest
    most_scratch: int = 6 << 20  # scratch memory of a thread


CONSTANTS = Constants()


@dataclass(frozen=True)
class Problem:
    """One convolution, seen by a sweep or by the gradient of its weights: channels are those of one group."""

    layout: str
    images: int
    groups: int
    inputs: int
    outputs: int
    type: Type

    @property
    def bytes(self) -> int:
        return self.type.compute.bytes


def _unit(problem: Problem, target: Target) -> int:
    """How many input channels are multiplied at once: pairs of bfloat16, where there is an instruction for them."""
    return 2 if problem.type is bf16 and target.has_pairs and problem.inputs % 2 == 0 else 1


@dataclass(frozen=True)
class Choice:
    """An algorithm, its plan, and the cycles that it is believed to take on one core."""

    algorithm: str
    plan: Any
    cycles: float
    others: tuple[tuple[str, float], ...] = field(default=(), compare=False)  # the best of the other algorithms

    def __repr__(self) -> str:
        others = "".join(f"; {name} about {cycles / 1e6:.3g}" for name, cycles in self.others)
        return f"{self.algorithm} (about {self.cycles / 1e6:.3g} million cycles{others})"


def _turn(products: int, loads: int, fresh_bytes: int) -> float:
    """Cycles of one turn of an inner loop."""
    c = CONSTANTS
    bound = max(products / c.issue, loads * c.load, fresh_bytes / c.second_cache, c.latency)
    return bound + c.turn


def _room(target: Target) -> int:
    return CONSTANTS.tile_room if target.registers >= 32 else CONSTANTS.tile_room // 2 - 2


def _rows(target: Target, vectors: int) -> int:
    """Rows of a register tile: one register spreads their numbers, and the vectors need theirs."""
    return min(_room(target), target.registers - 1 - vectors) // vectors


def _shared(pieces: int) -> float:
    """How much longer a number of threads takes for so many pieces than for pieces that go round evenly, about."""
    few = CONSTANTS.pieces // 2
    return (1 + -(-pieces // few) * few / pieces) / 2


def _spans(blocks: int) -> list[int]:
    """How many blocks of output channels a piece may have."""
    return sorted({1, min(4, blocks), -(-blocks // 2), blocks})


def _halved(count: int, unit: int) -> int:
    """About half of `count`, in units."""
    return max(unit, -(-count // unit // 2) * unit)


def _evened(count: int, most: int, unit: int = 1) -> int:
    """The size of equal parts of `count`, none above `most`, in units."""
    parts = -(-count // max(most, unit))
    size = -(-count // parts)
    return -(-size // unit) * unit


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def channel_plans(sweep: Sweep, problem: Problem, target: Target) -> Iterator[tuple[ChannelPlan, float]]:
    """Vectors over output channels: any sweep."""
    c, lanes = CONSTANTS, target.lanes(problem.type)
    spread = sweep.spread
    columns, rows = (-(-sweep.output_size[axis] // spread[axis]) for axis in (2, 1))
    vectors_wanted, unit = -(-problem.outputs // lanes), _unit(problem, target)
    steps = problem.inputs // unit
    for vectors in range(1, min(4, vectors_wanted) + 1):
        blocks = -(-vectors_wanted // vectors)
        for images, high in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2)):
            wide = min(columns, _rows(target, vectors) // (images * high))
            if images > problem.images or high > rows or wide == 0 or (wide < columns and images * high > 1):
                continue
            wide = _evened(columns, wide)
            exact = wide == columns and high == 1 and not sweep.inside
            cycles = problem.groups * blocks * -(-problem.images // images) * steps * _phase_cycles(
                sweep, images, high, wide, exact, vectors, lanes * problem.bytes
            )  # fmt: skip
            tiles = -(-columns // wide) * -(-rows // high) * -(-problem.images // images)
            tiles *= -(-sweep.output_size[0] // spread[0]) * blocks * problem.groups * len(sweep.phases)
            for span in _spans(blocks):
                plan = _boxed(
                    ChannelPlan(
                        sweep, problem.layout, problem.images, problem.groups, problem.inputs, problem.outputs,
                        (images, spread[0], high * spread[1], wide * spread[2]), (images, high, wide), vectors,
                        span * vectors * lanes, steps, steps,
                        problem.type is not problem.type.compute
                        or (not exact and (problem.layout == "NCX" or not sweep.inside))
                        or _crowded(problem, problem.inputs, sweep.step[2], images * high * wide, c.way_bytes),
                        exact, problem.type, unit == 2,
                    ),
                    lanes,
                )  # fmt: skip
                slices = -(-plan.steps // plan.depth)
                yield plan, (cycles + tiles * slices * c.tile + _around(plan, lanes)) * _shared(plan.pieces)


def _crowded(problem: Problem, channels: int, step: int, pixels: int, way_bytes: int) -> bool:
    """Whether pixels of channels last are so far apart that they drive each other out of a cache's few places."""
    apart = max(1, channels) * problem.groups * problem.bytes * step
    return problem.layout == "NXC" and pixels > CONSTANTS.ways * max(1, way_bytes // (apart & -apart))


def _phase_cycles(
    sweep: Sweep, images: int, high: int, wide: int, exact: bool, vectors: int, vector_bytes: int
) -> float:
    """Cycles that the tiles of some images take for an input channel: of all phases, rows and taps."""

    def turn(pixels: int) -> float:
        return _turn(pixels * vectors, pixels + vectors, vectors * vector_bytes) if pixels else 0.0

    total = 0.0
    for phase in sweep.phases:
        lines = 1
        for axis, extent, size in zip(phase[:2], sweep.input_size[:2], (1, high), strict=True):
            seen = size == 1
            lines *= (
                sum(len(axis.seen(place, extent)) for place in range(axis.size)) if seen
                else -(-axis.size // size) * len(axis.offsets)
            )  # fmt: skip
        if exact:
            places = [phase[2].seen(place, sweep.input_size[2]) for place in range(phase[2].size)]
            columns = sum(turn(images * sum(m in seen for seen in places)) for m in range(len(phase[2].offsets)))
        else:
            columns = -(-phase[2].size // wide) * len(phase[2].offsets) * turn(images * high * wide)
        total += lines * columns
    return total


def _boxed(plan: ChannelPlan, lanes: int) -> ChannelPlan:
    """The plan with the largest boxes that fit the caches, and slices of channels that do."""
    c, size, sweep = CONSTANTS, plan.type.compute.bytes, plan.sweep
    images, z, unit_y, unit_x = plan.box
    height, width = sweep.output_size[1:]

    def fits(images: int, y: int, x: int, share: int = 1) -> bool:
        box = replace(plan, box=(images, z, y, x))
        sums = images * z * y * x * plan.block(lanes) * size
        near = c.stage_bytes * share * (1 if plan.staged else 2)
        return box.staged_view.image * images * size <= near and sums <= c.sums_bytes * share

    y, x = -(-height // unit_y) * unit_y, -(-width // unit_x) * unit_x
    whole_y = y
    while y > unit_y and not fits(images, y, x):
        y = _halved(y, unit_y)
    while x > unit_x and not fits(images, y, x, 2):
        x = _halved(x, unit_x)
    y, x = _evened(height, y, unit_y), _evened(width, x, unit_x)
    boxes = -(-height // y) * -(-width // x) * sweep.output_size[0] * plan.groups * plan.spans
    while images * 2 <= plan.images and y == whole_y and fits(images * 2, y, x):
        if boxes * plan.images // (images * 2) < c.pieces:
            break
        images *= 2
    while y > unit_y and boxes * -(-plan.images // images) < c.pieces:
        y = _halved(y, unit_y)
        boxes = -(-height // y) * -(-width // x) * sweep.output_size[0] * plan.groups * plan.spans
    while x > unit_x and not plan.exact and boxes * -(-plan.images // images) < c.pieces:
        x = _halved(x, unit_x)
        boxes = -(-height // y) * -(-width // x) * sweep.output_size[0] * plan.groups * plan.spans
    y, x = _evened(height, y, unit_y), min(width, _evened(width, x, unit_x))
    uneven = plan.images % images or height % y or width % x
    most_taps = max(len(a.offsets) * len(b.offsets) * len(d.offsets) for a, b, d in sweep.phases) or 1
    depth = max(16, c.weight_bytes // (most_taps * plan.block(lanes) * size))
    boxed = replace(plan, box=(images, z, y, x), depth=depth, staged=plan.staged or bool(uneven))
    while boxed.chunk > 1 and boxed.staged and sum(boxed.scratch(lanes)) * size > c.most_scratch:
        boxed = replace(boxed, chunk=-(-boxed.chunk // 2))
    return boxed


def _around(plan: ChannelPlan, lanes: int) -> float:
    """Cycles of staging, of fetching what is not near, and of delivering."""
    c, elements = CONSTANTS, plan.images * plan.groups * plan.outputs * math.prod(plan.sweep.output_size)
    z, y, x = plan.staged_size
    staged = plan.pieces * plan.box[0] * plan.steps * z * y * x * c.staged if plan.staged else 0.0
    return staged + _fetched(plan, lanes) + elements * (c.delivered if plan.layout == "NCX" else c.kept)


def _fetched(plan: ChannelPlan | PlanePlan, lanes: int) -> float:
    """Cycles in which inputs come for every span, and weights for every box if they do not stay near."""
    c, size = CONSTANTS, plan.type.compute.bytes
    read = plan.spans * plan.images * plan.groups * plan.inputs * math.prod(plan.sweep.input_size)
    weights = plan.sweep.taps * plan.steps * plan.blocks(lanes) * plan.block(lanes)
    if weights * size > c.stage_bytes:
        read += math.prod(plan.boxes) * plan.groups * weights
    return read * size / c.far


# Output channels and vectors of a register tile by planes: what 32 registers hold, or 16.
_PLANE_TILES = {
    32: ((8, 3), (9, 2), (7, 3), (6, 4), (5, 4), (4, 6), (3, 7), (2, 10), (1, 14)),
    16: ((4, 2), (3, 3), (2, 5), (1, 7)),
}


def plane_plans(sweep: Sweep, problem: Problem, target: Target) -> Iterator[tuple[PlanePlan, float]]:
    """Vectors over positions: planes whose rows are read one position apart."""
    lanes, unit = target.lanes(problem.type), _unit(problem, target)
    if problem.layout != "NCX" or sweep.step[1:] != (1, 1) or sweep.spread[2] > 4:
        return
    whole = problem.type is problem.type.compute
    row = sweep.output_size[:2] == (1, 1) == sweep.kernel[:2] and sweep.kernel[2] == 1 and sweep.inside
    direct = row and whole and len(sweep.phases) == 1 and sweep.taps > 0  # without taps there is nothing but zeros
    for rows, vectors in _PLANE_TILES[32 if target.registers >= 32 else 16]:
        if rows > problem.outputs and rows > 1:
            continue
        for joined in (False, True):
            if joined and (problem.images == 1 or sweep.output_size[0] > 1 or sweep.kernel[0] > 1):
                continue
            plan = _plane_boxes(
                PlanePlan(
                    sweep, problem.layout, problem.images, problem.groups, problem.inputs, problem.outputs,
                    (1, sweep.spread[0], 0, 0), rows, vectors, -(-problem.outputs // lanes) * lanes,
                    problem.inputs // unit, joined, direct and not joined, problem.type, unit == 2,
                ),
                lanes,
            )  # fmt: skip
            yield plan, _plane_cycles(plan, lanes) * _shared(plan.pieces)


def _plane_boxes(plan: PlanePlan, lanes: int) -> PlanePlan:
    """Boxes whose sums fit the second cache and slices whose staged input does the first, and enough of them."""
    c, size, sweep = CONSTANTS, plan.type.compute.bytes, plan.sweep
    height, width = sweep.output_size[1:]
    unit_y, unit_x = sweep.spread[1], plan.vectors * lanes if plan.direct else sweep.spread[2] * lanes
    y, x = -(-height // unit_y) * unit_y, -(-width // unit_x) * unit_x if plan.direct else width
    images, span = plan.images if plan.joined else 1, plan.span

    def sized() -> PlanePlan:
        return replace(plan, box=(images, plan.box[1], y, x), span=span)

    def boxes() -> int:
        return sized().pieces

    def room() -> int:
        box = sized()
        sums = span * (x if plan.direct else box.sums(lanes)[0]) * size
        return max(sums, box.staged_view.channel * min(plan.steps, 64) * size)

    while room() > c.sums_bytes * 2 or boxes() < c.pieces:
        crowded = room() > c.sums_bytes * 2
        if images > 1 and crowded:
            images = -(-images // 2)
        elif y > unit_y:
            y = _halved(y, unit_y)
        elif x > unit_x * 4 or (x > unit_x and crowded):
            x = _halved(x, unit_x)
        elif span > 2 * lanes and (crowded or boxes() < c.pieces):
            span = _halved(span, lanes)
        else:
            break
    y, x = _evened(height, y, unit_y), _evened(width, x, unit_x) if x < width or plan.direct else x
    images, span = _evened(plan.images, images), _evened(plan.outputs, span, lanes)
    box = sized()
    steps = max(len(a.offsets) * len(b.offsets) for a, b, _ in sweep.phases) or 1
    wide = plan.vectors * lanes + max(len(d.offsets) for _, _, d in sweep.phases)
    return replace(box, depth=_evened(plan.steps, max(16, c.strip_bytes // (steps * wide * size))))


def _plane_cycles(plan: PlanePlan, lanes: int) -> float:
    """What a sweep by planes is believed to take."""
    c = CONSTANTS
    slices = -(-plan.steps // plan.depth)
    full, rest = divmod(plan.outputs, lanes)
    heights = [plan.rows] * (lanes // plan.rows) * full + [lanes % plan.rows] * full
    heights += [plan.rows] * (rest // plan.rows) + [rest % plan.rows]
    boxes = plan.pieces // plan.spans
    total = 0.0
    for phase in plan.sweep.phases:
        taps = tap_count(phase)
        images, planes = plan.loops(phase)
        if not taps or not plan.flat(phase):
            continue
        tiles, left = divmod(plan.slot(phase, lanes) // lanes, plan.vectors)
        for vectors, count in ((plan.vectors, tiles), (left, 1)):
            if not vectors:
                continue
            for height in set(heights) - {0}:
                loads = height + vectors * (1.5 if taps > 1 else 1)
                turn = max(height * vectors / c.issue, loads * c.load, c.latency) + c.turn
                tile = plan.steps * taps * turn + slices * (c.tile + height * vectors)
                total += boxes * images * planes * count * heights.count(height) * tile
    z, y, x = plan.staged_size
    staged = boxes * plan.spans * plan.box[0] * plan.steps * z * y * x * c.staged
    elements = plan.images * plan.groups * plan.outputs * math.prod(plan.sweep.output_size)
    return total + staged + _fetched(plan, lanes) + (0.0 if plan.direct else elements * c.kept)


# ---- weights --------------------------------------------------------------------------------------------------------


def strip_plans(
    geometry: Geometry, problem: Problem, biased: bool, target: Target
) -> Iterator[tuple[WeightPlan, float]]:
    """Vectors over output channels: any convolution."""
    lanes = target.lanes(problem.type)
    a, b, last = geometry.kernel
    unit = _pixel_unit(geometry, problem, target)
    vectors_wanted = -(-problem.outputs // lanes)
    for joined in (True, False):
        inline = a * b * last if joined else last
        if joined and (a * b == 1 or inline > _rows(target, 1)):
            continue
        padded, few = any(pad != (0, 0) for pad in geometry.pads), len(column_runs(geometry)) <= CONSTANTS.most_runs
        exact = padded and few and not joined and unit == 1
        lines, runs = _pixel_runs(geometry, exact, unit)
        for vectors in range(1, min(4, vectors_wanted) + 1):
            best: tuple[float, int] | None = None
            for rows in range(1, min(_room(target), max(1, problem.inputs)) + 1):
                if rows * inline > _rows(target, vectors) and rows * vectors > 1:
                    break

                def turns(rows: int, inline: int = inline, vectors: int = vectors, runs: Runs = runs) -> float:
                    leading = rows * inline // last
                    return sum(n * _turn(leading * m * vectors, leading * m + vectors, 0) for n, m in runs)

                whole, rest = divmod(problem.inputs, rows)
                cycles = whole * turns(rows) + (turns(rest) if rest else 0.0)
                if best is None or cycles < best[0] * 0.999:
                    best = cycles, rows
            if best is None:
                continue
            blocks = -(-vectors_wanted // vectors)
            passes = problem.images * problem.groups * blocks * (1 if joined else lines)
            if joined:
                passes *= geometry.output_size[0] * geometry.output_size[1]
            for span in _spans(blocks):
                cuts = [
                    _cut(
                        geometry, problem, biased, lanes, vectors, unit,
                        rows=best[1], joined=joined, exact=exact, span=span, apart=apart,
                    )
                    for apart in (False, True)
                ]  # fmt: skip
                for plan in dict.fromkeys(cuts):
                    cycles = passes * best[0] + _around_weights(plan, lanes)
                    yield plan, cycles * _shared(plan.pieces(lanes))


Runs = list[tuple[int, int]]


def _pixel_runs(geometry: Geometry, exact: bool, unit: int) -> tuple[int, Runs]:
    """How many rows of an image's outputs the leading taps meet, and (columns or pairs of them, taps) along one."""
    if exact:
        seen = [
            sum(0 <= geometry.start(i, o) + m * geometry.dilations[i] < geometry.input_size[i]
                for o in range(geometry.output_size[i]) for m in range(geometry.kernel[i]))
            for i in range(2)
        ]  # fmt: skip
        return math.prod(seen), [(end - start, len(taps)) for start, end, taps in column_runs(geometry)]
    lines = math.prod(n * k for n, k in zip(geometry.output_size[:2], geometry.kernel[:2], strict=True))
    return lines, [(-(-geometry.output_size[2] // unit), geometry.kernel[2])]


def _around_weights(plan: WeightPlan, lanes: int) -> float:
    """Cycles of staging, of fetching what is not near, and of adding tiles to the sums."""
    c, size, block = CONSTANTS, plan.type.compute.bytes, plan.block(lanes)
    z, y, x = plan.x_size
    spans, blocks = plan.output_spans(lanes), plan.output_blocks(lanes)
    pixels = plan.images * math.prod(plan.geometry.output_size)
    cycles = 0.0
    if plan.staged_dy:
        line = plan.box[1] * plan.box[2] if plan.flat else plan.box[2]
        turned = -(-line // lanes) * lanes * c.delivered if plan.layout == "NCX" else line * c.kept
        cycles += pixels / line * turned * blocks * block * plan.input_blocks
    if plan.staged_x:
        row = -(-x // lanes) * c.row * (plan.geometry.strides[2] if plan.compact[1] else 1)
        row = row if plan.layout == "NCX" else x * c.staged
        cycles += plan.box_count * plan.box[0] * z * y * plan.inputs * spans * row
    read = plan.images * plan.inputs * math.prod(plan.geometry.input_size) * spans
    read += pixels * plan.outputs * plan.input_blocks
    leading = 1 if plan.joined else plan.taps // plan.geometry.kernel[2]
    tiles = plan.box_count * blocks * -(-plan.inputs // plan.rows) * leading
    sums = plan.sums(lanes) * blocks * size
    # A piece's sums are gone through once a box; where they do not stay near, that is read and written.
    if plan.span * plan.sums(lanes) * size // plan.input_blocks > c.stage_bytes * 2:
        read += 2 * sums * plan.box_count // size
    read += 3 * sums * (plan.chunks - 1) // size
    return plan.groups * (cycles + read * size / c.far + tiles * c.tile * 3)


def _spread_out(geometry: Geometry, problem: Problem) -> bool:
    """Whether x is read so sparsely that it is better staged."""
    return problem.layout == "NCX" and any(sparse(geometry))


def _pixel_unit(geometry: Geometry, problem: Problem, target: Target) -> int:
    """How many pixels are multiplied at once: pairs of bfloat16, where neighbours in a row can lie side by side."""
    near = geometry.strides[2] == 1 or sparse(geometry)[1]
    fits = problem.type is bf16 and target.has_pairs and problem.layout == "NCX"
    return 2 if fits and near and geometry.output_size[2] > 1 else 1


def _cut(
    geometry: Geometry, problem: Problem, biased: bool, lanes: int, vectors: int, unit: int, *,
    rows: int, joined: bool, exact: bool, span: int, apart: bool,
) -> WeightPlan:  # fmt: skip
    """Boxes whose dy stays in the first cache, and enough pieces.

    Those are ranges of boxes, whose sums are kept apart, or first of all (not `apart`) blocks of input channels.
    """
    c, size, block = CONSTANTS, problem.bytes, vectors * lanes
    _, y, x = geometry.output_size
    pixels = max(16, c.strip_bytes // (block * size)) * unit
    wide = _evened(x, min(x, pixels))
    wide = wide if wide == x else -(-wide // unit) * unit
    high = _evened(y, max(1, min(y, pixels // wide)))
    images = max(1, min(problem.images, pixels // (wide * high))) if wide == x and high == y else 1
    while problem.images % images:
        images -= 1
    whole = problem.type is problem.type.compute
    padded = any(pad != (0, 0) for pad in geometry.pads) and not exact

    def crowded(channels: int, step: int) -> bool:
        return _crowded(problem, channels, step, images * high * wide, c.second_way_bytes)

    staged_x = not whole or padded or _spread_out(geometry, problem) or crowded(problem.inputs, geometry.strides[2])
    staged_dy = not whole or problem.layout == "NCX" or problem.outputs % block != 0 or crowded(problem.outputs, 1)
    plan = WeightPlan(
        geometry, problem.layout, problem.images, problem.groups, problem.inputs, problem.outputs, vectors, rows,
        joined, (images, high, wide), max(1, problem.inputs), span, 1, exact, staged_x, staged_dy, biased,
        problem.type, unit == 2,
    )  # fmt: skip

    def shallower() -> WeightPlan:
        return replace(plan, depth=-(-plan.depth // 2 // rows) * rows)

    while plan.depth > rows and plan.scratch(lanes)[1] * size > c.stage_bytes * 2 // 3:
        plan = shallower()
    spans, chunks = problem.groups * plan.output_spans(lanes), 1
    sums = problem.groups * plan.output_blocks(lanes) * plan.sums(lanes) * size

    def enough_chunks() -> int:
        chunks = 1
        while spans * plan.input_blocks * chunks < c.pieces and sums * chunks * 2 <= c.partial_bytes:
            chunks *= 2
        return min(chunks, plan.box_count)

    if apart:
        chunks = enough_chunks()
    while plan.depth > max(rows, 32) and spans * plan.input_blocks * chunks < c.pieces:
        plan = shallower()
    return replace(plan, chunks=max(chunks, enough_chunks()))


# ---- depthwise ------------------------------------------------------------------------------------------------------


def _alone(sweep: Sweep, problem: Problem) -> bool:
    """Whether every channel is for itself, in two dimensions."""
    single = problem.inputs == problem.outputs == 1
    return single and sweep.kernel[0] == sweep.output_size[0] == sweep.input_size[0] == 1


def _pixels(sweep: Sweep, problem: Problem, target: Target, biased: int = 0) -> tuple[Pixels, float] | None:
    """The plan of pixels, where its code is not too long."""
    c, lanes = CONSTANTS, target.lanes(problem.type)
    plan = bands_of(sweep, problem.images, problem.groups, problem.type, c.stage_bytes, c.pieces)
    if plan.traced > c.most_traced:
        return None
    vectors = problem.images * -(-problem.groups // lanes)
    cycles = 0.0
    for phase in sweep.phases:
        pixels = phase[1].size * phase[2].size
        cycles += pixels * (max(tap_count(phase), c.latency) / c.issue * 1.2 + c.turn + 1 + biased)
    return plan, vectors * cycles + plan.pieces() * c.tile


def _rows_cycles(rows: Rows, planes: int, lanes: int) -> float:
    """What staging planes and multiplying their rows is believed to take."""
    c = CONSTANTS
    bands = -(-rows.sweep.output_size[1] // rows.band)
    cycles = bands * (rows.elements(lanes) / lanes * (c.turn + 1) + c.tile)
    for phase in rows.sweep.phases:
        cycles += phase[1].size * -(-phase[2].size // lanes) * (tap_count(phase) * c.shifted + 2 * c.turn)
    return planes * cycles


def depthwise_plans(sweep: Sweep, problem: Problem, target: Target) -> Iterator[tuple[DepthwisePlan | Pixels, float]]:
    """Channels first: planes of one channel. Channels last: pixels."""
    c, lanes = CONSTANTS, target.lanes(problem.type)
    if not _alone(sweep, problem):
        return
    if problem.layout == "NXC":
        found = _pixels(sweep, problem, target)
        if found:
            yield found
        return
    if max(sweep.spread[2], sweep.step[2]) > 4:
        return
    planes = problem.images * problem.groups
    rows = depthwise_kernels.rows_of(sweep, lanes, c.strip_bytes // problem.bytes)
    share = max(1, min(-(-planes // (c.pieces * 4)), c.stage_bytes // (rows.elements(lanes) * problem.bytes)))
    plan = DepthwisePlan(rows, problem.images, problem.groups, share, problem.type)
    weaving = planes * math.prod(sweep.output_size) * (c.kept if sweep.spread[2] > 1 else 0.0)
    yield plan, _rows_cycles(rows, planes, lanes) + weaving


def depthwise_weight_plans(
    geometry: Geometry, problem: Problem, biased: bool, target: Target
) -> Iterator[tuple[DepthwiseWeightPlan | Pixels, float]]:
    """Weights of one channel each."""
    c, lanes = CONSTANTS, target.lanes(problem.type)
    sweep = sweeps.forward(geometry)
    if not _alone(sweep, problem):
        return
    if problem.layout == "NXC":
        found = _pixels(sweep, problem, target, 1)
        if found:
            yield replace(found[0], biased=biased), found[1]
        return
    if sweep.step[2] > 4:
        return
    rows = depthwise_kernels.rows_of(sweep, lanes, c.strip_bytes // problem.bytes)
    channels = -(-problem.groups // (c.pieces * 8))
    plan = DepthwiseWeightPlan(rows, problem.images, problem.groups, channels, biased, problem.type)
    yield plan, _rows_cycles(rows, problem.images * problem.groups, lanes)


# ---- the table ------------------------------------------------------------------------------------------------------

SWEEPS: dict[str, Callable[[Sweep, Problem, Target], Iterator[tuple[Any, float]]]] = {
    "channels": channel_plans,
    "planes": plane_plans,
    "depthwise": depthwise_plans,
}
WEIGHTS: dict[str, Callable[[Geometry, Problem, bool, Target], Iterator[tuple[Any, float]]]] = {
    "strips": strip_plans,
    "depthwise": depthwise_weight_plans,
}
ALGORITHMS = tuple(dict.fromkeys((*SWEEPS, *WEIGHTS)))


def forced() -> str:
    """The algorithm that `BACKSTROKE_CONV_ALGORITHM` names; it decides where it can."""
    name = os.environ.get("BACKSTROKE_CONV_ALGORITHM", "").strip().lower()
    if name and name not in ALGORITHMS:
        raise ValueError(f"BACKSTROKE_CONV_ALGORITHM is {name!r}; expected one of {', '.join(ALGORITHMS)}")
    return name


def best(table: dict[str, Callable[..., Iterator[tuple[Any, float]]]], only: str, *problem: Any) -> Choice:
    """The cheapest plan of all algorithms, or of one where it has any."""
    cheapest: dict[str, Choice] = {}
    for name, offer in table.items():
        for plan, cycles in offer(*problem):
            if name not in cheapest or cycles < cheapest[name].cycles:
                cheapest[name] = Choice(name, plan, cycles)
    chosen = cheapest.get(only) or min(cheapest.values(), key=lambda choice: choice.cycles)
    others = tuple((name, each.cycles) for name, each in cheapest.items() if each is not chosen)
    return replace(chosen, others=others)
