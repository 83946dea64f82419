"""Where a `fit` is: which epoch, how far in it, what it has summed up. It goes into checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .losses import NOTHING, Sums

_PLAN = ("epochs", "batch_size", "accumulate", "samples", "shuffle", "patience")


@dataclass
class Run:
    """The plan of a `fit`, and its state."""

    epochs: int
    batch_size: int
    accumulate: int
    samples: int
    shuffle: bool
    patience: int | None
    epoch: int = 0  # whole ones that are done
    position: int = 0  # samples of this epoch that are done
    step: int = 0  # updates that are done
    sums: Sums = NOTHING
    best: float = math.inf  # validation loss
    waited: int = 0  # epochs since then
    stopped: bool = False

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or training was stopped early."""
        return self.stopped or self.epoch >= self.epochs

    @property
    def steps(self) -> int:
        """The updates of all epochs."""
        return self.epochs * -(-self.samples // (self.batch_size * self.accumulate))

    def advance(self, rows: int, sums: Sums) -> None:
        """An update was made with so many samples."""
        self.step += 1
        self.position += rows
        self.sums += sums

    def judge(self, loss: float) -> bool:
        """Take a validation loss into account; whether it is the best so far."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return self.patience is not None
        self.waited += 1
        self.stopped = self.patience is not None and self.waited >= self.patience
        return False

    def next_epoch(self) -> None:
        """The epoch is done."""
        self.epoch += 1
        self.position, self.sums = 0, NOTHING

    def check_same(self, plan: Run) -> None:
        """An interrupted `fit` goes on only with the arguments that it had."""
        for name in _PLAN:
            ours, given = getattr(self, name), getattr(plan, name)
            if ours != given:
                raise ValueError(f"{name} is {given}; expected {ours}, as in the training that was interrupted")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        return cls(**{**values, "sums": Sums(**values["sums"])})
