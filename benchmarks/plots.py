"""The plots of the report: one function each, drawn wide or narrow, in light or dark.

In an SVG every colour is a variable of the page's style sheet, so that the page decides what it looks like; a PNG has
the colours of its theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from . import summary
from .summary import NAMES, OURS, Ratios, Record

# By the names of the style sheet's variables. The light ones must differ: they are what is replaced.
LIGHT = {
    "ink": "#16202a", "muted": "#5a6672", "grid": "#dde3e8", "paper": "#ffffff", "band": "#f0f4f7",
    "backstroke": "#0b1f33", "torch": "#d1500a", "onednn": "#0b6fb8", "onnxruntime": "#a3459c", "jax": "#0a8a63",
    "numpy": "#87919c", "tensorflow-js": "#b08900",
}  # fmt: skip
DARK = {
    "ink": "#e8edf2", "muted": "#a0acb8", "grid": "#2c3742", "paper": "#10171e", "band": "#18212b",
    "backstroke": "#f4f8fb", "torch": "#ff8b4d", "onednn": "#5db4f5", "onnxruntime": "#e08ad8", "jax": "#41cf9f",
    "numpy": "#7d8995", "tensorflow-js": "#e3b93c",
}  # fmt: skip
_MARKS = {
    "backstroke": "o",
    "torch": "o",
    "onednn": "D",
    "onnxruntime": "s",
    "jax": "^",
    "numpy": "v",
    "tensorflow.js": "P",
}


@dataclass(frozen=True)
class Look:
    """How a plot is to be drawn: its width in inches, narrow or not, and its colours."""

    width: float = 9.4
    narrow: bool = False
    colours: Any = None

    def __getitem__(self, name: str) -> str:
        return str((self.colours or LIGHT)[name.replace(".", "-")])

    @property
    def size(self) -> float:
        return 9.5 if self.narrow else 9.0


WIDE, NARROW = Look(), Look(4.4, narrow=True)
Draw = Callable[[Record, Look], "Figure | None"]


def svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page: no size of its own, names that no other plot has, colours by variable."""
    out = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a point is enough
    for variable, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{variable})")
    return text


def png(figure: Figure, path: Path, look: Look, source: str) -> None:
    """The figure as a file that says what it was made from."""
    figure.savefig(path, dpi=160, facecolor=look["paper"], metadata={"Software": None, "Source": source})


# ---- the plots ------------------------------------------------------------------------------------------------------


def overview(figures: Record, look: Look) -> Figure | None:
    """Each family against each peer: geometric means, and where nine tenths of the problems lie."""
    families = summary.by_family(figures)
    rows = {f"{name} ({len(records)})": records for name, records in families.items()}
    return _ratios(figures, rows, look, dots=False)


def of_ops(figures: Record, look: Look, names: Sequence[str]) -> Figure | None:
    """All problems of these families against each peer, by op, or for convolutions by network."""
    rows: dict[str, list[Record]] = {}
    for record in figures["problems"]:
        if summary.family(record) in names:
            rows.setdefault(_line(record), []).append(record)
    return _ratios(figures, rows, look, dots=True)


