"""Max pooling, and its gradient from the input: find each window's winner, and add dY there.

`winners` scans a window in order with a strict >, from -infinity: the first maximum wins, NaN and padding never do.
Channels in planes (NCX): the vector is `lanes` neighbouring outputs of a row, whose taps are loaded in strides by
constant shuffles. Channels last (NXC): the vector is over channels. The gradient is added up in scratch memory of one
segment of dX that stays in the cache, in the type of the sums, and goes out once. A piece is one segment; it looks at
every window that may reach into it, and at no other's memory, so neither order nor result depends on the threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..geometry import Geometry
from ..jit.stage import Stage, group
from ..jit.types import Type, i32, i64
from .mean_kernels import MOST_STRIDES, MOST_TAPS, channel_tiles, count_of, taps, whole_lanes
from .sums import clear, deliver

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value

INFINITY = float("inf")


PADDING = 64  # elements behind a segment's scratch memory; the first of them takes what is for nobody here


# ---- from the input, planes -----------------------------------------------------------------------------------------


def _row_winners(
    k: Trace, x: Pointer, lines: tuple[Value, Value], geometry: Geometry, type: Type
) -> Iterator[tuple[Value, Value, Lanes]]:
    """For each vector of an output row: the maxima, their places in the plane (int32, -1 for none), and its lanes."""
    by_vectors = geometry.strides[2] <= MOST_STRIDES and geometry.kernel[2] <= MOST_TAPS
    lanes = k.target.lanes(type) if by_vectors else 1
    inputs, outputs, stride = geometry.input_size, geometry.output_size[2], geometry.strides[2]
    pad, reach = geometry.pads[2][0], geometry.extents[2] - 1
    # Blocks whose every load lies inside the row need no masks.
    low = max(0, -(-pad // (lanes * stride)))
    high = max(low, (inputs[2] + pad - reach) // (lanes * stride))
    blocks = -(-outputs // lanes)
    low, high = min(low, blocks), min(high, outputs // lanes, blocks)
    over = [taps(k, geometry, axis, line) for axis, line in enumerate(lines)]

    for begin, end, masked in ((0, low, True), (low, max(low, high), False), (max(low, high), blocks, True)):
        for block in k.range(begin, end):
            best, place = k.var(-INFINITY, type.compute, lanes), k.var(-1, i32, lanes)
            for i in k.range(*over[0][:2]):
                for j in k.range(*over[1][:2]):
                    row = (over[0][2](i) * inputs[1] + over[1][2](j)) * inputs[2]
                    for tap in range(geometry.kernel[2]) if by_vectors else k.range(geometry.kernel[2]):
                        start = tap * geometry.dilations[2] + (block * (lanes * stride) - pad)
                        values = _strided(k, x.at(row), start, stride, lanes, inputs[2], masked, type)
                        better = values > best
                        spots = k.spread(k.to(i32, row + start), lanes) + k.ramp(i32, lanes, stride)
                        best.set(k.where(better, values, best))
                        place.set(k.where(better, spots, place))
            at = whole_lanes(block * lanes, lanes)
            if masked:
                at = k.some(block * lanes, k.least(outputs - block * lanes, lanes), lanes)
            yield best.read(), place.read(), at


def _strided(
    k: Trace, row: Pointer, start: Value, stride: int, lanes: int, width: int, masked: bool, type: Type
) -> Value:
    """Every `stride`-th element of a row from `start` on; with `masked`, -infinity outside the row."""
    if lanes == 1:
        inside = k.below(start, width)
        return k.where(inside, row[k.where(inside, start, 0)], -INFINITY)
    vectors = []
    for v in range(stride):
        at = whole_lanes(start + v * lanes, lanes)
        if masked:
            positions = k.iota(lanes) + k.spread(start + v * lanes, lanes)
            inside = (positions >= 0) & (positions < width)
            vectors.append(k.where(inside, row[replace(at, mask=inside)], -INFINITY))
        else:
            vectors.append(row[at])
    result = vectors[0]
    for v in range(1, stride):
        picks = [lane * stride for lane in range(lanes)]
        old = [p if v == 1 else lane for lane, p in enumerate(picks)]
        order = [lanes + p % lanes if p // lanes == v else o % lanes for p, o in zip(picks, old, strict=True)]
        result = k.shuffle(result, vectors[v], order)
    return result


def max_planes(
    k: Trace, piece: Value, x: Pointer, y: Pointer, indices: Pointer, *_: Any,
    geometry: Geometry, type: Type, indexed: bool,
) -> None:  # fmt: skip
    """The maxima, and where they stand: a piece is a row of outputs."""
    outputs = geometry.output_size
    rows, size = outputs[0] * outputs[1], count_of(geometry.input_size)
    plane, line = piece // rows, piece % rows
    place = piece * outputs[2]
    for best, spots, at in _row_winners(k, x.at(plane * size), (line // outputs[1], line % outputs[1]), geometry, type):
        y.at(place)[at] = best
        if indexed:
            found = k.to(i64, spots)
            indices.at(place)[at] = k.where(found >= 0, found + plane * size, -1)


def max_grad_planes(
    k: Trace, piece: Value, dy: Pointer, x: Pointer, dx: Pointer, status: Pointer, flags: Pointer, slots: Value,
    memory: Pointer, *, geometry: Geometry, axis: int, band: int, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """dX from x: a piece is `band` slices of one plane along `axis`, the first axis that can be cut."""
    inputs, outputs = geometry.input_size, geometry.output_size
    slice_size = count_of(inputs) // inputs[axis]
    bands = -(-inputs[axis] // band)
    plane, first = piece // bands, piece % bands * band
    last = k.least(first + band, inputs[axis])
    origin, count = first * slice_size, (last - first) * slice_size
    lanes = k.target.lanes(type)
    dy_plane, x_plane = dy.at(plane * count_of(outputs)), x.at(plane * count_of(inputs))
    over = [(k.value(0, i64), k.value(outputs[a], i64)) for a in range(2)]
    if axis < 2:
        over[axis] = _outputs_over(k, geometry, axis, first, last)
    with k.borrowed(flags, slots, memory, band * slice_size + PADDING) as totals:
        clear(k, totals, count)
        # Where the gradients of a vector go, and they themselves.
        spots, gradients = k.stack(i32, lanes), k.stack(sums, lanes)
        for a in k.range(*over[0]):
            for b in k.range(*over[1]):
                line = dy_plane.at((a * outputs[1] + b) * outputs[2])
                for _, places, at in _row_winners(k, x_plane, (a, b), geometry, type):
                    whole = whole_lanes(0, places.lanes)
                    there = places - k.to(i32, origin)
                    inside = k.below(there, k.to(i32, count))
                    if at.mask is not None:
                        inside &= at.mask
                    spots[whole] = k.where(inside, there, k.to(i32, count))
                    gradients[whole] = k.to(sums, line[at])
                    for lane in range(places.lanes):
                        spot = k.to(i64, spots[lane])
                        totals[spot] = totals[spot] + gradients[lane]
        deliver(k, totals, dx.at(plane * count_of(inputs) + origin), count, stream)


def _outputs_over(k: Trace, geometry: Geometry, axis: int, first: Value, last: Value) -> tuple[Value, Value]:
    """The outputs whose windows may reach positions `first` to `last` - 1 of an axis."""
    stride, pad, reach = geometry.strides[axis], geometry.pads[axis][0], geometry.extents[axis] - 1
    low = k.most(first + (pad - reach + stride - 1), 0) // stride
    high = k.most(last + (pad + stride - 1), 0) // stride
    return low, k.least(high, geometry.output_size[axis])


# ---- from the input, channels last ----------------------------------------------------------------------------------


def _winners(
    k: Trace,
    x: Pointer,
    at: tuple[Value, Value, Value],
    geometry: Geometry,
    channels: int,
    spots: list[Lanes],
    type: Type,
) -> list[tuple[Any, Any]]:
    """For each vector of channels of one window: the maxima and their positions (int32, -1 for none)."""
    inputs, lanes = geometry.input_size, spots[0].count
    over = [taps(k, geometry, axis, o) for axis, o in enumerate(at)]
    found = [(k.var(-INFINITY, type.compute, lanes), k.var(-1, i32, lanes)) for _ in spots]
    for i in k.range(*over[0][:2]):
        for j in k.range(*over[1][:2]):
            for m in k.range(*over[2][:2]):
                a, b, c = (o[2](t) for o, t in zip(over, (i, j, m), strict=True))
                position = (a * inputs[1] + b) * inputs[2] + c
                here = k.spread(k.to(i32, position), lanes)
                for (best, place), spot in zip(found, spots, strict=True):
                    values = x.at(position * channels)[spot]
                    better = values > best
                    best.set(k.where(better, values, best))
                    place.set(k.where(better, here, place))
    return found


def max_channels(
    k: Trace, piece: Value, x: Pointer, y: Pointer, indices: Pointer, *_: Any,
    geometry: Geometry, channels: int, type: Type, indexed: bool,
) -> None:  # fmt: skip
    """The maxima, and where they stand: a piece is a row of outputs."""
    outputs = geometry.output_size
    rows, size = outputs[0] * outputs[1], count_of(geometry.input_size)
    image, line = piece // rows, piece % rows
    lanes = k.target.lanes(type)
    for o in k.range(outputs[2]):
        place = (piece * outputs[2] + o) * channels
        for spots in channel_tiles(k, channels, lanes):
            at = (line // outputs[1], line % outputs[1], o)
            found = _winners(k, x.at(image * (size * channels)), at, geometry, channels, spots, type)
            for (best, positions), spot in zip(found, spots, strict=True):
                y.at(place)[spot] = best
                if indexed:
                    wide = k.to(i64, positions)
                    flat = (wide + image * size) * channels + k.iota(lanes) + spot.start
                    indices.at(place)[spot] = k.where(wide >= 0, flat, -1)


def max_grad_channels(
    k: Trace, piece: Value, dy: Pointer, x: Pointer, dx: Pointer, status: Pointer, lists: Pointer, flags: Pointer,
    slots: Value, memory: Pointer, *,
    geometry: Geometry, channels: int, axis: int, band: int, most: int, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """dX from x: a piece is `band` slices of one image along `axis`. The winners of all windows that reach into them
    are found first (`most` is how many windows that can be); then each position asks the windows over it, of which
    `lists` has for each position of each axis how many, and which."""
    inputs, outputs = geometry.input_size, geometry.output_size
    bands = -(-inputs[axis] // band)
    image, first = piece // bands, piece % bands * band
    last = k.least(first + band, inputs[axis])
    lanes = k.target.lanes(sums)
    dy_image, x_image, dx_image = (
        p.at(image * (count_of(n) * channels)) for p, n in ((dy, outputs), (x, inputs), (dx, inputs))
    )
    over = [(k.value(0, i64), k.value(outputs[a], i64)) for a in range(3)]
    over[axis] = _outputs_over(k, geometry, axis, first, last)
    origin = over[axis][0]
    tiles = channel_tiles(k, channels, lanes)

    def window(a: Value, b: Value, c: Value) -> Value:
        """The place of a window among those of this piece."""
        own = [a, b, c]
        own[axis] = own[axis] - origin
        extents = [over[i][1] - over[i][0] for i in range(3)]
        return (own[0] * extents[1] + own[1]) * extents[2] + own[2]

    with k.borrowed(flags, slots, memory, most * channels + PADDING) as winners:
        for a in k.range(*over[0]):
            for b in k.range(*over[1]):
                for c in k.range(*over[2]):
                    place = winners.at(window(a, b, c) * channels)
                    for spots in tiles:
                        found = _winners(k, x_image, (a, b, c), geometry, channels, spots, type)
                        for (_, positions), spot in zip(found, spots, strict=True):
                            place[spot] = positions
        over_positions = [(k.value(0, i64), k.value(inputs[i], i64)) for i in range(3)]
        over_positions[axis] = (first, last)
        most_staged = group(channels, type)
        start = (over_positions[0][0] * inputs[1] + over_positions[1][0]) * inputs[2] + over_positions[2][0]
        stage = Stage(k, dx_image.at(start * channels), most_staged * channels, stream=stream)
        for i in k.range(*over_positions[0]):
            for j in k.range(*over_positions[1]):
                row = (i * inputs[1] + j) * inputs[2]
                for begin in k.range(*over_positions[2], most_staged):
                    end, to = k.least(begin + most_staged, over_positions[2][1]), stage.room()
                    for m in k.range(begin, end):
                        here = k.spread(k.to(i32, row + m), lanes)
                        for spots in tiles:
                            totals = [k.var(0.0, sums, lanes) for _ in spots]
                            for a, b, c in _windows_over(k, lists, geometry, (i, j, m)):
                                source = dy_image.at(((a * outputs[1] + b) * outputs[2] + c) * channels)
                                place = winners.at(window(a, b, c) * channels)
                                for total, spot in zip(totals, spots, strict=True):
                                    won = place[spot] == here
                                    total += k.where(won, k.to(sums, source[spot]), 0.0)
                            for total, spot in zip(totals, spots, strict=True):
                                to.at((m - begin) * channels)[spot] = k.to(type.compute, total)
                    stage.send((end - begin) * channels)
        stage.finish()


def _windows_over(
    k: Trace, lists: Pointer, geometry: Geometry, at: tuple[Value, Value, Value]
) -> Iterator[tuple[Value, Value, Value]]:
    """The windows over a position, in order."""
    rows, start = [], 0
    for axis, place in enumerate(at):
        positions, most = geometry.covering(axis).shape
        rows.append(lists.at(place * (most + 1) + start))
        start += positions * (most + 1)
    for i in k.range(rows[0][0]):
        for j in k.range(rows[1][0]):
            for m in k.range(rows[2][0]):
                yield rows[0][i + 1], rows[1][j + 1], rows[2][m + 1]
