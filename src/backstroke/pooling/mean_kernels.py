"""Average pooling and its gradient, in gather form: every output element is computed once, and written once.

Channels in planes (NCX): the vector is a stretch of the last axis. For each row of dx the rows of dY that cover it are
added first, scaled (a row of r, kept in the first cache); the last axis then follows from r by `stride` sums of shifted
vectors, one for each remainder of the column by the stride, interleaved by constant shuffles. Channels last (NXC): the
vector is over channels, the tile some vectors of channels, and the windows over a position are walked in order. A piece
is a band of rows of one plane or image. Sums are taken in ascending order of the windows in every layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..geometry import Geometry
from ..jit.convert import narrow
from ..jit.stage import Stage, group, raw
from ..jit.types import Type

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value, Var

# What is unrolled at most: strides and taps of the last axis (beyond, it is walked by scalars), and rows over a row.
MOST_STRIDES, MOST_TAPS, MOST_ROWS = 8, 48, 12
LINE = 64  # bytes of a cache line
MOST_FILLED = 16  # vectors of a plane that are written without a loop
TILE = 8


def row_scratch(geometry: Geometry, lanes: int) -> tuple[int, int]:
    """Where element 0 of r stands in its scratch memory, and how large that is: all around r there must be zeros."""
    stride, pad = geometry.strides[2], geometry.pads[2][0]
    before = max(0, (geometry.extents[2] - 1) // stride + 1 - pad // stride) + lanes
    blocks = -(-geometry.input_size[2] // (lanes * stride))
    after = max(geometry.output_size[2], blocks * lanes + pad // stride + 2) + 2 * lanes
    return before, before + after


def mean_grad_planes(
    k: Trace, piece: Value, dy: Pointer, dx: Pointer, status: Pointer, weights: Pointer, classes: Pointer,
    covering: Pointer, columns: Pointer, flags: Pointer, slots: Value, memory: Pointer, *,
    geometry: Geometry, band: int, uniform: float, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """`covering` holds the tables of the first two axes, `columns` that of the last."""
    inputs, outputs = geometry.input_size, geometry.output_size
    lanes = k.target.lanes(sums)
    rows = inputs[0] * inputs[1]
    bands = -(-rows // band)
    plane, first = piece // bands, piece % bands * band
    start, size = row_scratch(geometry, lanes)
    reach = [geometry.covering(axis).shape[1] for axis in range(2)]
    dy_plane, dx_plane = (p.at(plane * n) for p, n in ((dy, count_of(outputs)), (dx, rows * inputs[2])))

    with k.borrowed(flags, slots, memory, 2 * size) as scratch:
        row, zeros = scratch.at(start), scratch.at(size)
        nothing = k.value(0.0, sums, lanes)
        for at in k.vectors(2 * size, lanes=lanes):
            scratch[at] = nothing
        zero_row = k.dereference(zeros.address, type)

        def make(index: Value, to: Pointer) -> None:
            over = [(index // inputs[1], reach[0], 0), (index % inputs[1], reach[1], inputs[0] * reach[0])]

            def source(i: Value | int, j: Value | int, over: Any = over) -> tuple[Pointer, Pointer]:
                """The row of dY that is the (i, j)-th over this row, or zeros, and its weights."""
                a, b = (covering[table + at * width + m] for (at, width, table), m in zip(over, (i, j), strict=True))
                seen = (a >= 0) & (b >= 0)
                line = k.where(seen, a * outputs[1] + b, 0)
                place = k.where(seen, dy_plane.at(line * outputs[2]).address, zero_row.address)
                return k.dereference(place, type), weights.at(classes[line] * outputs[2])

            def add(total: Value | Var, at: Lanes, of: tuple[Pointer, Pointer]) -> Value:
                value = k.to(sums, of[0][at])
                return total + value if uniform else k.muladd(value, of[1][at], total)

            if reach[0] * reach[1] <= MOST_ROWS:
                sources = [source(i, j) for i in range(reach[0]) for j in range(reach[1])]
                for at in k.vectors(outputs[2], lanes=lanes):
                    total = k.var(0.0, sums, lanes)
                    for each in sources:
                        total.set(add(total, at, each))
                    row[at] = total * uniform if uniform else total
            else:
                for at in k.vectors(outputs[2], lanes=lanes):
                    row[at] = nothing
                for i in k.range(reach[0]):
                    for j in k.range(reach[1]):
                        each = source(i, j)
                        for at in k.vectors(outputs[2], lanes=lanes):
                            row[at] = add(row[at], at, each)
                if uniform:
                    for at in k.vectors(outputs[2], lanes=lanes):
                        row[at] = row[at] * uniform
            _spread(k, row, to, columns, geometry, lanes, type)

        stage = Stage(k, dx_plane.at(first * inputs[2]), inputs[2], stream=stream)
        for index in k.range(first, k.least(first + band, rows)):
            make(index, stage.room())
            stage.send(inputs[2])
        stage.finish()


def _spread(k: Trace, row: Pointer, dx: Pointer, columns: Pointer, geometry: Geometry, lanes: int, type: Type) -> None:
    """From r, the sums over the leading axes, to a row of dx."""
    stride, dilation, width = geometry.strides[2], geometry.dilations[2], geometry.input_size[2]
    if stride > MOST_STRIDES or geometry.kernel[2] > MOST_TAPS:
        reach = geometry.covering(2).shape[1]
        for column in k.range(width):
            total = k.var(0.0, row.type)
            for m in k.range(reach):
                output = columns[column * reach + m]
                total += k.where(output >= 0, row[k.most(output, 0)], 0.0)
            dx[column] = k.to(type.compute, total)
        return
    quotient, rest = divmod(geometry.pads[2][0], stride)
    # Column j = stride * x + remainder - rest; r's element x + quotient - (tap - remainder) / stride reaches it.
    shifts: list[list[int]] = [[] for _ in range(stride)]
    for tap in reversed(range(geometry.kernel[2])):
        remainder = tap * dilation % stride
        shifts[remainder].append(quotient - (tap * dilation - remainder) // stride + (1 if remainder < rest else 0))

    def block(x: Value | int) -> list[Value]:
        """The `stride` vectors of dx's columns from stride * x on."""
        sums = []
        for shift in shifts:
            loads = [row[whole_lanes(x + by, lanes)] for by in shift]
            sums.append(sum(loads[1:], loads[0]) if loads else k.value(0.0, row.type, lanes))
        return [_interleave(k, sums, v, rest, lanes) for v in range(stride)]

    def store(vectors: list[Value], column: Value | int, count: int) -> None:
        for v, vector in enumerate(vectors):
            left = min(lanes, count - v * lanes)
            if left > 0:
                start = column + v * lanes
                at = whole_lanes(start, lanes) if left == lanes else k.some(start, left, lanes)
                dx[at] = k.to(type.compute, vector)

    step = lanes * stride
    whole = width // step
    for x in k.range(0, whole * lanes, lanes):
        store(block(x), x * stride, step)
    if width % step:
        store(block(whole * lanes), whole * step, width % step)