def share(figures: Record, look: Look) -> Figure | None:
    """Our share of what the machine can do at most."""
    rows: dict[str, list[Record]] = {}
    for record in figures["problems"]:
        if record["share"]:
            rows.setdefault(_line(record), []).append(record)
    if not rows:
        return None
    figure, axes = _rows(rows, look)
    for y, records in enumerate(rows.values()):
        shares = np.array([100 * record["share"] for record in records])
        axes.plot(shares, y + _spread(len(shares)), "o", color=look["onednn"], alpha=0.45, markersize=4, mew=0)
        axes.plot([np.median(shares)], [y], "|", color=look["ink"], markersize=13, mew=2)
    axes.axvline(100, color=look["ink"], linewidth=1)
    axes.set_xlim(0, max(125.0, min(200.0, 105 * max(r["share"] for records in rows.values() for r in records))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f} %"))
    axes.set_xlabel("of the machine's limit", color=look["muted"])
    return figure


def threads(figures: Record, look: Look) -> Figure | None:
    """How much faster everybody becomes with more threads."""

    def curves(axes: Any, record: Record) -> None:
        times = {name: record["given"].get(name) or seconds for name, seconds in record["called"].items()}
        base = times[OURS]["1"]
        for name in _ordered(name for name in times if name == OURS or name not in record["disturbed"]):
            counts = sorted(map(int, times[name]))
            _curve(axes, look, name, counts, [base / times[name][str(count)] for count in counts])
        axes.set_xticks(sorted(map(int, times[OURS])))
        axes.set_ylim(bottom=0)

    records = figures.get("by_threads", ())
    names = [n for n in NAMES if any(n in record["called"] for record in records)]
    return _grid({_words(r): r for r in records}, curves, look, names, 4, "threads", "speed (ours with one: 1)")


def sizes(figures: Record, look: Look) -> Figure | None:
    """From the smallest problem to one that only memory holds."""
    ops: dict[str, list[Record]] = {}
    for record in figures.get("sizes", ()):
        ops.setdefault(record["op"], []).append(record)

    def curves(axes: Any, records: list[Record]) -> None:
        for name in _ordered(records[0]["called"]):
            points = [
                (r["elements"], r["elements"] / (r["given"].get(name) or r["called"][name]) / 1e6)
                for r in records
                if name in r["called"] and name not in r["disturbed"]
            ]
            if points:
                _curve(axes, look, name, *zip(*points, strict=True))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(numticks=5))
            axis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
            axis.set_minor_formatter(NullFormatter())

    names = [n for n in NAMES if any(n in r["called"] for records in ops.values() for r in records)]
    return _grid(ops, curves, look, names, 3, "elements", "millions a second")


def first_calls(figures: Record, look: Look) -> Figure | None:
    """Seconds until the first result, in a fresh process."""
    rows = {record["op"]: record for record in summary.starts(figures)}
    if not rows:
        return None
    figure, axes = _rows(rows, look)
    found = {name for record in rows.values() for name in record["peers"]}
    for y, record in enumerate(rows.values()):
        for name, times in record["peers"].items():
            axes.plot(times["first"], y, _MARKS[name], color=look[name], markersize=5.5, mew=0)
        axes.plot([record["from cache"], record["cold"]], [y, y], color=look["backstroke"], linewidth=1)
        axes.plot(record["cold"], y, "o", color=look["backstroke"], markersize=6.5, mew=0)
        axes.plot(record["from cache"], y, "o", color=look["backstroke"], markersize=6.5, mfc=look["paper"])
    _log(axes.xaxis, summary.seconds)
    axes.set_xlabel("seconds until the first result, after the import", color=look["muted"])
    ours = [("ours, cold: compiled", look["backstroke"]), ("ours, from disk", look["paper"])]
    handles = [
        Line2D([], [], marker="o", linestyle="", color=look["backstroke"], mfc=colour, label=label, markersize=6.5)
        for label, colour in ours
    ]
    _legend(figure, look, handles + [_handle(look, name) for name in _ordered(found)])
    return figure


def accuracy(figures: Record, look: Look) -> Figure | None:
    """How far from float64, on the same data."""
    records = figures.get("accuracy", ())
    rows = {record["op"]: record["ulp"] for record in records}
    if not rows:
        return None
    panels = (("mean", "mean, in ulp of each element"), ("scaled", "largest, in ulp of the largest element"))
    figure, many = _rows(rows, look, panels=len(panels))
    least = 0.01
    for axes, (what, label) in zip(many, panels, strict=True):
        for y, ulp in enumerate(rows.values()):
            for place, name in enumerate(reversed(_ordered(ulp))):
                at = y + (place - (len(ulp) - 1) / 2) * 0.11
                size = 6.5 if name == OURS else 5
                value = max(ulp[name][what], least)
                axes.plot(value, at, _MARKS[name], color=look[name], markersize=size, mew=0, clip_on=False)
        _log(axes.xaxis, lambda x: "exact" if x <= least else f"{x:g}")
        axes.set_xlim(left=least)
        axes.set_xlabel(label, color=look["muted"])
    names = [name for name in NAMES if any(name in ulp for ulp in rows.values())]
    _legend(figure, look, [_handle(look, name) for name in names])
    return figure


