"""From times to a table, and to the bars that the project sets itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .problems import Problem


@dataclass(frozen=True)
class Timed:
    """One problem: the bytes to move; seconds by peer, as called and with the output given; and the memory's limit."""

    problem: Problem
    bytes: int
    called: dict[str, float]
    given: dict[str, float]
    limit: float | None = None

    @property
    def share(self) -> float | None:
        """Our share of the memory's limit."""
        return self.limit / self.given["backstroke"] if self.limit else None

    def ratio(self, peer: str, how: str) -> float | None:
        """How many times as long the peer takes."""
        times: dict[str, float] = getattr(self, how)
        return times[peer] / times["backstroke"] if peer in times else None

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": str(self.problem),
            "group": self.problem.group,
            "called": self.called,
            "given": self.given,
            "share": self.share,
        }


@dataclass(frozen=True)
class Bar:
    """A figure to reach."""

    text: str
    least: float
    measure: Callable[[list[Timed]], float | None]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def least(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _ratios(group: str, peer: str, how: str, *, op: str = "") -> Callable[[list[Timed]], list[float | None]]:
    return lambda timed: [t.ratio(peer, how) for t in timed if t.problem.group == group and op in ("", t.problem.op)]


def _bar(text: str, bound: float, group: str, how: str, join: Callable[..., float | None], peer: str = "torch") -> Bar:
    pick = _ratios(group, peer, how)
    return Bar(text, bound, lambda timed: join(pick(timed)))


def bandwidth(timed: list[Timed]) -> float | None:
    """The best streaming bandwidth that was seen."""
    return max((t.bytes / t.limit for t in timed if t.limit), default=None)


def _small_types(timed: list[Timed]) -> list[float | None]:
    single = {t.problem.op: t.given["backstroke"] for t in timed if t.problem.group == "elementwise"}
    half = {t.problem.op: t.given["backstroke"] for t in timed if t.problem.group == "elementwise bfloat16"}
    return [single[op] / half[op] for op in single if op in half]


BARS = (
    _bar("elementwise, output given, each against torch", 1.5, "elementwise", "given", least),
    _bar("elementwise, as called, each against torch", 3.0, "elementwise", "called", least),
    Bar(
        "elementwise, least share of streaming bandwidth",
        0.85,
        lambda t: least(x.share for x in t if x.problem.group == "elementwise"),
    ),
    Bar("bfloat16 against our float32, geometric mean", 1.7, lambda t: geometric_mean(_small_types(t))),
    Bar("bfloat16 against our float32, each", 1.7, lambda t: least(_small_types(t))),
    _bar("softmax, output given, geometric mean against torch", 1.2, "softmax", "given", geometric_mean),
    _bar("softmax, output given, each against torch", 1.0, "softmax", "given", least),
    _bar("softmax along axis 1, each against torch", 2.0, "softmax axis 1", "given", least),
    _bar("1 to 10,000 elements, as called, each against torch", 1.0, "small", "called", least),
)


def row(timed: Timed) -> str:
    """One line of the table."""
    ours = timed.given["backstroke"]
    cells = [f"{timed.problem!s:44}", f"{_time(timed.called['backstroke'])} {_time(ours)}"]
    share = f"{100 * timed.share:4.0f} %" if timed.share else "      "
    cells.append(f"{timed.bytes / ours / 1e9:6.1f} GB/s {share}")
    for peer in timed.called:
        if peer == "backstroke":
            continue
        called, given = timed.ratio(peer, "called"), timed.ratio(peer, "given")
        cells.append(f"{peer} {called:6.2f} {f'{given:6.2f}' if given else '     -'}")
    return "  ".join(cells)


def bars(timed: list[Timed]) -> list[str]:
    """Each bar with its figure. A missed bar is said, not hidden."""
    lines = []
    for bar in BARS:
        figure = bar.measure(timed)
        if figure is None:
            lines.append(f"  not measured  {bar.text}")
        else:
            verdict = "reached" if figure >= bar.least else "MISSED "
            lines.append(f"  {verdict}  {figure:6.2f} (bar {bar.least:4.2f})  {bar.text}")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:9.1f} us" if seconds < 0.1 else f"{seconds * 1e3:9.1f} ms"
