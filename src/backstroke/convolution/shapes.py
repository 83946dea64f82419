"""What the shapes of x and w and the window arguments of a convolution say, checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..geometry import Geometry, in_layout, spatial_axes

Axes = int | Sequence[int]
Pads = int | Sequence[int] | Sequence[Sequence[int]]
Shape = tuple[int, ...]


class ConvGrads(NamedTuple):
    """The gradients of a convolution; None where one was not asked for."""

    dx: Any
    dw: Any
    db: Any


@dataclass(frozen=True)
class Shapes:
    """One convolution: its windows, its groups, its layout, and the shapes of its arrays."""

    geometry: Geometry
    group: int
    layout: str
    x: Shape
    w: Shape

    @property
    def outputs(self) -> int:
        """Output channels."""
        return self.w[0 if self.layout == "NCX" else -1]

    @functools.cached_property
    def y(self) -> Shape:
        """The shape of y and dy."""
        return in_layout((self.x[0], self.outputs), self.geometry.output_size, self.layout)

    @property
    def products(self) -> int:
        """Multiplications of the convolution, those with padding included."""
        inside = self.w[1] if self.layout == "NCX" else self.w[-2]
        return math.prod(self.y) * inside * math.prod(self.geometry.kernel)

    @property
    def b(self) -> Shape:
        """The shape of the bias and of db."""
        return (self.outputs,)


def shapes_of(
    x: Sequence[int],
    w: Sequence[int],
    strides: Axes = 1,
    pads: Pads = 0,
    dilations: Axes = 1,
    group: int = 1,
    auto_pad: str = "none",
    layout: str = "NCX",
) -> Shapes:
    """The convolution of an input and weights of these shapes; a ValueError or TypeError that names what is wrong."""
    axes, kernel_axes = _axes(tuple(x), tuple(w), layout)
    if strides is None:  # which means the kernel's in a geometry
        raise TypeError("strides: None given, expected an int, or one per spatial axis")
    geometry = Geometry.of(
        [x[axis] for axis in axes],
        _kernel(tuple(w), kernel_axes),
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        kernel_name="w",
    )
    return shapes_with(geometry, x, w, group=group, layout=layout)


def shapes_with(
    geometry: Geometry,
    x: Sequence[int],
    w: Sequence[int],
    *,
    group: int,
    layout: str,
    names: tuple[str, str] = ("x", "w"),
) -> Shapes:
    """As `shapes_of`, where the windows over x are known already. `names` is what errors call the two."""
    x, w = tuple(x), tuple(w)
    if isinstance(group, bool) or not hasattr(group, "__index__"):
        raise TypeError(f"group: {group!r} given, expected an integer >= 1")
    if (count := group.__index__()) < 1:
        raise ValueError(f"group: {group!r} given, expected an integer >= 1")
    channels, per_group = (x[1], w[1]) if layout == "NCX" else (x[-1], w[-2])
    if channels != per_group * count:
        raise ValueError(
            f"{names[1]}: shape {w} given, {per_group} input channels in each of {count} groups,"
            f" expected {channels} together, as in {names[0]} of shape {x}"
        )
    shapes = Shapes(geometry, count, layout, x, w)
    if shapes.outputs % count:
        raise ValueError(
            f"{names[1]}: shape {w} given, {shapes.outputs} output channels, expected a multiple of the {count} groups"
        )
    geometry.require_int64()
    return shapes


def _axes(x: Shape, w: Shape, layout: str) -> tuple[range, range]:
    """The spatial axes of x and of w."""
    axes = spatial_axes(x, layout, "x")
    if len(w) != len(x):
        raise ValueError(f"w: shape {w} given, expected {len(x)} axes as in x of shape {x}")
    return axes, range(2, len(w)) if layout == "NCX" else range(len(w) - 2)


def _kernel(w: Shape, axes: range) -> Shape:
    kernel = tuple(w[axis] for axis in axes)
    if 0 in kernel:
        raise ValueError(f"w: shape {w} given, expected a kernel of at least 1 on every spatial axis")
    return kernel


__all__ = ["Axes", "ConvGrads", "Pads", "Shape", "Shapes", "shapes_of", "shapes_with"]
