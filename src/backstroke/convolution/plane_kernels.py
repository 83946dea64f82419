"""A sweep with vectors over positions: channels first, and inputs that are read one position apart.

The vector is `lanes` neighbours in the flat, padded plane of an input channel; a tap is a shift of it, and what falls
between two rows is computed and dropped. The register tile is some output channels (packed weights, each spread) by
some vectors; it runs over a slice of the input channels and all taps, then the next output channels meet the same
input, which is still in the first cache. A piece is a box of output positions for some of the output channels of a
group: nothing is shared between pieces but the packed weights, so the bits do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jit.types import Type, i64
from .sweep_plan import SweepPlan, counts_of_piece, first_input, place_of_piece
from .sweeps import Axis, Phase, Sweep, tap_count
from .tiles import View, accumulate, apart, least, some, stage_planes, tensor_view, whole

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value


@dataclass(frozen=True)
class PlanePlan(SweepPlan):
    """All that is constant in a sweep by planes."""

    sweep: Sweep
    layout: str
    images: int
    groups: int
    inputs: int  # channels of one group
    outputs: int
    box: tuple[int, int, int, int]  # images and output positions of a piece
    rows: int  # output channels of the register tile
    vectors: int
    span: int  # output channels of a piece
    depth: int  # input channels (or pairs of them) that are staged and summed up at a time
    joined: bool  # whether the images of a box are one flat row
    direct: bool  # whether sums are kept where the result belongs
    type: Type
    paired: bool = False

    def block(self, lanes: int) -> int:
        return lanes

    @property
    def slice_depth(self) -> int:
        return self.depth

    @property
    def staged_view(self) -> View:
        """How a staged slice lies: channels, images, planes; a channel takes an odd number of cache lines."""
        z, y, x = self.staged_size
        channel = apart(self.box[0] * z * y * x)
        return View(z * y * x, channel, (y * x, x, 1))

    def flat(self, phase: Phase) -> int:
        """The flat positions of a phase of which one loop takes care: a plane's, or where joined all images'."""
        _, height, width = self.staged_size
        rows, columns = (_count(size, phase[axis + 1]) for axis, size in enumerate(self.box[2:]))
        images = (self.box[0] - 1) * height * width if self.joined else 0
        return max(0, images + (rows - 1) * width + columns) if rows and columns else 0

    def slot(self, phase: Phase, lanes: int) -> int:
        """Elements that the sums of those take."""
        return -(-self.flat(phase) // lanes) * lanes

    def loops(self, phase: Phase) -> tuple[int, int]:
        """How many such loops there are for a channel: over images, and over planes."""
        return 1 if self.joined else self.box[0], _count(self.box[1], phase[0])

    def sums(self, lanes: int) -> tuple[int, list[int]]:
        """Elements of the sums of one channel, and where those of each phase begin."""
        origins, end = [], 0
        for phase in self.sweep.phases:
            images, planes = self.loops(phase)
            origins.append(end)
            end += images * planes * self.slot(phase, lanes) if tap_count(phase) else 0
        return end, origins

    def scratch(self, lanes: int) -> tuple[int, int]:
        """Elements of scratch memory: for the staged input, and for the sums."""
        staged = min(self.depth, self.steps) * self.staged_view.channel + (self.vectors + 1) * lanes
        return staged, 0 if self.direct else min(self.span, self.outputs) * self.sums(lanes)[0] + lanes


def _count(size: int, axis: Axis) -> int:
    """How many outputs of a phase lie among the first `size` of all."""
    return max(0, -(-(size - axis.first) // axis.spread))


def sweep_planes(
    k: Trace, piece: Value, source: Pointer, packed: Pointer, bias: Pointer, target: Pointer, flags: Pointer,
    slots: Value, memory: Pointer, *, plan: PlanePlan, biased: bool,
) -> None:  # fmt: skip
    """One box, for one span of output channels."""
    sweep, lanes = plan.sweep, k.target.lanes(plan.type.compute)
    span, group, image, corner = place_of_piece(k, plan, piece)
    present, *counts = counts_of_piece(k, plan, image, corner)
    input_view = tensor_view(plan.inputs * plan.groups, sweep.input_size, plan.layout)
    output_view = tensor_view(plan.outputs * plan.groups, sweep.output_size, plan.layout)
    first = span * plan.span
    origin = source.at(image * input_view.image).at(group * (plan.inputs * input_view.channel))
    goal = target.at(image * output_view.image).at((group * plan.outputs + first) * output_view.channel)
    goal = goal.at(output_view.of(*corner))
    each = sweep.taps * lanes  # packed weights of one input channel and one block of output channels
    weights = plan.seen(packed.at(group * (plan.steps * plan.blocks(lanes) * each)))
    biases = bias.at(group * plan.outputs + first) if biased else None
    begin = first_input(sweep, corner)
    staged_size, sums_size = plan.scratch(lanes)
    with k.borrowed(flags, slots, memory, staged_size + sums_size) as staged:
        sums = goal if plan.direct else staged.at(staged_size)
        walk = _Walk(k, plan, lanes, first, corner[2], sums, output_view, biases)
        room = plan.seen(staged)
        for start in k.range(0, plan.steps, plan.depth):
            depth = least(k, plan.depth, plan.steps - start)
            source_slice = origin.at(start * (input_view.channel * plan.unit))
            stage_planes(
                k, source_slice, input_view, sweep.input_size, present, depth, begin, plan.staged_size, room,
                plan.staged_view,
            )  # fmt: skip
            block = depth * each
            here = weights.at(start * (plan.blocks(lanes) * each)).at(span * (plan.span // lanes) * block)
            walk.multiply(room, here, block, start, depth)
        if not plan.direct:
            channels = k.least(plan.span, plan.outputs - first)
            _deliver(k, plan, sums, goal, output_view, channels, present, counts, biases)


class _Walk:
    """The register tiles of a piece."""

    def __init__(
        self, k: Trace, plan: PlanePlan, lanes: int, first: Value, column: Value | int, sums: Pointer, view: View,
        biases: Pointer | None,
    ) -> None:  # fmt: skip
        self.k, self.plan, self.lanes, self.first, self.column = k, plan, lanes, first, column
        self.sums, self.biases = sums, biases
        self.channel = view.channel if plan.direct else plan.sums(lanes)[0]

    def multiply(
        self, staged: Pointer, weights: Pointer, block: Value | int, start: Value, depth: Value | int
    ) -> None:  # fmt: skip
        """Add the products of `depth` staged input channels, those from `start` on; a block's weights take `block`."""
        k, plan, view = self.k, self.plan, self.plan.staged_view
        lows = [low for low, _ in plan.sweep.reach]
        origins = plan.tap_origins(self.lanes)
        places = plan.sums(self.lanes)[1]
        for number, phase in enumerate(plan.sweep.phases):
            taps = [origin for n, _, origin, _ in origins if n == number]
            if not taps or not plan.flat(phase):
                continue
            source = staged.at(view.at([axis.offsets[0] - low for axis, low in zip(phase, lows, strict=True)]))
            first = weights.at(taps[0])
            images, planes = plan.loops(phase)
            for n in k.range(images):
                for z in k.range(planes):
                    slot = 0 if plan.direct else (n * planes + z) * plan.slot(phase, self.lanes) + places[number]
                    here = source.at(n * view.image + z * (phase[0].step * view.place[0]))
                    for at, vectors, tail in self._flat_tiles(phase):
                        tile = (here.at(at), first, block, self.sums.at(slot + at), phase, vectors, tail, start, depth)
                        self._all_channels(*tile)

    def _flat_tiles(self, phase: Phase) -> Iterator[tuple[Value, int, int]]:
        """(start, vectors, elements of the last vector, 0 for all) of the tiles along the flat plane."""
        k, plan, lanes = self.k, self.plan, self.lanes
        width = plan.vectors * lanes
        if not plan.direct:
            flat = plan.slot(phase, lanes)
            for at in k.range(0, flat // width * width, width):
                yield at, plan.vectors, 0
            if flat % width:
                yield k.value(flat // width * width, i64), flat % width // lanes, 0
            return
        # Boxes are whole tiles there; what is left of the row belongs to the last one.
        size, box = plan.sweep.output_size[2], plan.box[3]
        even = size // width * width
        for at in k.range(0, box if size % box == 0 else least(k, box, even - self.column), width):
            yield at, plan.vectors, 0
        if size > even:
            with k.when(k.value(self.column, i64) + box >= size):
                yield k.value(even, i64) - self.column, -(-(size - even) // lanes), (size - even) % lanes

    def _all_channels(
        self, source: Pointer, weights: Pointer, block: Value | int, sums: Pointer, phase: Phase, vectors: int,
        tail: int, start: Value, depth: Value | int,
    ) -> None:  # fmt: skip
        """The tiles of all output channels of the piece over the same input."""
        k, plan, lanes = self.k, self.plan, self.lanes
        blocks, rest = divmod(plan.outputs, lanes)
        per_span = plan.span // lanes

        def tiles(number: Value | int, count: int) -> None:
            for row in range(0, count, plan.rows):
                place = number * lanes + row
                self._tile(
                    source, weights.at(number * block), sums.at(place * self.channel), place, phase,
                    range(row, min(count, row + plan.rows)), vectors, tail, start, depth,
                )  # fmt: skip

        if blocks:
            known = plan.spans == 1 or plan.outputs % plan.span == 0
            here = min(blocks, per_span) if known else least(k, per_span, blocks - self.first // lanes)
            for number in k.range(here):
                tiles(number, lanes)
        if rest:
            with k.when(self.first + plan.span >= plan.outputs):
                tiles(blocks - self.first // lanes, rest)

    def _tile(
        self, source: Pointer, weights: Pointer, out: Pointer, channel: Value | int, phase: Phase, rows: range,
        vectors: int, tail: int, start: Value, depth: Value | int,
    ) -> None:  # fmt: skip
        k, plan, lanes = self.k, self.plan, self.lanes
        kind = plan.type.compute
        spans = [whole(j * lanes, lanes) for j in range(vectors)]
        if tail:
            spans[-1] = some(k, (vectors - 1) * lanes, (vectors - 1) * lanes + tail, lanes)
        places = [out.at(i * self.channel) for i in range(len(rows))]
        totals = []
        single = plan.depth >= plan.steps
        for i, place in enumerate(places):
            fresh = k.value(0.0, kind) if self.biases is None else k.to(kind, self.biases[channel + i])
            begin = k.spread(fresh, lanes)
            if single:
                totals.append([k.var(begin) for _ in spans])
            else:
                totals.append([k.var(k.where(start == 0, begin, place[at])) for at in spans])
            if plan.direct:
                for at in spans:
                    k.prefetch(place.at(at.start), write=True)
        view, count = plan.staged_view, tap_count(phase)
        pitches = [axis.pitch * s for axis, s in zip(phase, view.place, strict=True)]
        a, b, c = (len(axis.offsets) for axis in phase)
        picks = list(rows)
        for step in k.unrolled(0, depth, 4) if count == 1 else k.range(depth):
            here, block = source.at(step * view.channel), weights.at(step * (plan.sweep.taps * lanes))
            for u in k.range(a):
                for v in k.range(b):
                    for m in k.range(c):
                        shift = u * pitches[0] + v * pitches[1] + m * pitches[2]
                        accumulate(k, totals, block.at(((u * b + v) * c + m) * lanes), picks, here.at(shift))
        for place, row in zip(places, totals, strict=True):
            for total, at in zip(row, spans, strict=True):
                place[at] = total.read()


# ---- sums to where they belong --------------------------------------------------------------------------------------


def _deliver(
    k: Trace, plan: PlanePlan, sums: Pointer, target: Pointer, view: View, channels: Value, images: Value | int,
    counts: list[Value | int], biases: Pointer | None,
) -> None:  # fmt: skip
    """Row by row, rounded; rows of several phases are woven."""
    lanes, sweep = k.target.lanes(sums.type), plan.sweep
    size, origins = plan.sums(lanes)
    _, height, width = plan.staged_size
    spread = sweep.spread
    along_x = min(spread[2], sweep.output_size[2])
    for channel in k.range(channels):
        mine, goal = sums.at(channel * size), target.at(channel * view.channel)
        for number in range(0, len(sweep.phases), along_x):
            group = list(range(number, number + along_x))
            z_axis, y_axis, _ = sweep.phases[number]
            for n in k.range(images):
                for z in k.range(some_count(k, counts[0], z_axis)):
                    for y in k.range(some_count(k, counts[1], y_axis)):
                        rows: list[Pointer | None] = []
                        for each in group:
                            phase = sweep.phases[each]
                            slot, planes = plan.slot(phase, lanes), plan.loops(phase)[1]
                            place = n * (height * width) if plan.joined else (n * planes + z) * slot
                            rows.append(mine.at(origins[each] + place + y * width) if tap_count(phase) else None)
                        where = view.of(z * spread[0] + z_axis.first, y * spread[1] + y_axis.first, 0)
                        empty = k.value(0.0, sums.type) if biases is None else k.to(sums.type, biases[channel])
                        nothing = k.spread(empty, lanes)
                        weave(k, plan.type, rows, goal.at(n * view.image).at(where), counts[2], nothing)


def some_count(k: Trace, size: Value | int, axis: Axis) -> Value | int:
    """How many outputs of a phase lie among the first `size` of all."""
    if isinstance(size, int):
        return _count(size, axis)
    return k.most(size - axis.first + (axis.spread - 1), 0) // axis.spread


def weave(k: Trace, type: Type, rows: list[Pointer | None], goal: Pointer, count: Value | int, nothing: Value) -> None:
    """One row of a result of that type: elements of the rows in turn, `nothing` where there is no row."""
    kind, lanes, phases = type.compute, nothing.lanes, len(rows)
    if phases == 1 and rows[0] is not None:
        for at in k.vectors(count, lanes=lanes):
            goal[at] = k.to(kind, rows[0][at])
        return
    step = phases * lanes
    for start in k.range(0, count, step):
        vectors = [nothing if row is None else row[whole(start // phases, lanes)] for row in rows]
        for part in range(phases):
            # Lane i of this part is element part * lanes + i of the woven block.
            picks = [divmod(part * lanes + i, phases)[::-1] for i in range(lanes)]  # (phase, lane)
            woven = vectors[0]
            for phase in range(1, phases):
                order = []
                for i, (owner, lane) in enumerate(picks):
                    mine = lane if phase == 1 and owner == 0 else i
                    order.append(lanes + lane if owner == phase else mine)
                woven = k.shuffle(woven, vectors[phase], order)
            if phases == 1:
                woven = nothing
            at = some(k, start + part * lanes, k.value(count, i64), lanes)
            goal[at] = k.to(kind, woven)
