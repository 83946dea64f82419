"""The weights' gradient (and the bias'): sums over pixels, with vectors over output channels.

The register tile is some pairs of input channel and tap (scalars of x at shifted places, each spread) by some vectors
of output channels of dy; it runs over the pixels of a box before it is added to the sums in memory, so long sums are
made of short ones. dy is turned to channels innermost, a box at a time, in scratch memory; taps that would read padding
are left out, or where the tile takes all taps x is padded there as well. A piece is some blocks of output channels, a
block of input channels and a range of boxes; no two pieces add to the same sums, and how many there are depends on the
problem, so the bits do not depend on the threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..geometry import Geometry
from ..jit.convert import halves
from ..jit.types import Type, i16, i32, i64
from .tiles import (
    View,
    accumulate,
    apart,
    least,
    new_totals,
    stage_pixels,
    stage_planes,
    stage_turned,
    tensor_view,
    whole,
)  # fmt: skip

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value


def sparse(geometry: Geometry) -> tuple[bool, bool]:
    """Whether rows and columns are read by single taps some elements apart: a few, so that shuffles find them."""
    y, x = (k == 1 < s <= 4 for k, s in zip(geometry.kernel[1:], geometry.strides[1:], strict=True))
    return y, x


@dataclass(frozen=True)
class WeightPlan:
    """All that is constant in a gradient of weights."""

    geometry: Geometry  # of three axes
    layout: str
    images: int
    groups: int
    inputs: int  # channels of one group; 0 where only the bias' gradient is wanted
    outputs: int
    vectors: int
    rows: int  # input channels of the register tile
    joined: bool  # whether the tile takes all taps, or those along the last axis alone
    box: tuple[int, int, int]  # images, rows and columns of outputs that are staged at a time
    depth: int  # input channels of a piece
    span: int  # blocks of output channels of a piece: x is staged once for them
    chunks: int
    exact: bool  # whether taps that read padding are left out
    staged_x: bool
    staged_dy: bool
    biased: bool
    type: Type
    paired: bool = False  # whether two pixels of a row of bfloat16 are multiplied at once

    @property
    def unit(self) -> int:
        """Pixels of a row that are multiplied at once."""
        return 2 if self.paired else 1

    @property
    def compact(self) -> tuple[bool, bool]:
        """On which of rows and columns the staged x has only what is read."""
        y, x = sparse(self.geometry)
        return (y, x) if self.staged_x and self.layout == "NCX" else (False, False)

    @property
    def x_steps(self) -> tuple[int, int]:
        """How far what neighbouring outputs read is apart, in rows and in columns."""
        pairs = zip(self.compact, self.geometry.strides[1:], strict=True)
        y, x = (1 if compact else stride for compact, stride in pairs)
        return y, x

    @property
    def taps(self) -> int:
        a, b, c = self.geometry.kernel
        return a * b * c

    @property
    def boxes(self) -> tuple[int, int, int, int]:
        """How many boxes there are, over images, planes, rows and columns."""
        z, y, x = self.geometry.output_size
        return -(-self.images // self.box[0]), z, -(-y // self.box[1]), -(-x // self.box[2])

    @property
    def box_count(self) -> int:
        a, b, c, d = self.boxes
        return a * b * c * d

    @property
    def input_blocks(self) -> int:
        return max(1, -(-self.inputs // self.depth))

    def block(self, lanes: int) -> int:
        return self.vectors * lanes

    def output_blocks(self, lanes: int) -> int:
        return -(-self.outputs // self.block(lanes))

    def output_spans(self, lanes: int) -> int:
        """How many pieces share the output channels of a group."""
        return -(-self.output_blocks(lanes) // self.span)

    def sums(self, lanes: int) -> int:
        """Elements that the sums of one block of output channels take; the bias' come last."""
        return (self.inputs * self.taps + 1) * self.block(lanes)

    def pieces(self, lanes: int) -> int:
        return self.groups * self.output_spans(lanes) * self.input_blocks * self.chunks

    @property
    def x_size(self) -> tuple[int, int, int]:
        """The input positions that a box reads."""
        g, (_, y, x), steps = self.geometry, self.box, self.x_steps
        x = -(-x // self.unit) * self.unit
        return g.extents[0], (y - 1) * steps[0] + g.extents[1], (x - 1) * steps[1] + g.extents[2]

    @property
    def x_view(self) -> View:
        z, y, x = self.x_size
        if self.layout == "NXC":
            pixel = apart(self.depth)
            return View(z * y * x * pixel, 1, (y * x * pixel, x * pixel, pixel))
        plane = apart(z * y * x)
        return View(plane * self.depth, plane, (y * x, x, 1))

    @property
    def flat(self) -> bool:
        """Whether the rows of a box of dy follow one another, and are one."""
        return self.box[2] == self.geometry.output_size[2] and not self.paired

    def dy_view(self, lanes: int) -> View:
        block, (_, y, x) = self.block(lanes), self.box
        x = -(-x // self.unit)
        return View(y * x * block, 1, (y * x * block, x * block, block))

    def scratch(self, lanes: int) -> tuple[int, int]:
        """Elements of scratch memory: for dy, and for x."""
        images, y, x = self.box
        dy = images * y * -(-x // self.unit) * self.block(lanes) if self.staged_dy else 0
        return dy, self.box[0] * self.x_view.image + 64 if self.staged_x else 0


def weight_gradient(
    k: Trace, piece: Value, dy: Pointer, x: Pointer, partial: Pointer, flags: Pointer, slots: Value, memory: Pointer,
    *, plan: WeightPlan,
) -> None:  # fmt: skip
    """One piece: its sums in `partial[chunk][group][block of outputs]`."""
    g = plan.geometry
    lanes = k.target.lanes(partial.type)
    block, taps = plan.block(lanes), plan.taps
    dy_channels, x_channels = plan.outputs * plan.groups, max(plan.inputs, 1) * plan.groups
    dy_whole, x_whole = (
        tensor_view(n, size, plan.layout) for n, size in ((dy_channels, g.output_size), (x_channels, g.input_size))
    )
    rest, parts = piece, []
    for count in (plan.input_blocks, plan.output_spans(lanes), plan.groups):
        parts.append(rest % count)
        rest = rest // count
    (number, span, group), chunk = parts, rest
    first = number * plan.depth
    depth = least(k, plan.depth, plan.inputs - first) if plan.inputs else 0
    first_block, blocks = span * plan.span, plan.output_blocks(lanes)
    present = plan.span if blocks % plan.span == 0 else least(k, plan.span, blocks - first_block)
    goal = partial.at(((chunk * plan.groups + group) * blocks + first_block) * plan.sums(lanes))
    mine, bias = goal.at(first * (taps * block)), goal.at(plan.inputs * taps * block)
    for b in k.range(present):
        here = mine.at(b * plan.sums(lanes))
        for at in k.vectors(depth * (taps * block), lanes=lanes):
            here[at] = k.value(0.0, partial.type, lanes)
        if plan.biased:
            with k.when(number == 0):
                for j in range(plan.vectors):
                    bias.at(b * plan.sums(lanes))[whole(j * lanes, lanes)] = k.value(0.0, partial.type, lanes)

    dy_group = dy.at((group * plan.outputs + first_block * block) * dy_whole.channel)
    x_group = x.at((group * plan.inputs + first) * x_whole.channel)
    dy_room, x_room = plan.scratch(lanes)
    each = -(-plan.box_count // plan.chunks)
    with k.borrowed(flags, slots, memory, dy_room + x_room + 16) as scratch:
        for box in k.range(chunk * each, k.least(chunk * each + each, plan.box_count)):
            _, planes, lines, widths = plan.boxes
            image = box // (planes * lines * widths) * plan.box[0]
            row, column = box // widths % lines * plan.box[1], box % widths * plan.box[2]
            extents = (plan.images, *g.output_size[1:])
            images, rows, columns = (
                size if size <= most else least(k, most, size - start)
                for size, most, start in zip(extents, plan.box, (image, row, column), strict=True)
            )
            corner = [
                start if count > 1 else 0
                for start, count in zip((box // (lines * widths) % planes, row, column), plan.boxes[1:], strict=True)
            ]
            begin = [c * s - p[0] for c, s, p in zip(corner, g.strides, g.pads, strict=True)]
            inputs, x_view = x_group.at(image * x_whole.image), x_whole
            if plan.staged_x and plan.inputs:
                x_view, padded = plan.x_view, scratch.at(dy_room)
                if plan.paired:  # as it lies: a pair is any two neighbours
                    inputs, padded = inputs.viewed(i16), padded.viewed(i16)
                there = (inputs, x_whole, g.input_size, images, depth, begin, plan.x_size, padded, x_view)
                if plan.layout == "NCX":
                    y_step, x_step = (
                        stride if compact else 1 for stride, compact in zip(g.strides[1:], plan.compact, strict=True)
                    )
                    stage_planes(k, *there, (1, y_step, x_step))
                else:
                    stage_pixels(k, *there, plan.depth)
                inputs = padded
            else:
                inputs = inputs.at(x_view.of(*begin))
            for b in k.range(present):
                outputs, dy_view = dy_group.at(image * dy_whole.image).at(b * (block * dy_whole.channel)), dy_whole
                if plan.staged_dy:
                    dy_view, size = plan.dy_view(lanes), (1, *plan.box[1:])
                    left = k.least(block, plan.outputs - (first_block + b) * block)
                    goal_of_dy = scratch.viewed(i32) if plan.paired else scratch
                    extent, start = g.output_size, corner
                    if plan.flat:
                        extent, start = (extent[0], 1, extent[1] * extent[2]), [corner[0], 0, corner[1] * extent[2]]
                        size = (1, 1, size[1] * size[2])
                    where = (outputs, dy_whole, extent, images, left, start, size, goal_of_dy, dy_view)
                    stage = stage_turned if plan.layout == "NCX" else stage_pixels
                    stage(k, *where, block)
                    outputs = goal_of_dy
                else:
                    outputs = outputs.at(dy_view.of(*corner))
                if plan.biased:
                    with k.when(number == 0):
                        _add_bias(k, plan, outputs, dy_view, bias.at(b * plan.sums(lanes)), images, rows, columns)
                if plan.inputs:
                    sums = mine.at(b * plan.sums(lanes))
                    _add_box(k, plan, outputs, dy_view, inputs, x_view, sums, depth, (images, rows, columns), corner)


def column_runs(geometry: Geometry) -> list[tuple[int, int, range]]:
    """(first, end, taps) of the runs of output columns that see the same taps along the last axis."""
    runs: list[tuple[int, int, range]] = []
    for column in range(geometry.output_size[2]):
        start, dilation = geometry.start(2, column), geometry.dilations[2]
        meeting = [m for m in range(geometry.kernel[2]) if 0 <= start + m * dilation < geometry.input_size[2]]
        taps = range(meeting[0], meeting[-1] + 1) if meeting else range(0)
        if runs and runs[-1][2] == taps:
            runs[-1] = (runs[-1][0], column + 1, taps)
        else:
            runs.append((column, column + 1, taps))
    return [run for run in runs if len(run[2])]


def _add_box(
    k: Trace, plan: WeightPlan, dy: Pointer, dy_view: View, x: Pointer, x_view: View, sums: Pointer,
    depth: Value | int, counts: tuple[Value | int, ...], corner: list[Value | int],
) -> None:  # fmt: skip
    """The products of a box, added to the sums of all its input channels and taps."""
    g = plan.geometry
    a, b, c = g.kernel
    block = plan.block(k.target.lanes(sums.type))
    pitches = [d * s for d, s in zip(g.dilations, x_view.place, strict=True)]
    leading = list(itertools.product(range(a), range(b))) if plan.joined else [(0, 0)]
    inline = [(i * pitches[0] + j * pitches[1] + m * pitches[2], (i * b + j) * c + m)
              for i, j in leading for m in range(c)]  # fmt: skip
    loops = (1, 1) if plan.joined else (a, b)

    def tiles(channel: Value | int, width: int) -> None:
        for i in k.range(loops[0]):
            for j in k.range(loops[1]):
                source = x.at(channel * x_view.channel).at(i * pitches[0] + j * pitches[1])
                goal = sums.at((channel * plan.taps + (i * b + j) * c) * block)
                reads = [n * x_view.channel + place for n in range(width) for place, _ in inline]
                writes = [(n * plan.taps + tap) * block for n in range(width) for _, tap in inline]
                rows: tuple[Value | int, Value | int] = (0, counts[1])
                if plan.exact:
                    low, high = _seen(k, g, 1, j, corner[1], counts[1])
                    plane = corner[0] * g.strides[0] + i * g.dilations[0] - g.pads[0][0]
                    rows = low, k.where(k.below(plane, g.input_size[0]), high, 0)
                _tile(k, plan, dy, dy_view, source, x_view, goal, reads, writes, counts, rows, corner[2])

    full = depth // plan.rows * plan.rows
    for channel in k.range(0, full, plan.rows):
        tiles(channel, plan.rows)
    rest = plan.inputs % plan.rows
    if rest:
        with k.when(k.value(full, i64) < depth):
            tiles(full, rest)


def _seen(
    k: Trace, geometry: Geometry, axis: int, tap: Value, first: Value | int, count: Value | int
) -> tuple[Value, Value]:
    """From where to where, of `count` outputs from `first` on, a tap meets the input on this axis."""
    stride, size, pad = geometry.strides[axis], geometry.input_size[axis], geometry.pads[axis][0]
    shift = pad - tap * geometry.dilations[axis]
    low, high = (k.most(shift + end, 0) // stride - first for end in (stride - 1, size - 1 + stride))
    return k.most(low, 0), k.least(high, count)


def _tile(
    k: Trace, plan: WeightPlan, dy: Pointer, dy_view: View, x: Pointer, x_view: View, goal: Pointer, reads: list[int],
    writes: list[int], counts: tuple[Value | int, ...], rows: tuple[Value | int, Value | int], first: Value | int,
) -> None:  # fmt: skip
    """One register tile over the pixels of a box: those of these rows, whose first column is the plane's `first`."""
    lanes, (y_step, x_step) = k.target.lanes(goal.type), plan.x_steps
    totals, along = new_totals(k, len(reads), plan.vectors, goal.type), plan.geometry.kernel[2]
    for n in k.range(counts[0]):
        for row in k.range(*rows):
            source = x.at(n * x_view.image + row * (y_step * x_view.place[1]))
            line = dy.at(n * dy_view.image + row * dy_view.place[1])
            for start, end, taps in _runs(k, plan, first, counts[2]):
                picks = [i for i in range(len(reads)) if not plan.exact or i % along in taps]
                for column in k.range(start, end):
                    here = source.at(column * (plan.unit * x_step * x_view.place[2]))
                    places = [reads[i] for i in picks]
                    accumulate(k, [totals[i] for i in picks], here, places, line.at(column * dy_view.place[2]))
    for row_of, place in zip(totals, writes, strict=True):
        for j, total in enumerate(row_of):
            at = whole(place + j * lanes, lanes)
            goal[at] = goal[at] + total


def _runs(
    k: Trace, plan: WeightPlan, first: Value | int, count: Value | int
) -> Iterator[tuple[Value | int, Value | int, range]]:
    """The runs of a box's columns (or pairs of them) that see the same taps."""
    if not plan.exact:
        yield 0, (count + (plan.unit - 1)) // plan.unit, range(plan.geometry.kernel[2])
        return
    for start, end, taps in column_runs(plan.geometry):
        if isinstance(first, int) and isinstance(count, int):
            yield start, end, taps
        else:
            yield k.most(start - first, 0), k.least(end - first, count), taps


def _add_bias(
    k: Trace, plan: WeightPlan, dy: Pointer, view: View, bias: Pointer, images: Value | int, rows: Value | int,
    columns: Value | int,
) -> None:  # fmt: skip
    lanes = k.target.lanes(bias.type)
    totals = [k.var(0.0, bias.type, lanes) for _ in range(plan.vectors)]
    for n in k.range(images):
        for row in k.range(rows):
            for column in k.range((columns + (plan.unit - 1)) // plan.unit):
                pixel = dy.at(n * view.image + row * view.place[1] + column * view.place[2])
                for j, total in enumerate(totals):
                    found = pixel[whole(j * lanes, lanes)]
                    low, *high = halves(k, found) if plan.paired else (found,)
                    total += low + high[0] if high else low
    for j, total in enumerate(totals):
        at = whole(j * lanes, lanes)
        bias[at] = bias[at] + total