# ---- what they share ------------------------------------------------------------------------------------------------


def _line(record: Record) -> str:
    """The line of a plot that a problem stands in."""
    extras = [word for word in record["group"].split() if word in ("NXC", "bfloat16", "small")]
    extra = ", ".join({"NXC": "channels last", "small": "small"}.get(word, word) for word in extras)
    if record["family"] == "convolution":
        name = record["group"].split()[-1]
    else:
        name = record["op"].removesuffix("_grad").replace("_", " ")
        if record["group"] == "softmax axis 1":
            name += ", axis 1"
    return name + (f", {extra}" if extra else "")


def _words(record: Record) -> str:
    """A problem in two lines."""
    op, _, rest = record["problem"].partition(" ")
    shape, _, options = rest.partition(" ")
    group = re.search(r"group\d+", options)
    kernel = re.search(r"kernel(\d+)(x\d+)?", options)
    kind = " depthwise" if group else ""
    window = f" {kernel[1]}x{kernel[1]}" if kernel else ""
    return f"{op.removesuffix('_grad')}{window}{kind}\n{shape}"


def _ordered(names: Iterable[str]) -> list[str]:
    """Ours last, so that it is drawn over the others."""
    known = set(names)
    return [name for name in (*list(NAMES)[1:], OURS) if name in known]


def _short(x: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:g}{letter}"
    return f"{x:g}"


def _spread(count: int, height: float = 0.5) -> np.ndarray:
    """Places across a line, the same in every run."""
    return ((np.arange(count) * 0.618034) % 1.0 - 0.5) * height if count > 1 else np.zeros(1)


def _plain(axes: Any, look: Look) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(look["grid"])
    axes.tick_params(which="both", colors=look["muted"], labelsize=look.size, length=0)
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.xaxis.label.set_size(look.size)
    axes.yaxis.label.set_size(look.size)


def _log(axis: Any, text: Callable[[float], str]) -> None:
    axis.axes.set_xscale("log")
    axis.set_major_locator(LogLocator(numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda x, _: text(x)))
    axis.set_minor_formatter(NullFormatter())


def _rows(rows: Any, look: Look, panels: int = 1, height: float = 0.42) -> tuple[Figure, Any]:
    """A figure of labelled lines; several panels stand side by side, or when narrow below each other."""
    stacked = panels if look.narrow else 1
    figure = Figure(figsize=(look.width, stacked * (height * len(rows) + 0.75) + 0.5), layout="constrained")
    shape = (panels, 1) if look.narrow else (1, panels)
    many = figure.subplots(*shape, squeeze=False, sharey=not look.narrow).ravel()
    for number, axes in enumerate(many):
        _plain(axes, look)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", color=look["grid"], linewidth=0.7)
        for y in range(0, len(rows), 2):
            axes.axhspan(y - 0.5, y + 0.5, color=look["band"], linewidth=0, zorder=0)
        axes.set_yticks(range(len(rows)), [name.replace(", ", ",\n") if look.narrow else name for name in rows])
        if look.narrow or number == 0:
            axes.tick_params(axis="y", labelcolor=look["ink"])
    return figure, many if panels > 1 else many[0]


