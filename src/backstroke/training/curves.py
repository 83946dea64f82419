"""Learning curves: in the terminal, and as a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trainer import Trainer

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille character: four rows of two


def text(values: Sequence[float], *, title: str = "", width: int = 64, height: int = 10) -> str:
    """A curve of the logarithms of positive values, in Braille dots, two across and four down in a character."""
    logs = [math.log(v) if v > 0 and math.isfinite(v) else math.nan for v in values]
    known = [v for v in logs if math.isfinite(v)]
    if not known:
        return f"{title}: nothing to show"
    low, high = min(known), max(known)
    columns, rows = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]
    last = None
    for column in range(columns):
        start = column * len(logs) // columns
        part = [v for v in logs[start : max((column + 1) * len(logs) // columns, start + 1)] if math.isfinite(v)]
        if not part:
            continue
        level = (sum(part) / len(part) - low) / (high - low) if high > low else 0.0
        row = round((1 - level) * (rows - 1))
        for dot in range(min(row, row if last is None else last), max(row, row if last is None else last) + 1):
            cells[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
        last = row
    lines = ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells]
    labels = [f"{math.exp(high):.4g}", *[""] * (height - 2), f"{math.exp(low):.4g}"]
    rows_of_text = [f"{'':>9} {title}", *(f"{label:>9} {line}" for label, line in zip(labels, lines, strict=True))]
    return "\n".join(line.rstrip() for line in rows_of_text)


def picture(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Draw losses and metric to a PNG (or what else the suffix of `path` names)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    history: list[dict[str, Any]] = trainer.history
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(trainer.losses) + 1), trainer.losses, color="0.75", linewidth=0.8, label="each step")
    steps = [line["step"] for line in history]
    metric = trainer.metric
    for axes, name in ((left, "loss"), (right, metric)):
        axes.plot(steps, [line[name] for line in history], marker=".", label="training")
        held = [(line["step"], line[f"val_{name}"]) for line in history if f"val_{name}" in line]
        if held:
            axes.plot(*zip(*held, strict=True), marker=".", label="validation")
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
        axes.legend()
    if all(value > 0 for value in trainer.losses):
        left.set_yscale("log")
    figure.savefig(path, dpi=120)
