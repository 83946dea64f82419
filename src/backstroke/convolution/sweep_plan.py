"""What the plans of all sweeps have in common: how the work is cut into boxes, and how the weights are packed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..jit.types import Type, i32, i64
from .sweeps import Sweep, tap_count, tap_indices
from .tiles import least

if TYPE_CHECKING:
    from ..jit.trace import Pointer, Trace, Value


class SweepPlan:
    """A sweep's boxes and packed weights; what is declared here is a field of each kind of plan."""

    sweep: Sweep
    layout: str
    images: int
    groups: int
    inputs: int
    outputs: int
    box: tuple[int, int, int, int]
    span: int  # output channels of a piece
    paired: bool  # whether two input channels of bfloat16 are one of the sweep's
    type: Type

    def block(self, lanes: int) -> int:
        """Output channels whose packed weights lie side by side."""
        raise NotImplementedError

    def blocks(self, lanes: int) -> int:
        return -(-self.outputs // self.block(lanes))

    @property
    def boxes(self) -> tuple[int, int, int, int]:
        """How many boxes there are on each axis."""
        sizes = (self.images, *self.sweep.output_size)
        return tuple(-(-n // b) for n, b in zip(sizes, self.box, strict=True))  # type: ignore[return-value]

    @property
    def spans(self) -> int:
        """How many pieces share a box."""
        return -(-self.outputs // self.span)

    @property
    def pieces(self) -> int:
        return self.groups * math.prod(self.boxes) * self.spans

    @property
    def staged_size(self) -> tuple[int, int, int]:
        """The positions of the input that a box reads."""
        sweep = self.sweep
        sizes = []
        for size, spread, step, (low, high) in zip(self.box[1:], sweep.spread, sweep.step, sweep.reach, strict=True):
            sizes.append((-(-size // spread) - 1) * step + high - low + 1)
        return sizes[0], sizes[1], sizes[2]

    @property
    def unit(self) -> int:
        """Input channels that are multiplied at once."""
        return 2 if self.paired else 1

    @property
    def steps(self) -> int:
        """How many such there are."""
        return self.inputs // self.unit

    @property
    def slice_depth(self) -> int:
        """How many of them have packed weights that lie together."""
        return self.steps

    def seen(self, memory: Pointer) -> Pointer:
        """Staged inputs or packed weights, as what they are."""
        return memory.viewed(i32) if self.paired else memory

    def tap_origins(self, lanes: int) -> list[tuple[int, int, int, int]]:
        """(phase, flat tap of the sweep's phase, origin, step over input channels) of a block's packed weights."""
        each = [(number, tap) for number, phase in enumerate(self.sweep.phases) for tap in range(tap_count(phase))]
        block = self.block(lanes)
        if self.layout == "NXC":
            return [(*tap, place * self.steps * block, block) for place, tap in enumerate(each)]
        return [(*tap, place * block, len(each) * block) for place, tap in enumerate(each)]

    def packed_taps(self, lanes: int) -> tuple[tuple[int, int, int], ...]:
        """(flat tap of the kernel, origin, step over input channels) of all packed weights."""
        flat = [tap_indices(phase, self.sweep.kernel) for phase in self.sweep.phases]
        return tuple((flat[number][tap], origin, step) for number, tap, origin, step in self.tap_origins(lanes))

    def packed_block(self, lanes: int) -> int:
        """Elements of one block's packed weights of one slice."""
        return self.sweep.taps * self.slice_depth * self.block(lanes)


Place = tuple["Value", "Value | int", "Value | int", "list[Value | int]"]


def place_of_piece(k: Trace, plan: SweepPlan, piece: Value) -> Place:
    """Which span and group a piece is of, and the first image and the first output position of its box."""
    span = piece % plan.spans if plan.spans > 1 else k.value(0, i64)
    rest, index = piece // plan.spans if plan.spans > 1 else piece, []
    for count in reversed(plan.boxes):
        index.append(rest % count if count > 1 else k.value(0, i64))
        rest = rest // count if count > 1 else rest
    group = rest if plan.groups > 1 else k.value(0, i64)
    image, *corner = (i * b if n > 1 else 0 for i, b, n in zip(reversed(index), plan.box, plan.boxes, strict=True))
    return span, group, image, corner


def counts_of_piece(k: Trace, plan: SweepPlan, image: Value | int, corner: list[Value | int]) -> list[Value | int]:
    """How many images and positions on each axis there are in a box: all but the last have all of theirs."""
    sizes, starts = (plan.images, *plan.sweep.output_size), (image, *corner)
    return [
        box if size % box == 0 else least(k, box, size - start)
        for size, box, start in zip(sizes, plan.box, starts, strict=True)
    ]


def first_input(sweep: Sweep, corner: list[Value | int]) -> list[Value | int]:
    """The first input position that a box reads; it may lie before the input."""
    lows = (low for low, _ in sweep.reach)
    return [
        c // spread * step + low for c, spread, step, low in zip(corner, sweep.spread, sweep.step, lows, strict=True)
    ]