def whole_lanes(start: Any, count: int) -> Lanes:
    """Whole lanes from `start` on."""
    from ..jit.trace import Lanes

    return Lanes(start, count)


def _interleave(k: Trace, sums: list[Value], v: int, rest: int, lanes: int) -> Value:
    """Vector v of the columns, whose column c comes from sums[(c + rest) % stride]."""
    stride = len(sums)
    columns = [v * lanes + lane + rest for lane in range(lanes)]
    picks = [(c % stride, c // stride - (1 if c % stride < rest else 0)) for c in columns]
    result = sums[0]
    for i in range(1, stride):
        old = [index if i == 1 else lane for lane, (_, index) in enumerate(picks)]
        order = [lanes + index if of == i else was for (of, index), was in zip(picks, old, strict=True)]
        result = k.shuffle(result, sums[i], [p % (2 * lanes) for p in order])
    return result


def mean_grad_channels(
    k: Trace, piece: Value, dy: Pointer, dx: Pointer, status: Pointer, weights: Pointer, classes: Pointer,
    over: Pointer, columns: Pointer, *,
    geometry: Geometry, channels: int, band: int, reach: tuple[int, int], uniform: float, type: Type, sums: Type,
    stream: bool,
) -> None:  # fmt: skip
    """`over` and `columns` have for each row and each column of dX how many of dY see it, at most `reach`, and which;
    in front of that, the row has the next row of dY that will be needed."""
    inputs, outputs = geometry.input_size, geometry.output_size
    lanes = k.target.lanes(sums)
    rows = inputs[0] * inputs[1]
    bands = -(-rows // band)
    image, first = piece // bands, piece % bands * band
    dy_image, dx_image = (p.at(image * (n * channels)) for p, n in ((dy, count_of(outputs)), (dx, count_of(inputs))))
    tiles = channel_tiles(k, channels, lanes)
    most = group(channels, type)
    stage = Stage(k, dx_image.at(first * inputs[2] * channels), most * channels, stream=stream)
    for index in k.range(first, k.least(first + band, rows)):
        lines = over.at(index * (reach[0] + 2))
        ahead = dy_image.at(lines[0] * (outputs[2] * channels))
        for begin in k.range(0, inputs[2], most):
            end, to = k.least(begin + most, inputs[2]), stage.room()
            for column in k.range(begin, end):
                place, found = to.at((column - begin) * channels), columns.at(column * (reach[1] + 1))
                for number, spots in enumerate(tiles):
                    if stream:
                        tile = range(number * TILE * lanes, min(channels, (number + 1) * TILE * lanes))
                        with k.when(column < outputs[2]):
                            for channel in tile[:: LINE // type.bytes]:
                                k.prefetch(ahead.at(column * channels + channel))
                    totals = [k.var(0.0, sums, lanes) for _ in spots]
                    for i in k.range(lines[1]):
                        line = lines[i + 2]
                        source, scales = (
                            dy_image.at(line * (outputs[2] * channels)),
                            weights.at(classes[line] * outputs[2]),
                        )
                        for j in k.range(found[0]):
                            c = found[j + 1]
                            scale = uniform or scales[c]
                            for total, spot in zip(totals, spots, strict=True):
                                value = k.to(sums, source.at(c * channels)[spot])
                                total.set(total + value if uniform else k.muladd(value, scale, total))
                    for total, spot in zip(totals, spots, strict=True):
                        result = total * uniform if uniform else total.read()
                        place[spot] = k.to(type.compute, result)
            stage.send((end - begin) * channels)
    stage.finish()


def channel_tiles(k: Trace, channels: int, lanes: int) -> list[list[Lanes]]:
    """The channels of a position in tiles of some vectors."""
    spots: list[Lanes] = []
    for start in range(0, channels, lanes):
        whole = start + lanes <= channels
        spots.append(whole_lanes(start, lanes) if whole else k.some(start, channels - start, lanes))
    return [spots[i : i + TILE] for i in range(0, len(spots), TILE)]


def mean(
    k: Trace, piece: Value, x: Pointer, y: Pointer, status: Pointer, lead: Pointer, last: Pointer, *,
    geometry: Geometry, channels: int, type: Type,
) -> None:  # fmt: skip
    """The average of each window: a piece is a row of outputs. `lead` and `last` hold the divisor's two factors.

    The vector is over channels, which may be one; the forward pass is here for completeness, not for speed.
    """
    inputs, outputs = geometry.input_size, geometry.output_size
    sums = type.compute
    lanes = k.target.lanes(sums) if channels > 1 else 1
    rows = outputs[0] * outputs[1]
    image, line = piece // rows, piece % rows
    x_image = x.at(image * (count_of(inputs) * channels))
    ranges = [taps(k, geometry, axis, at) for axis, at in ((0, line // outputs[1]), (1, line % outputs[1]))]
    for o in k.range(outputs[2]):
        across = taps(k, geometry, 2, o)
        place = y.at(((image * rows + line) * outputs[2] + o) * channels)
        divisor = lead[line] * last[o]
        for spots in channel_tiles(k, channels, lanes):
            totals = [k.var(0.0, sums, lanes) for _ in spots]
            for i in k.range(*ranges[0][:2]):
                for j in k.range(*ranges[1][:2]):
                    for m in k.range(*across[:2]):
                        a, b, c = (r[2](t) for r, t in zip((*ranges, across), (i, j, m), strict=True))
                        source = x_image.at(((a * inputs[1] + b) * inputs[2] + c) * channels)
                        for total, spot in zip(totals, spots, strict=True):
                            total += source[spot]
            for total, spot in zip(totals, spots, strict=True):
                place[spot] = total / divisor


def taps(k: Trace, geometry: Geometry, axis: int, output: Value) -> tuple[Value, Value, Any]:
    """The first valid tap of an output on an axis, the one after the last, and the position of a tap."""
    kernel, dilation, size = geometry.kernel[axis], geometry.dilations[axis], geometry.input_size[axis]
    start = output * geometry.strides[axis] - geometry.pads[axis][0]
    low = k.most(0 - start, 0) + (dilation - 1)
    high = k.most(size - start, 0) + (dilation - 1)
    return low // dilation, k.least(high // dilation, kernel), lambda tap: start + tap * dilation


def broadcast(
    k: Trace, piece: Value, dy: Pointer, dx: Pointer, status: Pointer, items: Value, divisor: Value, *,
    elements: int, channels: int, band: int, type: Type, sums: Type, stream: bool,
) -> None:  # fmt: skip
    """One window over everything: each of `elements` positions gets dy / divisor; a piece is `band` items."""
    first = piece * band
    end = k.least(first + band, items)
    if channels == 1:
        _fill_planes(k, dy, dx, divisor, first, end, elements, sums, stream)
        return
    lanes = k.target.lanes(sums)
    for item in k.range(first, end):
        most = group(channels, type) if stream else elements
        stage = Stage(k, dx.at(item * (elements * channels)), most * channels, stream=stream)
        for begin in k.range(0, elements, most):
            stop, to = k.least(begin + most, elements), stage.room()
            for spots in channel_tiles(k, channels, lanes):
                shares = [k.to(type.compute, k.to(sums, dy.at(item * channels)[spot]) / divisor) for spot in spots]
                for element in k.range(stop - begin):
                    for spot, share in zip(spots, shares, strict=True):
                        to.at(element * channels)[spot] = share
            stage.send((stop - begin) * channels)
        stage.finish()


def _fill_planes(
    k: Trace, dy: Pointer, dx: Pointer, divisor: Value, first: Value, end: Value, elements: int, sums: Type,
    stream: bool,
) -> None:  # fmt: skip
    """Planes with one number each. What a short one's last vector is too long is written over by the next plane."""
    type = dx.type
    kind = raw(type)
    lanes = k.target.vector_bytes // kind.bytes

    def share(item: Value) -> Value:
        number = narrow(k, k.to(type.compute, k.to(sums, dy[item]) / divisor), type)
        return k.spread(k.bits(kind, number), lanes)

    if elements > MOST_FILLED * lanes:
        for item in k.range(first, end):
            place, value = dx.at(item * elements).viewed(kind), share(item)
            for at in k.vectors(elements, lanes=lanes, align=place if stream else None):
                place.store(at, value, stream=stream)
        return
    most = group(elements, type)
    stage = Stage(k, dx.at(first * elements), most * elements, stream=stream)
    for begin in k.range(first, end, most):
        stop, to = k.least(begin + most, end), stage.room().viewed(kind)
        for item in k.range(begin, stop):
            place, value = to.at((item - begin) * elements), share(item)
            for start in range(0, elements // lanes * lanes, lanes):
                place[whole_lanes(start, lanes)] = value
            if elements % lanes:
                tail = k.some(elements // lanes * lanes, elements % lanes, lanes)
                ours = (end - item) * elements >= -(-elements // lanes) * lanes
                with k.when(ours):
                    place[whole_lanes(tail.start, lanes)] = value
                with k.when(k.no(ours)):
                    place[tail] = value
        stage.send((stop - begin) * elements)
    stage.finish()


def count_of(sizes: tuple[int, ...]) -> int:
    return sizes[0] * sizes[1] * sizes[2]
