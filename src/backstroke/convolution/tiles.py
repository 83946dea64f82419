"""What the convolution nests are made of: the register tile, turned blocks, boxes of input staged with padding.

The register tile is a sum of outer products, `totals[i][j] += a[rows[i]] * b[j]`: a few scalars, each spread over a
vector, times a few vectors. Everything in this family is loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..jit.convert import add_products, pairs
from ..jit.types import Type, i32, i64

if TYPE_CHECKING:
    from ..jit.trace import Lanes, Pointer, Trace, Value, Var

Totals = list[list["Var"]]
UNROLLED_ROW = 16  # vectors of a staged row that are traced one by one


@dataclass(frozen=True)
class View:
    """How far the next image, the next channel and the next position on each axis are away, in elements."""

    image: int
    channel: int
    place: tuple[int, int, int]

    def at(self, place: Sequence[int]) -> int:
        """The distance of a position from the first one."""
        return sum(a * b for a, b in zip(self.place, place, strict=True))

    def of(self, z: Value | int, y: Value | int, x: Value | int) -> Any:
        """The same for positions that are known when the kernel runs."""
        return z * self.place[0] + y * self.place[1] + x * self.place[2]


def tensor_view(channels: int, size: Sequence[int], layout: str) -> View:
    """How a whole tensor lies."""
    z, y, x = size
    if layout == "NCX":
        return View(channels * z * y * x, z * y * x, (y * x, x, 1))
    return View(channels * z * y * x, 1, (y * x * channels, x * channels, channels))


def apart(count: int) -> int:
    """An odd number of cache lines that hold so many elements: what is so far apart does not collide in a cache."""
    return (-(-count // 16) | 1) * 16


def least(k: Trace, a: Value | int, b: Value | int) -> Value | int:
    """The smaller of two numbers, now where both are known."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else k.least(a, b)


def new_totals(k: Trace, rows: int, vectors: int, type: Type) -> Totals:
    """A register tile of zeros."""
    return [[k.var(0.0, type, k.target.lanes(type)) for _ in range(vectors)] for _ in range(rows)]


def accumulate(k: Trace, totals: Totals, a: Pointer, rows: Sequence[int], b: Pointer) -> None:
    """`totals[i][j] += a[rows[i]] * b[j]`, where b holds vectors one after the other; or pairs of numbers."""
    lanes = totals[0][0].lanes
    vectors = [b[whole(j * lanes, lanes)] for j in range(len(totals[0]))]
    paired = b.type is i32
    for row, place in zip(totals, rows, strict=True):
        scale = k.spread(a.at(place).viewed(i32)[0] if paired else a[place], lanes)
        for total, vector in zip(row, vectors, strict=True):
            sums = add_products(k, scale, vector, total.read()) if paired else k.muladd(scale, vector, total)
            total.set(sums)


def whole(start: Value | int, lanes: int) -> Lanes:
    """Whole lanes from `start` on."""
    from ..jit.trace import Lanes

    return Lanes(start, lanes)


def some(k: Trace, start: Value | int, end: Value | int, lanes: int) -> Lanes:
    """Lanes from `start` on, of which those before `end` exist; there may be none."""
    if isinstance(start, int) and isinstance(end, int) and start + lanes <= end:
        return whole(start, lanes)
    return within(k, start, 0, end, lanes)


def within(k: Trace, start: Value | int, low: Value | int, high: Value | int, lanes: int) -> Lanes:
    """Lanes from `start` on, of which those from `low` to `high` exist."""
    from ..jit.trace import Lanes

    if lanes == 1:
        position = k.value(start, i64)
        return Lanes(start, 1, (position >= low) & (position < high))
    ramp = k.ramp(i32, lanes, 1)
    above = ramp >= k.spread(k.to(i32, k.value(low, i64) - start), lanes)
    below = ramp < k.spread(k.to(i32, k.value(high, i64) - start), lanes)
    return Lanes(start, lanes, above & below)


def joined(k: Trace, values: Sequence[Value]) -> Value:
    """A vector, or two as pairs."""
    return values[0] if len(values) == 1 else pairs(k, *values)


def parted(k: Trace, vectors: Sequence[Value], count: int = 0) -> list[Value]:
    """Of n vectors that follow one another, every n-th element: those with the first `count` (or all) remainders."""
    step, lanes, result = len(vectors), vectors[0].lanes, []
    if step == 1:
        return [*vectors]
    for remainder in range(count or step):
        kept = vectors[0]
        picks = [remainder + i * step for i in range(lanes)]
        for number in range(1, step):
            # What is already right stays; what the next vector has is taken from it.
            order = []
            for i, pick in enumerate(picks):
                owner, lane = divmod(pick, lanes)
                order.append(lanes + lane if owner == number else lane if number == 1 and owner == 0 else i)
            kept = k.shuffle(kept, vectors[number], order)
        result.append(kept)
    return result


