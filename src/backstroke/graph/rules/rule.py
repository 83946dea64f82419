"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..tensors import Op, Tensor

Gradients = Sequence["Tensor | None"]


@dataclass(frozen=True)
class Rule:
    """How the gradients of a forward op's inputs come from those of its outputs.

    `inputs` are the inputs that a gradient flows to, None if it is all; others are shapes, axes, indices. `outputs`
    are those it comes in at.
    """

    gradient: Callable[[Op], Gradients]
    inputs: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = (0,)

    def reaches(self, i: int) -> bool:
        """Whether a gradient flows to input `i`."""
        return self.inputs is None or i in self.inputs

    def starts(self, i: int) -> bool:
        """Whether a gradient may come in at output `i`."""
        return self.outputs is None or i in self.outputs
