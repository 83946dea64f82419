"""The report: one HTML page with everything in it, and PNGs, from a figures file: `python -m benchmarks.page FILE`."""

from __future__ import annotations

import argparse
import functools
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import plots, startup, summary
from .summary import NAMES, OURS, Ratios, Record, seconds

STYLE = Path(__file__).parent / "page.css"
_WORST = 15
# The plots that are files too, and how large they are there.
PNGS = {"overview": (plots.overview, 8.6), "accuracy": (plots.accuracy, 8.6)}

_CHAPTERS = (
    ("activations", "Activations", ("Activations", "Activations, bfloat16")),
    ("softmax", "Softmax", ("Softmax",)),
    ("small", "Small calls", ("Small calls",)),
    ("max-pooling", "Max pooling", tuple(f for f in summary.FAMILIES if f.startswith("Max"))),
    ("avg-pooling", "Average pooling", tuple(f for f in summary.FAMILIES if f.startswith("Average"))),
    ("convolution", "Convolution", tuple(f for f in summary.FAMILIES if f.startswith("Convolution"))),
)


def page(figures: Record) -> str:
    """The whole page."""
    parts = [_top(figures), _overview(figures)]
    parts += [_chapter(figures, *chapter) for chapter in _CHAPTERS]
    parts += [
        _steps(figures),
        _limit(figures),
        _scaling(figures),
        _starts(figures),
        _accuracy(figures),
        _bars(figures),
        _how(figures),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # or browsers ask the network for one
        f"<title>Backstroke: the report of {_text(figures['date'])}</title>\n<style>\n{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def write(figures: Record, folder: Path, source: str) -> list[Path]:
    """The page and the PNGs in a folder; -> what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(page(figures))
    return [folder / "index.html", *pngs(figures, folder, source)]


def pngs(figures: Record, folder: Path, source: str) -> list[Path]:
    """The plots that are files, in light and dark."""
    written = []
    for name, (draw, width) in PNGS.items():
        for theme, colours in (("light", plots.LIGHT), ("dark", plots.DARK)):
            look = plots.Look(width, colours=colours)
            figure = draw(figures, look)
            if figure is not None:
                written.append(folder / f"{name}-{theme}.png")
                plots.png(figure, written[-1], look, source)
    return written


def digest(text: str) -> str:
    """What a PNG says of the figures that it was made from."""
    return "figures " + hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- the parts ------------------------------------------------------------------------------------------------------


def _top(figures: Record) -> str:
    sections = [(name, title) for name, title, families in _CHAPTERS if _records(figures, families)]
    links = [("overview", "Overview"), *sections, ("limit", "The machine's limit"), ("scaling", "Scaling")]
    links[-2:-2] = [("training", "Training steps")] if figures.get("training") else []
    links += [("start", "First calls"), ("accuracy", "Accuracy"), ("bars", "Bars"), ("how", "How it was measured")]
    return (
        "<header><h1>Backstroke: speed and accuracy, measured</h1>"
        '<p class="lead">The backward pass of neural networks on CPUs, against the systems that people use.</p>'
        f'<p class="where">{_text(summary.heading(figures))}</p>'
        f"<ul class=tiles>{''.join(_tiles(figures))}</ul>"
        f"<nav>{''.join(f'<a href=#{name}>{title}</a>' for name, title in links)}</nav></header>"
    )


def _tiles(figures: Record) -> Iterable[str]:
    for peer in summary.peers_of(figures):
        ratios = Ratios.of(figures["problems"], peer)
        if peer in ("numpy", "tensorflow.js") or ratios.mean is None:
            continue
        many = f"ahead in {ratios.won} of {len(ratios.values)} problems"
        yield _tile(_times(ratios.mean), f"the speed of {NAMES[peer]}; {many}", peer)
    won, of = summary.fastest(figures)
    if of:
        yield _tile(f"{100 * won / of:.0f} %", f"of {of} problems where nobody is faster", OURS)
    closest, of = summary.closest(figures)
    if of:
        yield _tile(f"{closest} of {of}", "ops where nobody is closer to float64", OURS)
    small, starts = summary.start(figures, startup.OVERHEAD), summary.starts(figures)
    if small:
        yield _tile(seconds(small["seconds"]), "a call with 16 elements, from Python", OURS)
    if starts:
        cold = seconds(max(record["cold"] for record in starts))
        yield _tile(cold, f"slowest first call, compiled; import {seconds(starts[0]['import'])}", OURS)


def _overview(figures: Record) -> str:
    peers = summary.peers_of(figures)
    rows = []
    for name, records in summary.by_family(figures).items():
        found = [Ratios.of(records, peer) for peer in peers]
        share = summary.share(records)
        cells = [_cell(r.mean) for r in found]
        rows.append([name, str(len(records)), f"{100 * share:.0f} %" if share else "-", *cells])
    table = _table(["family", "problems", "of the limit", *(NAMES[p] for p in peers)], rows)
    worst = [
        [record["problem"], NAMES[peer], _cell(r), seconds(_best(record, OURS)), seconds(_best(record, peer))]
        for r, peer, record in summary.slower(figures)[:_WORST]
    ]
    behind = len({record["name"] for *_, record in summary.slower(figures)})
    slower = ""
    if worst:
        text = f"Somebody is faster in {behind} of {len(figures['problems'])} problems. The worst {len(worst)}:"
        table_of_worst = _table(["problem", "who", "takes", "we", "they"], worst)
        slower = f"<h3>Where others are faster</h3><p>{text}</p>{table_of_worst}"
    return _section(
        "overview",
        "Overview",
        "How many times as long each of the others takes for the same problem, like with like: both write into an "
        "array that they are given where the other can, and both make a fresh one where it cannot.",
        _figure(figures, "overview", plots.overview, "A mark is a geometric mean; the line holds nine tenths."),
        table,
        slower,
    )


def _chapter(figures: Record, name: str, title: str, families: Sequence[str]) -> str:
    records = _records(figures, families)
    if not records:
        return ""
    peers = [p for p in summary.peers_of(figures) if Ratios.of(records, p).values]
    rows = []
    for record in records:
        ours = [seconds(record[how][OURS]) for how in ("called", "given")]
        share = f"{100 * record['share']:.0f} %" if record["share"] else "-"
        pairs = [[summary.ratio(record, p, "called"), summary.ratio(record, p, "given")] for p in peers]
        rows.append([record["problem"], *ours, share, *(_cell(value) for pair in pairs for value in pair)])
    columns = ["problem", "as called", "output given", "of the limit"]
    columns += [f"{NAMES[p]}{how}" for p in peers for how in (", as called", ", given")]
    draw = functools.partial(plots.of_ops, names=families)
    return _section(
        name,
        title,
        "",
        _figure(figures, name, draw, "A faint mark is a problem, a bold one the geometric mean of the line."),
        _folded(f"{len(records)} problems", _table(columns, rows)),
    )


def _steps(figures: Record) -> str:
    heads, rows = summary.steps(figures)
    text = "Forward, cross entropy, backward and AdamW, at batch 32; every system in a process of its own, by turns."
    return _section("training", "Training steps", text if rows else "", _table(heads, rows) if rows else "")


def _limit(figures: Record) -> str:
    said = []
    if figures.get("bandwidth"):
        said.append(f"a kernel that only reads two arrays and writes one moves {figures['bandwidth'] / 1e9:.0f} GB/s")
    if figures.get("peak"):
        said.append(f"one that only multiplies and adds does {figures['peak'] / 1e9:,.0f} GFLOP/s")
    text = (
        "The limit is measured in the same rounds, by kernels that do nothing else: " + " and ".join(said) + ". "
        "Problems that fit in a cache have no such limit. More than 100 %: our loop was the faster one in those rounds."
    )
    return _section(
        "limit",
        "Our share of the machine's limit",
        text,
        _figure(figures, "limit", plots.share, "A dot is a problem, the bar the median."),
    )


def _scaling(figures: Record) -> str:
    return _section(
        "scaling",
        "Scaling",
        "",
        _figure(figures, "threads", plots.threads, "With threads: how much faster than we are with one.")
        + _figure(figures, "sizes", plots.sizes, "With size: millions of elements of the input a second."),
    )


def _starts(figures: Record) -> str:
    rows = []
    records = summary.starts(figures)
    peers = [name for name in NAMES if any(name in record["peers"] for record in records)]
    for record in records:
        others = [seconds(record["peers"][p]["first"]) if p in record["peers"] else "-" for p in peers]
        rows.append([record["op"], seconds(record["cold"]), seconds(record["from cache"]), *others])
    if records:
        imports = [
            seconds(min(found)) if (found := [r["peers"][p]["import"] for r in records if p in r["peers"]]) else "-"
            for p in peers
        ]
        ours = seconds(min(record["import"] for record in records))
        rows.append(["the import before that", ours, ours, *imports])
    table = _table(["function", "ours, cold", "ours, from disk", *(NAMES[p] for p in peers)], rows) if rows else ""
    resnet = summary.start(figures, startup.RESNET)
    text = "A kernel is compiled when it is first used, then kept on disk. Each figure is a process of its own."
    if resnet:
        text += (
            f" All kernels of ResNet-50's backward pass take the compiler {seconds(resnet['cold'])}, and "
            f"{seconds(resnet['from cache'])} from the disk cache."
        )
    caption = "The line joins our first call from nothing and from the disk cache."
    return _section(
        "start", "Import, compilation, first calls", text, _figure(figures, "start", plots.first_calls, caption), table
    )


def _accuracy(figures: Record) -> str:
    rows = []
    for record in figures.get("accuracy", ()):
        best = min(ulp["mean"] for ulp in record["ulp"].values())
        for name in (n for n in NAMES if n in record["ulp"]):
            ulp = record["ulp"][name]
            mark = "ours" if ulp["mean"] <= best * 1.001 else ""
            cells = [(_ulp(ulp[what]), mark if what == "mean" else "") for what in ("mean", "p99", "max", "scaled")]
            rows.append([record["problem"] if name == OURS else "", (NAMES[name], "text"), *cells])
    heads = ["problem", "who", "mean", "99 of 100", "largest", "largest, scaled"]
    return _section(
        "accuracy",
        "Accuracy",
        "Errors against the float64 twins, on the same float32 data for all, in units of the last place. Where terms "
        "cancel, an element has few right digits whoever computes it, so the last column measures the largest error in "
        "the last place of the largest element.",
        _figure(figures, "accuracy-plot", plots.accuracy, ""),
        _folded(f"{len(figures.get('accuracy', ()))} ops", _table(heads, rows)) if rows else "",
    )


def _bars(figures: Record) -> str:
    rows = []
    for bar in figures.get("bars", ()):
        verdict, _, text = bar.strip().partition("  ")
        kind = {"reached": "reached", "MISSED": "missed"}.get(verdict.strip(), "")
        rows.append([(text.strip(), "text"), (verdict.strip().lower(), f"text {kind}")])
    return _section("bars", "The bars that the project sets itself", "", _table(["figure", "verdict"], rows))


def _how(figures: Record) -> str:
    absent = "; ".join(f"{name}: {why}" for name, why in figures.get("absent", {}).items())
    return _section(
        "how",
        "How it was measured",
        "All in one process with the same arrays and as many threads for each (NumPy has one, XLA takes all CPUs), "
        "interleaved: in every round each has its turn, after a pause in which the others' threads go to sleep and a "
        "warm-up. Of a turn the median counts, and of the turns the best: OpenMP's threads, when the system puts two "
        "on one CPU, wait for each other for milliseconds, which is nobody's speed. ONNX Runtime runs a model of one "
        "node; oneDNN its Graph API; JAX what XLA compiled. oneDNN's gradient of a convolution is dx and dw, no db.",
        f'<p class="small">Not measured: {_text(absent)}.</p>' if absent else "",
        f'<p class="small">{summary.disturbed(figures)} times were disturbed by what else ran on the machine, and no '
        "ratio is made of them.</p>"
        if summary.disturbed(figures)
        else "",
        '<p class="small">From <code>make report</code>; the same page from these figures: '
        "<code>python -m benchmarks.page FILE</code>.</p>",
    )


# ---- HTML -----------------------------------------------------------------------------------------------------------

Cell = str | tuple[str, str]  # text, or text and class


def _text(value: object) -> str:
    return html.escape(str(value))


def _times(value: float | None) -> str:
    return summary.times(value).replace("x", "&times;")


def _cell(value: float | None) -> Cell:
    return (summary.times(value), "lost" if value is not None and value < 1 else "")


def _ulp(value: float) -> str:
    return "0" if value == 0 else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _tile(figure: str, text: str, of: str) -> str:
    return f'<li style="--of: var(--{of})"><b>{figure}</b><span>{_text(text)}</span></li>'


def _best(record: Record, name: str) -> float:
    how = "given" if name in record["given"] else "called"
    return float(record[how][name])


def _records(figures: Record, families: Sequence[str]) -> list[Record]:
    return [record for record in figures["problems"] if summary.family(record) in families]


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{_text(head)}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = [cell if isinstance(cell, tuple) else (cell, "") for cell in row]
        inside = "".join(
            f'<td class="{kind}">{_text(text)}</td>' if kind else f"<td>{_text(text)}</td>" for text, kind in cells
        )
        lines.append(f"<tr>{inside}</tr>")
    return '<div class="scroll" tabindex="0"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _folded(what: str, inside: str) -> str:
    return f"<details><summary>All figures <span>{_text(what)}</span></summary>{inside}</details>"


def _figure(figures: Record, name: str, draw: plots.Draw, caption: str) -> str:
    """A plot in both widths; the style sheet shows one of them."""
    drawn = [(kind, draw(figures, look)) for kind, look in (("wide", plots.WIDE), ("narrow", plots.NARROW))]
    svgs = [f'<div class="{kind}">{plots.svg(figure, f"{name}-{kind}")}</div>' for kind, figure in drawn if figure]
    if not svgs:
        return ""
    said = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
    return f'<figure id="figure-{name}" role="img" aria-label="{_text(caption or name)}">{"".join(svgs)}{said}</figure>'


def _section(name: str, title: str, text: str, *parts: str) -> str:
    if not any(parts):
        return ""
    lead = f"<p>{_text(text)}</p>" if text else ""
    return f'<section id="{name}"><h2>{_text(title)}</h2>{lead}{"".join(parts)}</section>'


def _style() -> str:
    def block(colours: dict[str, str]) -> str:
        return ":root {" + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + "}"

    themes = (
        f"{block(plots.LIGHT)}\n@media (prefers-color-scheme: dark) {{ {block(plots.DARK)} }}\n"
        f"@media print {{ {block(plots.LIGHT)} }}\n"
    )
    return themes + STYLE.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.page", description=__doc__)
    parser.add_argument("figures", type=Path, help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--out", type=Path, default=Path("report"), help="the folder (default: report)")
    arguments = parser.parse_args()
    text = arguments.figures.read_text()
    for path in write(json.loads(text), arguments.out, digest(text)):
        print(path)


if __name__ == "__main__":
    main()
