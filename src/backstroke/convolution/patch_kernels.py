"""Patches put where they belong: the input's gradient where windows lie apart and strides are large.

Cut into phases, such a gradient is a sweep for each place within a stride. But where no two windows meet it is one
matrix product, whose channels are the channels and taps of the windows, and every element of it goes to a place of its
own. Here it goes there; a piece is a row of the result's rows, written by nobody else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..geometry import Geometry, in_layout
from .shapes import Shapes

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value

MOST_SWEEPS = 64  # phases that are rather traced one by one


def patches_of(shapes: Shapes) -> Shapes | None:
    """The product that gives all patches, where this is the way: a convolution of 1 on channels times taps."""
    g = shapes.geometry
    phases = math.prod(min(stride, size) for stride, size in zip(g.strides, g.input_size, strict=True))
    apart = all(extent <= stride for extent, stride in zip(g.extents, g.strides, strict=True))
    if phases <= MOST_SWEEPS or not apart or any(d != 1 for d in g.dilations):
        return None
    taps, ones = math.prod(g.kernel), (1,) * g.rank
    channels = (shapes.x[1] if shapes.layout == "NCX" else shapes.x[-1]) * taps
    x = in_layout((shapes.x[0], channels), g.output_size, shapes.layout)
    inside = channels // shapes.group
    w = (shapes.outputs, inside, *ones) if shapes.layout == "NCX" else (*ones, inside, shapes.outputs)
    return Shapes(Geometry.of(g.output_size, 1, strides=1), shapes.group, shapes.layout, x, w)


def pieces(geometry: Geometry, images: int, channels: int, layout: str) -> int:
    """Planes of a channel, or rows of pixels; the geometry has three axes."""
    depth, height, _ = geometry.input_size
    return images * depth * (channels if layout == "NCX" else height)


def place_patches(
    k: Trace, piece: Value, patches: Pointer, target: Pointer, *, geometry: Geometry, channels: int, groups: int,
    layout: str,
) -> None:  # fmt: skip
    """One piece: what no window holds is zero."""
    (depth, height, width), (_, rows, columns) = geometry.input_size, geometry.output_size
    if layout == "NCX":
        plane, z = piece // depth, piece % depth
        for y in k.range(height):
            line = target.at((piece * height + y) * width)
            for at in k.vectors(width, lanes=k.target.lanes(target.type)):
                line[at] = k.value(0.0, target.type.compute, at.count)
            (oz, tz, in_z), (oy, ty, in_y) = (_window(geometry, axis, place) for axis, place in ((0, z), (1, y)))
            first = plane * math.prod(geometry.kernel) + (tz * geometry.kernel[1] + ty) * geometry.kernel[2]
            with k.when(in_z & in_y):
                for tap in k.range(geometry.kernel[2]):
                    found = patches.at((((first + tap) * geometry.output_size[0] + oz) * rows + oy) * columns)
                    for o in k.range(columns):
                        x = o * geometry.strides[2] + tap - geometry.pads[2][0]
                        with k.when(k.below(x, width)):
                            line[x] = found[o]
        return
    y, rest = piece % height, piece // height
    image, z = rest // depth, rest % depth
    (oz, tz, in_z), (oy, ty, in_y) = (_window(geometry, axis, place) for axis, place in ((0, z), (1, y)))
    inside, taps = channels // groups, math.prod(geometry.kernel)
    for x in k.range(width):
        pixel = target.at((piece * width + x) * channels)
        ox, tx, in_x = _window(geometry, 2, x)
        here = in_z & in_y & in_x
        tap = (tz * geometry.kernel[1] + ty) * geometry.kernel[2] + tx
        number = ((image * geometry.output_size[0] + oz) * rows + oy) * columns + ox
        for group in k.range(groups):
            patch = patches.at(k.where(here, (number * groups + group) * taps + tap, 0) * inside)
            for at in k.vectors(inside, lanes=k.target.lanes(target.type)):
                pixel.at(group * inside)[at] = k.where(here, patch[at], 0.0)


def _window(geometry: Geometry, axis: int, place: Value) -> tuple[Value, Value, Value]:
    """Which window a place is in, at which tap, and whether there is one."""
    behind = place + geometry.pads[axis][0]
    window = behind // geometry.strides[axis]
    tap = behind - window * geometry.strides[axis]
    return window, tap, (tap < geometry.kernel[axis]) & (window < geometry.output_size[axis])
