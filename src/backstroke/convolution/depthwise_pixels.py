"""Depthwise convolution of pixels: every channel by itself, channels last.

The vector is `lanes` neighbouring channels of a pixel. Nothing is staged: rows and columns are cut into runs of outputs
that meet the same taps, so the inner ones look at no border, and the others know theirs when they are traced. In a
sweep the weights of all taps stay in registers; in the gradient of the weights the sums do. A piece is a band of rows
of an image, over all channels, so that what it reads comes from memory once; the bands' sums are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jit.types import Type
from .plane_kernels import some_count
from .sweeps import Axis, Phase, Sweep

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

TAPS = 24  # sums or weights of taps that are kept in registers
Run = tuple[int, int, tuple[int, ...]]


def runs(axis: Axis, extent: int) -> list[Run]:
    """(first, end, the numbers of the taps that meet the input) of outputs with the same taps, in order."""
    found: list[Run] = []
    for q in range(axis.size):
        met = tuple(i for i, offset in enumerate(axis.offsets) if 0 <= q * axis.step + offset < extent)
        if found and found[-1][2] == met:
            found[-1] = found[-1][0], q + 1, met
        else:
            found.append((q, q + 1, met))
    return found


@dataclass(frozen=True)
class Pixels:
    """A depthwise convolution with channels last, and its bands of output rows."""

    sweep: Sweep
    images: int
    channels: int
    band: int
    type: Type
    biased: bool = False  # whether there are sums for the bias, too

    @property
    def bands(self) -> int:
        """Of an image."""
        return -(-self.sweep.output_size[1] // self.band)

    def pieces(self, lanes: int = 0) -> int:
        return self.images * self.bands

    @property
    def traced(self) -> int:
        """How many multiply-adds the code has."""
        total = 0
        for phase in self.sweep.phases:
            rows, columns = (runs(axis, size) for axis, size in zip(phase[1:], self.sweep.input_size[1:], strict=True))
            total += sum(len(a) * len(b) for *_, a in rows for *_, b in columns)
        return 2 * total

    def place(self, k: Trace, piece: Value) -> tuple[Value, Value, Value]:
        """The image of a piece, its first row, and how many it has."""
        first = piece % self.bands * self.band
        return piece // self.bands, first, k.least(self.band, self.sweep.output_size[1] - first)

    def pixels(
        self, k: Trace, phase: Phase, first: Value, count: Value
    ) -> Iterator[tuple[Value, Value, list[tuple[int, int, Value, Value]]]]:
        """For every output of a phase in a band: its row, its column, and (tap, tap, input row, input column)."""
        (y_axis, x_axis), (height, width) = phase[1:], self.sweep.input_size[1:]
        low = first // y_axis.spread
        high = low + some_count(k, count, y_axis)
        for y_start, y_end, y_taps in runs(y_axis, height):
            for y in k.range(k.most(low, y_start), k.least(high, y_end)):
                for x_start, x_end, x_taps in runs(x_axis, width):
                    for x in k.range(x_start, x_end):
                        reads = [
                            (a, b, y * y_axis.step + y_axis.offsets[a], x * x_axis.step + x_axis.offsets[b])
                            for a in y_taps
                            for b in x_taps
                        ]
                        yield y * y_axis.spread + y_axis.first, x * x_axis.spread + x_axis.first, reads


def sweep_pixels(
    k: Trace, piece: Value, source: Pointer, w: Pointer, bias: Pointer, target: Pointer, *, plan: Pixels, biased: bool
) -> None:
    """A band."""
    sweep, channels, kind = plan.sweep, plan.channels, plan.type.compute
    (_, height, width), (_, rows, columns) = sweep.input_size, sweep.output_size
    image, first, count = plan.place(k, piece)
    source, target = source.at(image * (height * width * channels)), target.at(image * (rows * columns * channels))
    lanes = k.target.lanes(kind)
    for at in k.vectors(channels, lanes=lanes):
        begin = bias[at] if biased else k.value(0.0, kind, lanes)
        for phase in sweep.phases:
            taps = {
                (a, b): w.at((tap_y * sweep.kernel[2] + tap_x) * channels)
                for a, tap_y in enumerate(phase[1].taps)
                for b, tap_x in enumerate(phase[2].taps)
            }
            weights = {tap: place[at] for tap, place in taps.items()} if len(taps) <= TAPS else {}
            for y, x, reads in plan.pixels(k, phase, first, count):
                total = begin
                for a, b, row, column in reads:
                    weight = weights[a, b] if weights else taps[a, b][at]
                    total = k.muladd(weight, source.at((row * width + column) * channels)[at], total)
                target.at((y * columns + x) * channels)[at] = total


def weights_of_pixels(k: Trace, piece: Value, dy: Pointer, x: Pointer, partial: Pointer, *, plan: Pixels) -> None:
    """The sums of a band: `partial[piece][tap, and the bias' behind][channel]`."""
    sweep, channels, kind = plan.sweep, plan.channels, plan.type.compute
    (_, height, width), (_, rows, columns) = sweep.input_size, sweep.output_size
    image, first, count = plan.place(k, piece)
    (phase,) = sweep.phases
    lanes, kernel = k.target.lanes(kind), sweep.kernel[1] * sweep.kernel[2]
    dy, x = dy.at(image * (rows * columns * channels)), x.at(image * (height * width * channels))
    partial = partial.at(piece * ((kernel + 1) * channels))
    taps = {
        (a, b): tap_y * sweep.kernel[2] + tap_x
        for a, tap_y in enumerate(phase[1].taps)
        for b, tap_x in enumerate(phase[2].taps)
    }
    pending = list(taps)
    for at in k.vectors(channels, lanes=lanes):
        for start in range(0, max(1, len(pending)), TAPS):
            sums = {tap: k.var(0.0, kind, lanes) for tap in pending[start : start + TAPS]}
            bias = k.var(0.0, kind, lanes) if plan.biased and start == 0 else None
            for row, column, reads in plan.pixels(k, phase, first, count):
                vector = dy.at((row * columns + column) * channels)[at]
                for a, b, y, z in reads:
                    if (a, b) in sums:
                        total = sums[a, b]
                        total.set(k.muladd(vector, x.at((y * width + z) * channels)[at], total))
                if bias is not None:
                    bias += vector
            for tap, total in sums.items():
                partial.at(taps[tap] * channels)[at] = total.read()
            if bias is not None:
                partial.at(kernel * channels)[at] = bias.read()
        for unused in set(range(kernel)) - set(taps.values()):
            partial.at(unused * channels)[at] = k.value(0.0, kind, lanes)


def join_pixels(k: Trace, piece: Value, partial: Pointer, dw: Pointer, db: Pointer, *, plan: Pixels) -> None:
    """The bands' sums, added in order; a piece is a tap, the last one is the bias."""
    kernel, channels = plan.sweep.kernel[1] * plan.sweep.kernel[2], plan.channels

    def join(goal: Pointer) -> None:
        for at in k.vectors(channels, lanes=k.target.lanes(partial.type)):
            total = k.var(partial.at(piece * channels)[at])
            for number in k.range(1, plan.pieces()):
                total += partial.at((number * (kernel + 1) + piece) * channels)[at]
            goal[at] = k.to(plan.type.compute, total.read())

    with k.when(piece < kernel):
        join(dw.at(piece * channels))
    if plan.biased:
        with k.when(piece == kernel):
            join(db)


def bands_of(sweep: Sweep, images: int, channels: int, type: Type, most: int, pieces: int) -> Pixels:
    """Bands that read and write about `most` bytes, and so many that there are `pieces`."""
    spread, height = sweep.spread[1], sweep.output_size[1]
    row = channels * type.bytes * (sweep.output_size[2] + sweep.input_size[1] * sweep.input_size[2] // height)
    band = max(1, min(-(-height // spread), most // (row * spread)))
    while band > 1 and images * -(-height // (band * spread)) < pieces:
        band = -(-band // 2)
    return Pixels(sweep, images, channels, band * spread, type)


__all__ = ["Pixels", "bands_of", "join_pixels", "runs", "sweep_pixels", "weights_of_pixels"]