def _ratios(figures: Record, rows: dict[str, list[Record]], look: Look, *, dots: bool) -> Figure | None:
    """Lines of ratios on a logarithmic axis, every peer in its colour."""
    names = [
        name for name in summary.peers_of(figures) if any(Ratios.of(records, name).values for records in rows.values())
    ]
    if not names:
        return None
    figure, axes = _rows(rows, look, height=0.105 * len(names) + 0.13)
    least, most = 0.8, 2.0
    for y, records in enumerate(rows.values()):
        for place, name in enumerate(names):
            found = Ratios.of(records, name)
            if found.mean is None:
                continue
            at = y + (place - (len(names) - 1) / 2) * 0.78 / len(names)
            low, high = found.quantile(0.05), found.quantile(0.95)
            least, most = min(least, found.values[0] if dots else low), max(most, found.values[-1] if dots else high)
            if dots:
                axes.plot(
                    found.values, np.full(len(found.values), at), _MARKS[name], color=look[name], alpha=0.4,
                    markersize=3.2, mew=0,
                )  # fmt: skip
            else:
                axes.plot([low, high], [at, at], color=look[name], alpha=0.45, linewidth=2.2, solid_capstyle="round")
            axes.plot(
                found.mean, at, _MARKS[name], color=look[name], markersize=6.8, mec=look["paper"], mew=0.8, zorder=4
            )
    _log(axes.xaxis, lambda x: f"{x:g}x")
    axes.set_xlim(least / 1.15, most * 1.15)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if least / 1.15 <= t <= most * 1.15]
    axes.set_xticks(ticks[::2] if look.narrow and len(ticks) > 7 and 1 in ticks[::2] else ticks)
    axes.axvline(1, color=look["ink"], linewidth=1.2, zorder=2)
    axes.set_xlabel("how many times as long the others take; right of the line we are faster", color=look["muted"])
    if look.narrow:
        axes.set_xlabel("times as long as we take", color=look["muted"])
    _legend(figure, look, [_handle(look, name) for name in names])
    return figure


def _grid(
    plots: dict[str, Any],
    draw: Callable[[Any, Any], None],
    look: Look,
    names: list[str],
    across: int,
    xlabel: str,
    ylabel: str,
) -> Figure | None:
    """Small plots of the same kind."""
    if not plots:
        return None
    across = min(len(plots), 2 if look.narrow else across)
    down = -(-len(plots) // across)
    figure = Figure(figsize=(look.width, down * (2.05 if look.narrow else 2.3) + 0.6), layout="constrained")
    many = figure.subplots(down, across, squeeze=False)
    for axes in many.ravel()[len(plots) :]:
        axes.set_visible(False)
    for number, (axes, (title, what)) in enumerate(zip(many.ravel(), plots.items(), strict=False)):
        _plain(axes, look)
        axes.grid(color=look["grid"], linewidth=0.7)
        draw(axes, what)
        axes.set_title(title, color=look["ink"], fontsize=look.size, loc="left")
        if number % across == 0:
            axes.set_ylabel(ylabel, color=look["muted"])
        if number >= len(plots) - across:
            axes.set_xlabel(xlabel, color=look["muted"])
    _legend(figure, look, [_handle(look, name, line=True) for name in names])
    return figure


def _curve(axes: Any, look: Look, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    ours = name == OURS
    axes.plot(
        x, y, color=look[name], linewidth=2.4 if ours else 1.5, marker=_MARKS[name], mew=0,
        markersize=5.5 if ours else 4, zorder=3 if ours else 2,
    )  # fmt: skip


def _handle(look: Look, name: str, *, line: bool = False) -> Line2D:
    return Line2D(
        [], [], marker=_MARKS[name], linestyle="-" if line else "", color=look[name], label=NAMES[name], markersize=6.5,
        mew=0,
    )  # fmt: skip


def _legend(figure: Figure, look: Look, handles: list[Line2D]) -> None:
    columns = 3 if look.narrow else len(handles)
    figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=look.size,
        labelcolor=look["ink"], handletextpad=0.4, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
