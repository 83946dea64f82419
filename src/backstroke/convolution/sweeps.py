"""Convolution as geometry: which input positions an output position reads, through which taps of the kernel.

Forward pass and input gradient are the same here, a *sweep*: sums of products with shifted inputs. A stride in the
forward pass is a step of the reading; in the gradient it becomes phases, each a sweep of step 1 that fills every
`stride`-th output position, so nothing is ever multiplied by an inserted zero.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..errors import UnsupportedError
from ..geometry import Geometry

MOST_PHASES = 1024  # each is traced by itself: 256 of them take half a minute


@dataclass(frozen=True)
class Axis:
    """One axis: output `first + spread * q`, for q in range(size), reads input `step * q + offset` for each offset.

    `taps` are the positions along the kernel that the offsets belong to. Offsets ascend in equal steps.
    """

    size: int
    step: int
    offsets: tuple[int, ...]
    taps: tuple[int, ...]
    first: int = 0
    spread: int = 1

    def seen(self, place: int, extent: int) -> range:
        """Which of the offsets meet an input of `extent` positions, for output `place` of those of the phase."""
        found = [i for i, o in enumerate(self.offsets) if 0 <= self.step * place + o < extent]
        return range(found[0], found[-1] + 1) if found else range(0)

    @property
    def pitch(self) -> int:
        """How far two neighbouring offsets are apart."""
        return self.offsets[1] - self.offsets[0] if len(self.offsets) > 1 else 0


Phase = tuple[Axis, Axis, Axis]


@dataclass(frozen=True)
class Sweep:
    """A whole forward pass or input gradient of one image: sizes over three spatial axes, and the phases."""

    input_size: tuple[int, int, int]
    output_size: tuple[int, int, int]
    kernel: tuple[int, int, int]
    phases: tuple[Phase, ...]

    @property
    def spread(self) -> tuple[int, int, int]:
        """The distance between neighbouring outputs of a phase."""
        first = self.phases[0]
        return first[0].spread, first[1].spread, first[2].spread

    @property
    def step(self) -> tuple[int, int, int]:
        """The distance between the inputs of neighbouring outputs."""
        first = self.phases[0]
        return first[0].step, first[1].step, first[2].step

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest offset of any phase, per axis; (0, 0) where no tap ever meets the input."""
        found = []
        for axis in range(3):
            offsets = [o for phase in self.phases for o in phase[axis].offsets]
            found.append((min(offsets, default=0), max(offsets, default=0)))
        return tuple(found)

    @property
    def taps(self) -> int:
        """Products per output position and channel pair, summed over the phases."""
        return sum(tap_count(phase) for phase in self.phases)

    @property
    def inside(self) -> bool:
        """Whether every read meets the input: then nothing needs to be padded."""
        return all(
            axis.size == 0
            or not axis.offsets
            or (axis.offsets[0] >= 0 and (axis.size - 1) * axis.step + axis.offsets[-1] < size)
            for phase in self.phases
            for axis, size in zip(phase, self.input_size, strict=True)
        )


def tap_count(phase: Phase) -> int:
    """The taps that a phase uses."""
    return len(phase[0].offsets) * len(phase[1].offsets) * len(phase[2].offsets)


def tap_indices(phase: Phase, kernel: tuple[int, int, int]) -> list[int]:
    """The flat places in the kernel of a phase's taps, in the order of its offsets."""
    return [(a * kernel[1] + b) * kernel[2] + c for a, b, c in itertools.product(*(axis.taps for axis in phase))]


def forward(geometry: Geometry) -> Sweep:
    """The sweep of the forward pass; the geometry has three axes."""
    axes = []
    for i in range(3):
        offsets = [tap * geometry.dilations[i] - geometry.pads[i][0] for tap in range(geometry.kernel[i])]
        found = dict(zip(offsets, range(geometry.kernel[i]), strict=True))
        axes.append([_axis(geometry.output_size[i], geometry.strides[i], found, geometry.input_size[i], 0, 1)])
    return _sweep(geometry.input_size, geometry.output_size, geometry.kernel, axes)


def input_gradient(geometry: Geometry) -> Sweep:
    """The sweep that makes the input's gradient out of the output's; the geometry has three axes."""
    count = math.prod(min(s, n) for s, n in zip(geometry.strides, geometry.input_size, strict=True))
    if count > MOST_PHASES:
        raise UnsupportedError(
            f"strides: {geometry.strides} over {geometry.input_size} given; the gradient of x would be {count} "
            f"interleaved convolutions, expected {MOST_PHASES} at most"
        )
    axes = []
    for i in range(3):
        stride, size = geometry.strides[i], geometry.input_size[i]
        phases = []
        for first in range(min(stride, size)):
            found = {}
            for tap in range(geometry.kernel[i]):
                offset, rest = divmod(first + geometry.pads[i][0] - tap * geometry.dilations[i], stride)
                if rest == 0:
                    found[offset] = tap
            phases.append(_axis(-(-(size - first) // stride), 1, found, geometry.output_size[i], first, stride))
        axes.append(phases)
    return _sweep(geometry.output_size, geometry.input_size, geometry.kernel, axes)


def _axis(size: int, step: int, found: dict[int, int], extent: int, first: int, spread: int) -> Axis:
    """An axis without the taps that meet the input nowhere."""
    useful = [o for o in sorted(found) if (size - 1) * step + o >= 0 and o < extent]
    return Axis(size, step, tuple(useful), tuple(found[o] for o in useful), first, spread)


def _sweep(inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: tuple[int, ...], axes: list[list[Axis]]) -> Sweep:
    phases = tuple((a, b, c) for a, b, c in itertools.product(*axes))
    return Sweep(_three(inputs), _three(outputs), _three(kernel), phases)


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    a, b, c = sizes
    return a, b, c
