"""A sweep with vectors over output channels: forward passes and input gradients in either layout.

The register tile is some pixels (a few scalars of input, each spread) by some vectors of output channels (packed
weights); it runs over all input channels and taps before it leaves the registers. A piece is a box of output positions
of one group: its input is staged once, with its padding, in scratch memory that stays in the second cache, then some
or all blocks of output channels pass over it. A tile of a single row leaves out the taps whose rows are padding, one of
whole rows the columns as well; then nothing needs to be staged. Planes (NCX) are turned on their way out. Nothing is
shared between pieces but the packed weights, so the bits do not depend on the threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jit.types import Type, i64
from .sweep_plan import SweepPlan, counts_of_piece, first_input, place_of_piece
from .sweeps import Phase, Sweep, tap_count
from .tiles import (
    Totals,
    View,
    accumulate,
    apart,
    least,
    new_totals,
    some,
    stage_pixels,
    stage_planes,
    tensor_view,
    whole,
)

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value


Ranges = list[tuple["Value | int", "Value | int"]]


@dataclass(frozen=True)
class ChannelPlan(SweepPlan):
    """All that is constant in a sweep by channels."""

    sweep: Sweep
    layout: str
    images: int
    groups: int
    inputs: int  # channels of one group
    outputs: int
    box: tuple[int, int, int, int]  # images and output positions of a piece
    tile: tuple[int, int, int]  # images, rows and columns of the register tile
    vectors: int
    span: int  # output channels of a piece, whole blocks
    depth: int  # input channels (or pairs of them) that are summed up before the next tile is taken
    chunk: int  # input channels that are staged at a time
    staged: bool
    exact: bool  # whether columns of the tile that a tap sees in the padding are left out
    type: Type
    paired: bool = False

    @property
    def staged_view(self) -> View:
        """How the staged input lies: a plane takes an odd number of cache lines, so that planes do not collide.

        So does a pixel of channels last.
        """
        z, y, x = self.staged_size
        if self.layout == "NXC":
            pixel = apart(self.chunk)
            return View(z * y * x * pixel, 1, (y * x * pixel, x * pixel, pixel))
        plane = apart(z * y * x)
        return View(plane * self.chunk, plane, (y * x, x, 1))

    def block(self, lanes: int) -> int:
        return self.vectors * lanes

    def scratch(self, lanes: int) -> tuple[int, int]:
        """Elements of scratch memory: for the staged input, and for the sums of a box."""
        staged = self.box[0] * self.staged_view.image + 64 if self.staged else 0
        images, z, y, x = self.box
        blocks = -(-self.span // self.block(lanes)) if self.chunk < self.steps else 1
        return staged, images * z * y * x * self.block(lanes) * blocks


def sweep_channels(
    k: Trace, piece: Value, source: Pointer, packed: Pointer, bias: Pointer, target: Pointer, flags: Pointer,
    slots: Value, memory: Pointer, *, plan: ChannelPlan, biased: bool,
) -> None:  # fmt: skip
    """One box."""
    sweep, sums = plan.sweep, plan.type.compute
    lanes = k.target.lanes(sums)
    block, blocks = plan.block(lanes), plan.blocks(lanes)
    span, group, image, corner = place_of_piece(k, plan, piece)
    input_view = tensor_view(plan.inputs * plan.groups, sweep.input_size, plan.layout)
    output_view = tensor_view(plan.outputs * plan.groups, sweep.output_size, plan.layout)
    begin = first_input(sweep, corner)
    origin = source.at(image * input_view.image).at(group * (plan.inputs * input_view.channel))
    present, *counts = counts_of_piece(k, plan, image, corner)
    per_span = plan.span // block
    first = span * per_span
    some_blocks = per_span if blocks % per_span == 0 else least(k, per_span, blocks - first)
    goal = target.at(image * output_view.image).at(group * (plan.outputs * output_view.channel))
    weights = plan.seen(packed.at((group * blocks + first) * plan.packed_block(lanes)))
    biases = bias.at(group * plan.outputs) if biased else None
    staged_size, sums_size = plan.scratch(lanes)

    with k.borrowed(flags, slots, memory, staged_size + sums_size) as scratch:
        totals = scratch.at(staged_size)
        walk = _Walk(k, plan, lanes, corner, present, counts)
        if plan.chunk >= plan.steps:
            view, place = input_view, origin.at(sum(b * s for b, s in zip(begin, input_view.place, strict=True)))
            if plan.staged:
                view, place = plan.staged_view, plan.seen(scratch)
                _stage(k, origin, input_view, plan, present, plan.steps, begin, place)
            for number in k.range(some_blocks):
                walk.multiply(place, view, weights.at(number * plan.packed_block(lanes)), totals, 0, plan.steps)
                walk.deliver(totals, goal, output_view, (first + number) * block, biases)
            return
        everything = plan.box[0] * plan.box[1] * plan.box[2] * plan.box[3] * block
        for at in k.vectors(some_blocks * everything, lanes=lanes):
            totals[at] = k.value(0.0, sums, lanes)
        staged = plan.seen(scratch)
        for start in k.range(0, plan.steps, plan.chunk):
            channels = least(k, plan.chunk, plan.steps - start)
            source = origin.at(start * (input_view.channel * plan.unit))
            _stage(k, source, input_view, plan, present, channels, begin, staged)
            for number in k.range(some_blocks):
                place = weights.at(number * plan.packed_block(lanes))
                walk.multiply(
                    staged, plan.staged_view, place, totals.at(number * everything), start, channels, more=True
                )
        for number in k.range(some_blocks):
            walk.deliver(totals.at(number * everything), goal, output_view, (first + number) * block, biases)


def _stage(
    k: Trace, origin: Pointer, view: View, plan: ChannelPlan, images: Value | int, channels: Value | int,
    begin: list[Value | int], scratch: Pointer,
) -> None:  # fmt: skip
    if plan.layout == "NXC" and plan.paired:  # neighbours in memory are pairs already
        a, b, c = view.place
        origin, view = origin.viewed(scratch.type), View(view.image // 2, 1, (a // 2, b // 2, c // 2))
    arguments = (k, origin, view, plan.sweep.input_size, images, channels, begin, plan.staged_size, scratch)
    if plan.layout == "NCX":
        stage_planes(*arguments, plan.staged_view)
    else:
        stage_pixels(*arguments, plan.staged_view, plan.chunk)


class _Walk:
    """The tiles of one box."""

    def __init__(
        self, k: Trace, plan: ChannelPlan, lanes: int, corner: list[Value | int], images: Value | int,
        counts: list[Value | int],
    ) -> None:  # fmt: skip
        self.k, self.plan, self.lanes, self.images = k, plan, lanes, images
        self.block = plan.block(lanes)
        self.counts = counts  # the positions of the box that exist
        self.corner = corner

    def multiply(
        self, source: Pointer, view: View, weights: Pointer, totals: Pointer, first: Value | int, count: Value | int,
        more: bool = False,
    ) -> None:  # fmt: skip
        """Add the products of `count` input channels, from `first` on, to the sums of all tiles (`more`), or begin."""
        k, plan = self.k, self.plan
        if not more and isinstance(count, int) and plan.depth >= count:
            self._slice(source, view, weights, totals, first, 0, count, False)
            return
        if not more:
            images, z, y, x = plan.box
            for at in k.vectors(images * z * y * x * self.block, lanes=self.lanes):
                totals[at] = k.value(0.0, totals.type, self.lanes)
        for start in k.range(0, count, plan.depth):
            depth = least(k, plan.depth, count - start)
            self._slice(source, view, weights, totals, first + start, start, depth, True)

    def _slice(
        self, source: Pointer, view: View, weights: Pointer, totals: Pointer, weight: Value | int, start: Value | int,
        depth: Value | int, more: bool,
    ) -> None:  # fmt: skip
        """All tiles, over `depth` input channels: from `start` on in the source, from `weight` on in the weights."""
        plan = self.plan
        source = source.at(start * view.channel)
        lows = [low for low, _ in plan.sweep.reach]
        origins = plan.tap_origins(self.lanes)
        for number, phase in enumerate(plan.sweep.phases):
            taps = [(origin, step) for n, _, origin, step in origins if n == number]
            place = weights.at(taps[0][0]).at(weight * taps[0][1]) if taps else weights
            shifted = source
            if taps:
                shifted = source.at(view.at([a.offsets[0] - low for a, low in zip(phase, lows, strict=True)]))
            self._phase(shifted, view, place, totals, phase, depth, more)

    def _phase(
        self, source: Pointer, view: View, weights: Pointer, totals: Pointer, phase: Phase, depth: Value | int,
        more: bool,
    ) -> None:  # fmt: skip
        k, plan = self.k, self.plan
        n_tile, y_tile, x_tile = plan.tile
        x_box = plan.box[3]
        steps = [axis.step * s for axis, s in zip(phase, view.place, strict=True)]
        columns = max(0, -(-(x_box - phase[2].first) // phase[2].spread))
        rows = [
            max(0, -(-(count - axis.first) // axis.spread)) if isinstance(count, int) else
            k.most(count - axis.first + (axis.spread - 1), 0) // axis.spread
            for count, axis in zip(self.counts[:2], phase[:2], strict=True)
        ]  # fmt: skip
        if columns == 0:
            return
        parts = self._columns(columns, x_tile)
        spots = self._spots(phase)
        for n in self._tiles(self.images, n_tile):
            for z in k.range(rows[0]):
                for y in self._tiles(rows[1], y_tile):
                    line = source.at(n * view.image + z * steps[0] + y * steps[1])
                    out = totals.at(
                        n * spots[0] + (z * phase[0].spread + phase[0].first) * spots[1]
                        + (y * phase[1].spread + phase[1].first) * spots[2] + phase[2].first * spots[3]
                    )  # fmt: skip
                    taps = self._seen(phase, z, y)
                    for start, stop, width in parts:
                        for x in k.range(start, stop, width):
                            tile = list(itertools.product(range(n_tile), range(y_tile), range(width)))
                            reads = [a * view.image + b * steps[1] + c * steps[2] for a, b, c in tile]
                            writes = [
                                a * spots[0] + b * phase[1].spread * spots[2] + c * phase[2].spread * spots[3]
                                for a, b, c in tile
                            ]
                            goal = out.at(x * (phase[2].spread * spots[3]))
                            self._tile(
                                line.at(x * steps[2]), view, weights, goal, phase, taps, reads, writes, depth, more
                            )

    def _seen(self, phase: Phase, z: Value, y: Value) -> Ranges:
        """From where to where the offsets of planes and rows meet the input, for a tile that begins at this output."""
        k = self.k
        ranges: Ranges = []
        for number, axis, place in ((0, phase[0], z), (1, phase[1], y)):
            count, extent = len(axis.offsets), self.plan.sweep.input_size[number]
            everywhere = axis.size == 0 or axis.seen(0, extent) == axis.seen(axis.size - 1, extent) == range(count)
            if everywhere or count == 0 or (number == 1 and self.plan.tile[1] > 1):
                ranges.append((0, count))
            else:
                here = (place + k.value(self.corner[number], i64) // axis.spread) * axis.step + axis.offsets[0]
                pitch = max(1, axis.pitch)
                low, high = k.most(pitch - 1 - here, 0) // pitch, k.most(extent + pitch - 1 - here, 0) // pitch
                ranges.append((low, k.least(high, count)))
        return ranges

    def _columns(self, columns: int, tile: int) -> list[tuple[int, int, int]]:
        """(start, stop, width) of runs of equally wide tiles: all alike, but for a narrower last one."""
        count = -(-columns // tile)
        width = -(-columns // count)
        even = columns // width * width
        parts = [(0, even, width)]
        if columns > even:
            parts.append((even, columns, columns - even))
        return parts

    def _tiles(self, count: Value | int, tile: int):  # type: ignore[no-untyped-def]
        return self.k.range(0, count, tile)

    def _spots(self, phase: Phase) -> tuple[int, int, int, int]:
        """How far images, planes, rows and columns are apart in the sums."""
        _, z, y, x = self.plan.box
        return z * y * x * self.block, y * x * self.block, x * self.block, self.block

    def _tile(
        self, source: Pointer, view: View, weights: Pointer, out: Pointer, phase: Phase, taps: Ranges,
        reads: list[int], writes: list[int], depth: Value | int, more: bool,
    ) -> None:  # fmt: skip
        """One register tile, from zero or from the sums so far, over `depth` channels and all taps."""
        k, plan, lanes = self.k, self.plan, self.lanes
        totals = new_totals(k, len(reads), plan.vectors, out.type)
        if more:
            for row, place in zip(totals, writes, strict=True):
                for j, total in enumerate(row):
                    total.set(out[whole(place + j * lanes, lanes)])
        if tap_count(phase):
            if plan.layout == "NXC":
                self._taps_then_channels(totals, source, view, weights, phase, taps, reads, depth)
            else:
                self._channels_then_taps(totals, source, view, weights, phase, taps, reads, depth)
        for row, place in zip(totals, writes, strict=True):
            for j, total in enumerate(row):
                out[whole(place + j * lanes, lanes)] = total.read()

    def _channels_then_taps(
        self, totals: Totals, source: Pointer, view: View, weights: Pointer, phase: Phase, taps: Ranges,
        reads: list[int], depth: Value | int,
    ) -> None:  # fmt: skip
        k, count = self.k, tap_count(phase)
        for channel in k.unrolled(0, depth, 4) if count == 1 else k.range(depth):
            here = source.at(channel * view.channel)
            block = weights.at(channel * (self.plan.sweep.taps * self.block))
            for place, tap, picks in self._all_taps(phase, view, taps, len(reads)):
                self._add(totals, here.at(place), reads, picks, block.at(tap * self.block))

    def _taps_then_channels(
        self, totals: Totals, source: Pointer, view: View, weights: Pointer, phase: Phase, taps: Ranges,
        reads: list[int], depth: Value | int,
    ) -> None:  # fmt: skip
        for place, tap, picks in self._all_taps(phase, view, taps, len(reads)):
            here, block = source.at(place), weights.at(tap * (self.plan.steps * self.block))
            for channel in self.k.unrolled(0, depth, 4):
                self._add(totals, here.at(channel), reads, picks, block.at(channel * self.block))

    def _add(self, totals: Totals, source: Pointer, reads: list[int], picks: list[int], weights: Pointer) -> None:
        """The products of one channel and tap with those pixels of the tile that it sees."""
        accumulate(self.k, [totals[i] for i in picks], source, [reads[i] for i in picks], weights)

    def _all_taps(
        self, phase: Phase, view: View, taps: Ranges, pixels: int
    ) -> Iterator[tuple[Value, Value, list[int]]]:
        """(distance of the input, number, pixels of the tile that see it) of all taps that are not padding.

        They are loops: unrolled, LLVM keeps what two taps read, and runs out of registers. Where the columns differ
        there is no loop over those, and LLVM is told that it knows nothing of where they lie.
        """
        k = self.k
        _, b, c = (len(axis.offsets) for axis in phase)
        pitches = [axis.pitch * s for axis, s in zip(phase, view.place, strict=True)]
        everything = list(range(pixels))
        for i in k.range(*taps[0]):
            for j in k.range(*taps[1]):
                first, number = i * pitches[0] + j * pitches[1], (i * b + j) * c
                if not self.plan.exact:
                    for each in k.range(c):
                        yield first + each * pitches[2], number + each, everything
                    continue
                columns = phase[2].size
                for m in range(c):
                    seen = [m in phase[2].seen(q, self.plan.sweep.input_size[2]) for q in range(columns)]
                    if any(seen):
                        picks = [pixel for pixel in everything if seen[pixel % columns]]
                        yield k.opaque(first + m * pitches[2]), number + m, picks

    def deliver(self, totals: Pointer, target: Pointer, view: View, first: Value, bias: Pointer | None) -> None:
        """The sums of a box, rounded, to where they belong, with the bias added."""
        plan = self.plan
        target = target.at(view.channel * first).at(
            sum((c * s for c, s in zip(self.corner, view.place, strict=True)), start=0)
        )
        left = plan.outputs - first
        biases = bias.at(first) if bias is not None else None
        if plan.layout == "NXC":
            self._deliver_pixels(totals, target, view, left, biases)
        else:
            self._deliver_planes(totals, target, view, left, biases)

    def _deliver_pixels(self, totals: Pointer, target: Pointer, view: View, left: Value, bias: Pointer | None) -> None:
        k, plan, lanes = self.k, self.plan, self.lanes
        spots = self._spots(plan.sweep.phases[0])
        ragged = plan.outputs % self.block != 0
        spans = [some(k, j * lanes, left, lanes) if ragged else whole(j * lanes, lanes) for j in range(plan.vectors)]
        for n in k.range(self.images):
            for z in k.range(self.counts[0]):
                for y in k.range(self.counts[1]):
                    for x in k.range(self.counts[2]):
                        source = totals.at(n * spots[0] + z * spots[1] + y * spots[2] + x * spots[3])
                        pixel = target.at(n * view.image + view.of(z, y, x))
                        for j, span in enumerate(spans):
                            value = source[whole(j * lanes, lanes)]
                            if bias is not None:
                                value = value + bias[span]
                            pixel[span] = k.to(plan.type.compute, value)

    def _deliver_planes(self, totals: Pointer, target: Pointer, view: View, left: Value, bias: Pointer | None) -> None:
        """Blocks of pixels by channels are turned; whole rows that follow one another are one long row."""
        k, plan, lanes = self.k, self.plan, self.lanes
        spots = self._spots(plan.sweep.phases[0])
        joined = plan.box[3] == plan.sweep.output_size[2]
        lines, length = (1, self.counts[1] * self.counts[2]) if joined else (self.counts[1], self.counts[2])
        length, ragged = k.value(length, i64), plan.outputs % self.block != 0
        for n in k.range(self.images):
            for z in k.range(self.counts[0]):
                for y in k.range(lines):
                    source = totals.at(n * spots[0] + z * spots[1] + y * spots[2])
                    goal = target.at(n * view.image + view.of(z, y, 0))
                    for at in k.vectors(length, lanes=lanes):
                        for j in range(plan.vectors):
                            rows = []
                            for i in range(lanes):
                                pixel = at.start + i
                                if at.mask is not None:
                                    pixel = k.least(pixel, length - 1)
                                rows.append(source[whole(pixel * self.block + j * lanes, lanes)])
                            for i, line in enumerate(k.turned(rows)):
                                channel = j * lanes + i
                                with k.when(left > channel) if ragged else nullcontext():
                                    value = line if bias is None else line + k.spread(bias[channel], lanes)
                                    goal.at(channel * view.channel)[at] = value