def padded_row(
    k: Trace, rows: Sequence[Pointer], start: Value | int, count: int, size: int, lanes: int, step: int = 1
) -> Iterator[tuple[Lanes, list[Value]]]:
    """`count` elements, `step` apart, of rows of `size` from position `start` on, zero outside.

    -> where each vector goes, and it, for each row.
    """
    kind = rows[0].type.compute
    if step > 1:
        for at in k.vectors(count, lanes=lanes):
            starts = [at.start * step + (start + i * lanes) for i in range(step)]
            found = [[row[within(k, place, 0, size, lanes)] for place in starts] for row in rows]
            yield at, [parted(k, vectors, 1)[0] for vectors in found]
        return
    if isinstance(start, int) and count <= UNROLLED_ROW * lanes:
        for v in range(0, count, lanes):
            goal = some(k, v, count, lanes)
            low, high = max(0, start + v), min(size, start + v + min(lanes, count - v))
            if high <= low:
                yield goal, [k.value(0.0, kind, lanes) for _ in rows]
            elif high - low == lanes:
                yield goal, [row[whole(start + v, lanes)] for row in rows]
            else:
                yield goal, [row[within(k, start + v, low, high, lanes)] for row in rows]
        return
    for at in k.vectors(count, lanes=lanes):
        bound: Value | int = size if at.mask is None else k.least(start + k.value(count, i64), size)
        yield at, [row[within(k, at.start + start, 0, bound, lanes)] for row in rows]


def box_lines(
    k: Trace, box: Sequence[int], corner: Sequence[Value | int], size: Sequence[int], steps: Sequence[int] = (1, 1, 1)
) -> Iterator[tuple[Value, Value, Value, Value, Value]]:
    """The lines of a box: its place in the box (z, y), in the input, and whether it lies in the input."""
    for z in k.range(box[0]):
        for y in k.range(box[1]):
            at_z, at_y = z * steps[0] + corner[0], y * steps[1] + corner[1]
            yield z, y, at_z, at_y, k.below(at_z, size[0]) & k.below(at_y, size[1])


def stage_planes(
    k: Trace, source: Pointer, view: View, size: Sequence[int], images: Value | int, channels: Value | int,
    corner: Sequence[Value | int], box: Sequence[int], target: Pointer, staged: View, steps: Sequence[int] = (1, 1, 1),
) -> None:  # fmt: skip
    """Copy a box of positions of some images and channels, plane by plane: zero where it leaves the input.

    `corner` is where the box begins, which may be before the input; the target is laid out as `staged` says. Where it
    holds pairs, `channels` counts those: two neighbouring channels of bfloat16. Positions are `steps` apart.
    """
    lanes, unit = k.target.lanes(target.type), 2 if target.type is i32 else 1
    for n in k.range(images):
        for c in k.range(channels):
            for z, y, at_z, at_y, exists in box_lines(k, box, corner, size, steps):
                goal = target.at(n * staged.image + c * staged.channel + z * staged.place[0] + y * staged.place[1])
                with k.when(exists):
                    place = n * view.image + c * (unit * view.channel) + at_z * view.place[0] + at_y * view.place[1]
                    rows = [source.at(place).at(i * view.channel) for i in range(unit)]
                    for at, values in padded_row(k, rows, corner[2], box[2], size[2], lanes, steps[2]):
                        goal[at] = joined(k, values)
                with k.when(k.no(exists)):
                    for at in k.vectors(box[2], lanes=lanes):
                        goal[at] = k.value(0, target.type, lanes)


def stage_pixels(
    k: Trace, source: Pointer, view: View, size: Sequence[int], images: Value | int, channels: Value | int,
    corner: Sequence[Value | int], box: Sequence[int], target: Pointer, staged: View, padded: int,
) -> None:  # fmt: skip
    """The same with channels innermost on both sides; the target has room for `padded` channels, zero beyond those."""
    lanes = k.target.lanes(target.type)
    for n in k.range(images):
        for z, y, at_z, at_y, exists in box_lines(k, box, corner, size):
            line = n * view.image + k.where(exists, at_z * view.place[0] + at_y * view.place[1], 0)
            for x in k.range(box[2]):
                at_x = x + corner[2]
                here = exists & k.below(at_x, size[2])
                count = k.where(here, channels, 0)
                pixel = source.at(line + k.where(here, at_x, 0) * view.place[2])
                goal = target.at(n * staged.image + z * staged.place[0] + y * staged.place[1] + x * staged.place[2])
                for at in k.vectors(padded, lanes=lanes):
                    goal[at] = pixel[some(k, k.value(at.start, i64), count, lanes)]


def stage_turned(
    k: Trace, source: Pointer, view: View, size: Sequence[int], images: Value | int, channels: Value | int,
    corner: Sequence[Value | int], box: Sequence[int], target: Pointer, staged: View, padded: int,
) -> None:  # fmt: skip
    """Planes to channels innermost; the target has room for `padded` channels, whole vectors, zero beyond those.

    Where it holds pairs, those are of neighbouring pixels, the last of which may be zero.
    """
    lanes, unit = k.target.lanes(target.type), 2 if target.type is i32 else 1
    for n in k.range(images):
        for z, y, at_z, at_y, exists in box_lines(k, box, corner, size):
            place = n * view.image + k.where(exists, at_z * view.place[0] + at_y * view.place[1], 0)
            goal = target.at(n * staged.image + z * staged.place[0] + y * staged.place[1])
            for j in range(padded // lanes):
                for at in k.vectors(box[2], lanes=lanes):
                    rows = []
                    start = at.start + corner[2]
                    for i in range(lanes):
                        channel = j * lanes + i
                        high = k.where(exists & (k.value(channel, i64) < channels), size[2], 0)
                        line = source.at(place + k.least(channel, k.value(channels, i64) - 1) * view.channel)
                        rows.append(line[within(k, start, 0, high, lanes)])
                    count = lanes if at.mask is None else k.value(box[2], i64) - at.start
                    columns = k.turned(rows)
                    for i in range(0, lanes, unit):
                        spot = goal.at((at.start + i) // unit * staged.place[2] + j * lanes)
                        with nullcontext() if at.mask is None else k.when(k.value(i, i64) < count):
                            spot[whole(0, lanes)] = joined(k, columns[i : i + unit])
