"""Learning-rate schedules: by what the optimizer's rate is multiplied in each step of a `fit`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .. import arrays


@dataclass(frozen=True)
class Schedule:
    """A rise from 0 over the first `warmup` steps (a whole number, or a share of all), then `after`, down to `end`."""

    warmup: float = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= arrays.number(name, value) < math.inf:
                raise ValueError(f"{name} is {value}; expected a number that is not negative, and finite")

    def factor(self, step: int, total: int) -> float:
        """The factor of step `step`, counted from 0, of `total`."""
        rise = round(self.warmup * total) if 0 < self.warmup < 1 else int(self.warmup)
        if step < rise:
            return (step + 1) / (rise + 1)
        return self.after((step - rise) / max(1, total - rise))

    def after(self, share: float) -> float:
        """The factor when that share of the steps after the rise is done."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The schedule as plain values; `from_settings` makes it again."""
        return {"schedule": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Constant(Schedule):
    """The optimizer's own rate, after the warm-up."""

    def after(self, share: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """Down on a straight line from the optimizer's rate to `end` times that."""

    def after(self, share: float) -> float:
        return 1 + (self.end - 1) * min(share, 1)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Down on half a wave of the cosine from the optimizer's rate to `end` times that."""

    def after(self, share: float) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(share, 1))) / 2


SCHEDULES: dict[str, type[Schedule]] = {kind.__name__: kind for kind in (Constant, Linear, Cosine)}


def named(schedule: Any) -> Schedule:
    """A schedule, or the one of that name."""
    if isinstance(schedule, Schedule):
        return schedule
    for name, kind in SCHEDULES.items():
        if isinstance(schedule, str) and schedule.lower() == name.lower():
            return kind()
    raise ValueError(f"schedule is {schedule!r}; expected a Schedule, or one of {', '.join(SCHEDULES).lower()}")


def from_settings(settings: Mapping[str, Any]) -> Schedule:
    """The schedule that `settings` were taken of."""
    values = dict(settings)
    return SCHEDULES[values.pop("schedule")](**values)
