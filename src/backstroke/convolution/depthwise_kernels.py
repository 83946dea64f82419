"""Depthwise convolution by planes: every channel by itself, channels first.

The vector is `lanes` neighbours of a row. A plane's rows are staged with their padding, a few rows at a time that stay
in the first cache; where they are read `step` apart, columns with the same remainder lie together. A row of the result
is a sum over taps of shifted rows; in the gradient of the weights each tap is a sum, kept in a register over a whole
channel, of dy times a shifted row. A piece is some planes, or some channels: pieces share nothing, so the bits do not
depend on the threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jit.types import Type
from .plane_kernels import some_count, weave
from .sweeps import Phase, Sweep
from .tiles import least, parted, whole, within

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

TAPS = 24  # sums of taps that are kept in registers


@dataclass(frozen=True)
class Rows:
    """How rows of one plane are staged: `band` rows of outputs at a time."""

    sweep: Sweep
    band: int

    @property
    def columns(self) -> int:
        """Outputs of the longest row of a phase."""
        return max(x.size for *_, x in self.sweep.phases)

    @property
    def lines(self) -> int:
        """Rows of the input that a band needs."""
        low, high = self.sweep.reach[1]
        return (-(-self.band // self.sweep.spread[1]) - 1) * self.sweep.step[1] + high - low + 1

    def shift(self, offset: int) -> tuple[int, int]:
        """Which of a row's parts an offset along the row reads, and from where on."""
        return divmod(offset - self.sweep.reach[2][0], self.sweep.step[2])[::-1]

    def pitch(self, lanes: int) -> int:
        """Elements of a part of a row, in whole vectors."""
        return -(-(self.shift(self.sweep.reach[2][1])[1] + self.columns) // lanes) * lanes

    def elements(self, lanes: int) -> int:
        """Elements of all staged rows, and of a vector that may begin in the last one."""
        return self.lines * self.sweep.step[2] * self.pitch(lanes) + lanes

    def place(self, y: Value | int, phase: Phase, tap: tuple[int, int], lanes: int) -> Value | int:
        """Where the row begins that a tap, by its numbers on both axes, reads for row y of a phase."""
        part, start = self.shift(phase[2].offsets[tap[1]])
        line = y * self.sweep.step[1] + (phase[1].offsets[tap[0]] - self.sweep.reach[1][0])
        return (line * self.sweep.step[2] + part) * self.pitch(lanes) + start

    def stage(self, k: Trace, plane: Pointer, first: Value, target: Pointer) -> None:
        """The rows that the outputs from row `first` on read; zero outside the plane."""
        lanes, (_, height, width) = k.target.lanes(target.type), self.sweep.input_size
        (low, _), (left, _) = self.sweep.reach[1:]
        step, pitch = self.sweep.step[2], self.pitch(lanes)
        top = first // self.sweep.spread[1] * self.sweep.step[1] + low
        for line in k.range(self.lines):
            row, goal = line + top, target.at(line * (step * pitch))
            exists = k.below(row, height)
            source, size = plane.at(k.where(exists, row, 0) * width), k.where(exists, k.value(width, row.type), 0)
            for start in k.range(0, pitch, lanes):
                parts = [source[within(k, start * step + (left + i * lanes), 0, size, lanes)] for i in range(step)]
                for i, part in enumerate(parted(k, parts)):
                    goal.at(start + i * pitch)[whole(0, lanes)] = part


@dataclass(frozen=True)
class DepthwisePlan:
    """All that is constant in a depthwise sweep."""

    rows: Rows
    images: int
    groups: int
    planes: int  # of a piece
    type: Type

    @property
    def sweep(self) -> Sweep:
        return self.rows.sweep

    @property
    def pieces(self) -> int:
        return -(-self.images * self.groups // self.planes)

    def scratch(self, lanes: int) -> tuple[int, int]:
        """Elements of scratch memory: for the staged rows, and for a row of each phase."""
        return self.rows.elements(lanes), self.sweep.spread[2] * self.row(lanes) + lanes

    def row(self, lanes: int) -> int:
        """Elements of a row of a phase, in whole vectors and one more."""
        return (-(-self.rows.columns // lanes) + 1) * lanes


def sweep_depthwise(
    k: Trace, piece: Value, source: Pointer, w: Pointer, bias: Pointer, target: Pointer, flags: Pointer, slots: Value,
    memory: Pointer, *, plan: DepthwisePlan, biased: bool,
) -> None:  # fmt: skip
    """Some planes."""
    sweep, rows, lanes = plan.sweep, plan.rows, k.target.lanes(memory.type)
    (_, *input_size), (_, height, width) = sweep.input_size, sweep.output_size
    taps, along = sweep.kernel[1] * sweep.kernel[2], min(sweep.spread[2], width)
    staged_size, row_size = plan.scratch(lanes)
    with k.borrowed(flags, slots, memory, staged_size + row_size) as staged:
        last = k.least((piece + 1) * plan.planes, plan.images * plan.groups)
        for plane in k.range(piece * plan.planes, last):
            channel = plane % plan.groups
            fresh = k.to(memory.type, bias[channel]) if biased else k.value(0.0, memory.type)
            begin = k.spread(fresh, lanes)
            goal = target.at(plane * (height * width))
            for first in k.range(0, height, rows.band):
                count = least(k, rows.band, height - first) if height % rows.band else rows.band
                rows.stage(k, source.at(plane * (input_size[0] * input_size[1])), first, staged)
                for number in range(0, len(sweep.phases), along):
                    phases = sweep.phases[number : number + along]
                    axis = phases[0][1]
                    for y in k.range(some_count(k, count, axis)):
                        line = goal.at((first + y * sweep.spread[1] + axis.first) * width)
                        parts: list[Pointer | None] = []
                        for i, phase in enumerate(phases):
                            part = line if along == 1 else staged.at(staged_size + i * plan.row(lanes))
                            used = len(phase[1].offsets) * len(phase[2].offsets)
                            parts.append(part if used else None)
                            if not used and along > 1:
                                continue
                            for at in k.vectors(width if along == 1 else phase[2].size, lanes=lanes):
                                total = begin
                                for a, tap_y in enumerate(phase[1].taps):
                                    for b, tap_x in enumerate(phase[2].taps):
                                        weight = k.to(memory.type, w[channel * taps + tap_y * sweep.kernel[2] + tap_x])
                                        here = staged.at(rows.place(y, phase, (a, b), lanes))
                                        vector = here.at(at.start)[whole(0, lanes)]
                                        total = k.muladd(k.spread(weight, lanes), vector, total)
                                part[at] = total
                        if along > 1:
                            weave(k, plan.type, parts, line, width, begin)


@dataclass(frozen=True)
class DepthwiseWeightPlan:
    """All that is constant in the gradient of depthwise weights."""

    rows: Rows  # of the forward pass
    images: int
    groups: int
    channels: int  # of a piece
    biased: bool
    type: Type

    def pieces(self, lanes: int) -> int:
        return -(-self.groups // self.channels)

    def scratch(self, lanes: int) -> tuple[int, int]:
        return self.rows.elements(lanes), lanes


def depthwise_weights(
    k: Trace, piece: Value, dy: Pointer, x: Pointer, dw: Pointer, db: Pointer, flags: Pointer, slots: Value,
    memory: Pointer, *, plan: DepthwiseWeightPlan,
) -> None:  # fmt: skip
    """Some channels, over all images."""
    sweep, rows, lanes = plan.rows.sweep, plan.rows, k.target.lanes(memory.type)
    (_, *x_size), (_, height, width) = sweep.input_size, sweep.output_size
    (phase,) = sweep.phases
    taps = [(a, b) for a in range(len(phase[1].offsets)) for b in range(len(phase[2].offsets))]
    unused = {(a, b) for a in range(sweep.kernel[1]) for b in range(sweep.kernel[2])}
    unused -= {(phase[1].taps[a], phase[2].taps[b]) for a, b in taps}
    with k.borrowed(flags, slots, memory, sum(plan.scratch(lanes))) as staged:
        for channel in k.range(piece * plan.channels, k.least((piece + 1) * plan.channels, plan.groups)):
            goal = dw.at(channel * (sweep.kernel[1] * sweep.kernel[2]))
            for a, b in sorted(unused):
                goal[a * sweep.kernel[2] + b] = 0.0
            for start in range(0, max(1, len(taps)), TAPS):
                some = taps[start : start + TAPS]
                sums = [k.var(0.0, memory.type, lanes) for _ in some]
                bias = k.var(0.0, memory.type, lanes) if plan.biased and start == 0 else None
                for image in k.range(plan.images):
                    plane = image * plan.groups + channel
                    for first in k.range(0, height, rows.band):
                        count = least(k, rows.band, height - first) if height % rows.band else rows.band
                        rows.stage(k, x.at(plane * (x_size[0] * x_size[1])), first, staged)
                        for y in k.range(count):
                            line = dy.at((plane * height + first + y) * width)
                            for at in k.vectors(width, lanes=lanes):
                                vector = line[at]
                                for total, tap in zip(sums, some, strict=True):
                                    here = staged.at(rows.place(y, phase, tap, lanes))
                                    total.set(k.muladd(vector, here[at], total))
                                if bias is not None:
                                    bias += vector
                for total, (a, b) in zip(sums, some, strict=True):
                    goal[phase[1].taps[a] * sweep.kernel[2] + phase[2].taps[b]] = k.sum(total)
                if bias is not None:
                    db[channel] = k.sum(bias)


def rows_of(sweep: Sweep, lanes: int, most: int) -> Rows:
    """Bands whose staged rows take about `most` elements."""
    unit = sweep.spread[1]
    band = -(-sweep.output_size[1] // unit) * unit
    while band > unit and Rows(sweep, band).elements(lanes) > most:
        band = max(unit, -(-band // unit // 2) * unit)
    return Rows(sweep, band)
