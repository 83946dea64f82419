"""What is shown while a training runs: a bar with loss, metric, images/s and time left; a line for each epoch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

_SHOWN = 0.1  # seconds between two looks at the bar


class Progress:
    """Shows nothing."""

    def start(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        """An epoch begins, or goes on after `done` of its samples."""

    def step(self, done: int, results: Mapping[str, float]) -> None:
        """So many samples of the epoch are done; `results` are its means so far."""

    def end(self, line: Mapping[str, float]) -> None:
        """An epoch is over."""

    def close(self) -> None:
        """The training is over, or has failed."""


class Lines(Progress):
    """A line on stderr for each epoch."""

    def end(self, line: Mapping[str, float]) -> None:
        print(_text(line), file=sys.stderr, flush=True)


class JsonLines(Progress):
    """A JSON object on stdout for each epoch: for machines."""

    def end(self, line: Mapping[str, float]) -> None:
        print(json.dumps(line), flush=True)


class Bar(Progress):
    """A bar of rich, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[results]}"), TextColumn("{task.fields[speed]:,.0f} images/s"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task: Any = None
        self._began, self._looked, self._first, self._before = 0.0, 0.0, 0, 0

    def start(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        self._before = (epoch - 1) * samples
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("", total=epochs * samples, results="", speed=0.0)
            self._began, self._first = time.perf_counter(), self._before + done
        self._bar.update(self._task, completed=self._before + done, description=f"epoch {epoch}/{epochs}")

    def step(self, done: int, results: Mapping[str, float]) -> None:
        now = time.perf_counter()
        if now - self._looked >= _SHOWN:
            self._looked, total = now, self._before + done
            speed = (total - self._first) / max(now - self._began, 1e-9)
            self._bar.update(self._task, completed=total, results=_numbers(results), speed=speed)
            self._bar.refresh()

    def end(self, line: Mapping[str, float]) -> None:
        self._bar.console.print(_text(line), highlight=False)

    def close(self) -> None:
        if self._task is not None:
            self._bar.stop()


def shown(progress: bool | Progress | None) -> Progress:
    """What `fit(progress=...)` asks for: None is a bar on a terminal, and nothing elsewhere."""
    if isinstance(progress, Progress):
        return progress
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or (progress is None and not terminal):
        return Progress()
    if not terminal:
        return Lines()
    try:
        return Bar()
    except ImportError:  # rich is in the extra `train`
        return Lines()


def _text(line: Mapping[str, float]) -> str:
    rest = {name: value for name, value in line.items() if name not in ("epoch", "step", "seconds", "lr")}
    return f"epoch {line['epoch']:>3.0f}  {_numbers(rest)}  {line['seconds']:.1f} s"


def _numbers(results: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in results.items())
