"""What is made, not typed, of README and docs: `python -m benchmarks.documents [--check | --figures FILE]`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from backstroke.registry import OPS

from . import page, startup, summary
from .summary import NAMES, OURS, Ratios, Record

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "benchmarks" / "figures.json"


def ops_table() -> str:
    """Every public gradient with its arguments, its formula and its types."""
    lines = ["| function | contract | types |", "|---|---|---|"]
    for op in OPS:
        first = (inspect.getdoc(op.function) or "").split("\n")[0].replace("|", "\\|")
        arguments = ", ".join(inspect.signature(op.function).parameters)
        lines.append(f"| `{op.name}({arguments})` | {first} | {', '.join(d.name for d in op.dtypes)} |")
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def families_table(figures: Record) -> str:
    """A line for each family: geometric means against every peer, and how many problems are won."""
    peers = summary.peers_of(figures)
    rows = []
    for name, records in summary.by_family(figures).items():
        share, cells = summary.share(records), []
        for ratios in (Ratios.of(records, peer) for peer in peers):
            cells.append(f"{summary.times(ratios.mean)} ({ratios.won}/{len(ratios.values)})" if ratios.mean else "-")
        rows.append([name, f"{100 * share:.0f} %" if share else "-", *cells])
    return table(["", "of the limit", *(NAMES[p] for p in peers)], rows)


def problems_table(records: list[Record], peers: list[str]) -> str:
    """Times and ratios of each problem: as called / with the output given."""
    rows = []
    for record in records:
        pairs = [[summary.times(summary.ratio(record, p, how)) for how in ("called", "given")] for p in peers]
        share = f"{100 * record['share']:.0f} %" if record["share"] else "-"
        ours = [summary.seconds(record[how][OURS]) for how in ("called", "given")]
        ratios = [" / ".join(pair) if pair != ["-", "-"] else "-" for pair in pairs]
        rows.append([record["problem"], *ours, share, *ratios])
    return table(["problem", "as called", "output given", "of the limit", *(NAMES[p] for p in peers)], rows)


def starts_table(figures: Record) -> str:
    """First calls in fresh processes."""
    records = summary.starts(figures)
    peers = [name for name in NAMES if any(name in record["peers"] for record in records)]
    rows = []
    for record in records:
        others = [summary.seconds(record["peers"][p]["first"]) if p in record["peers"] else "-" for p in peers]
        rows.append([record["op"], *(summary.seconds(record[how]) for how in ("cold", "from cache")), *others])
    return table(["function", "cold", "from the disk cache", *(NAMES[p] for p in peers)], rows)


def accuracy_table(figures: Record) -> str:
    """Errors against float64: mean / the largest, in ulp of the element, and the largest in ulp of the largest."""

    def cell(ulp: Record) -> str:
        return " / ".join(f"{ulp[what]:.2g}" if ulp[what] < 100 else f"{ulp[what]:,.0f}" for what in _ERRORS)

    records = figures.get("accuracy", [])
    peers = [name for name in NAMES if any(name in record["ulp"] for record in records)]
    rows = [
        [record["problem"], *(cell(record["ulp"][p]) if p in record["ulp"] else "-" for p in peers)]
        for record in records
    ]
    return table(["problem", *(NAMES[p] for p in peers)], rows)


def threads_table(figures: Record) -> str:
    """Our time with every number of threads, and everybody's gain from the most."""
    records = figures.get("by_threads", [])
    peers = [name for name in NAMES if any(name in record["called"] for record in records)]
    rows = []
    for record in records:
        times = {
            name: record["given"].get(name) or record["called"][name] for name in peers if name in record["called"]
        }
        most = str(max(map(int, times[OURS])))
        ours = [f"{count}: {summary.seconds(value)}" for count, value in times[OURS].items()]
        gains = [f"{times[p]['1'] / times[p][most]:.2f}x" if p in times else "-" for p in peers]
        rows.append([record["problem"], ", ".join(ours), *gains])
    return table(["problem", "our time with threads", *(f"gain: {NAMES[p]}" for p in peers)], rows)


_ERRORS = ("mean", "p99", "max", "scaled")


def made(text: str, name: str, content: str) -> str:
    """The text with what stands between the markers of `name` made anew."""
    start = text.index(f"<!-- {name}:")
    start = text.index("-->", start) + 3
    return text[:start] + "\n" + content + "\n" + text[text.index(f"<!-- end of {name} -->") :]


def picture(name: str, alt: str, folder: str = "") -> str:
    """An image in the colours that the reader prefers."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{folder}{name}-dark.png">'
    return f'<picture>{dark}<img src="{folder}{name}-light.png" alt="{alt}"></picture>'


def readme_figures(figures: Record) -> str:
    """The few figures of the README."""
    won, of = summary.fastest(figures)
    text = (
        f"{summary.heading(figures)}\n\n"
        "How many times as long the others take: geometric means, and in how many of the problems we are ahead. Like "
        "with like: both write into a given output where the other can, both make a fresh one where it cannot. "
        f"Nobody is faster in {won} of {of} problems.\n\n"
    )
    return (
        text + f"{picture('overview', 'Ratios by family and system', 'docs/benchmarks/')}\n\n{families_table(figures)}"
    )


def figures_page(figures: Record) -> str:
    """All figures."""
    peers = summary.peers_of(figures)
    parts = [
        "# Figures",
        "Made by `make report` and `make documents`; not typed. How it is measured: `benchmarks/timing.py`.",
        summary.heading(figures),
        f"How many times as long the others take, and how many problems are won:\n\n{families_table(figures)}",
        picture("overview", "Ratios by family and system"),
        _limits(figures),
        "## First calls",
        _first(figures),
        starts_table(figures) if summary.starts(figures) else "",
    ]
    if figures.get("training"):
        said = "Forward, cross entropy, backward and AdamW; how many times as long the others take:"
        parts += ["## Training steps", said, table(*summary.steps(figures))]
    if figures.get("by_threads"):
        parts += ["## Threads", threads_table(figures)]
    if figures.get("accuracy"):
        parts += [
            "## Accuracy",
            "Errors against the float64 twins on the same float32 data: mean / 99 of 100 are less / the largest, in "
            "units of each element's last place / the largest, in units of the largest element's last place.",
            accuracy_table(figures),
            picture("accuracy", "Errors by function and system"),
        ]
    parts += ["## Bars", "```\n" + "\n".join(figures["bars"]) + "\n```"]
    parts += ["## Every problem", "Ratios as called / with the output given. The options are those of the function."]
    for name, records in summary.by_family(figures).items():
        parts += [f"### {name}", problems_table(records, [p for p in peers if Ratios.of(records, p).values])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _limits(figures: Record) -> str:
    said = []
    if figures.get("bandwidth"):
        said.append(f"Streaming bandwidth (read, read, write): {figures['bandwidth'] / 1e9:.1f} GB/s.")
    if figures.get("peak"):
        said.append(f"Multiplications and additions: {figures['peak'] / 1e9:,.0f} GFLOP/s.")
    if summary.disturbed(figures):
        said.append(f"{summary.disturbed(figures)} times were disturbed by what else ran: no ratio is made of them.")
    return " ".join(said)


def _first(figures: Record) -> str:
    small, resnet = (summary.start(figures, name) for name in (startup.OVERHEAD, startup.RESNET))
    said = [f"`relu_grad` of 16 elements takes {summary.seconds(small['seconds'])}, all told."] if small else []
    starts = summary.starts(figures)
    if starts:
        said.append(f"`import backstroke`: {summary.seconds(min(record['import'] for record in starts))}.")
    if resnet:
        cold, cached = (summary.seconds(resnet[how]) for how in ("cold", "from cache"))
        said.append(
            f"The compiler takes {cold} for all kernels of ResNet-50's backward pass, {cached} from the disk cache."
        )
    return " ".join([*said, "From nothing to the first result, each in a fresh process, imports not counted:"])


def documents(figures: Record) -> dict[Path, str]:
    """Every made document with the content it should have."""
    readme = ROOT / "README.md"
    text = made(made(readme.read_text(), "ops", ops_table()), "figures", readme_figures(figures))
    return {readme: text, FIGURES.parent / "README.md": figures_page(figures)}


def stale_pictures(source: str) -> list[Path]:
    """The pictures that were not made from these figures."""
    names = [FIGURES.parent / f"{name}-{theme}.png" for name in page.PNGS for theme in ("light", "dark")]
    return [path for path in names if not path.exists() or source.encode() not in path.read_bytes()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.documents", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    parser.add_argument("--figures", type=Path, help="take these figures, from `make report`, instead of the old ones")
    arguments = parser.parse_args()
    if arguments.figures:
        found = json.loads(arguments.figures.read_text())
        if found["quick"]:
            print(f"{arguments.figures} is of a quick run: it is not for the documents")
            return 2
        FIGURES.write_text(summary.dumps(found))
    source = FIGURES.read_text()
    figures = json.loads(source)
    texts, digest = documents(figures), page.digest(source)
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    pictures = stale_pictures(digest)
    for path in [*stale, *pictures]:
        print(f"{path.relative_to(ROOT)} {'is not what its sources make' if arguments.check else 'made anew'}")
    if not arguments.check:
        for path in stale:
            path.write_text(texts[path])
        if pictures:
            page.pngs(figures, FIGURES.parent, digest)
    return int(arguments.check and bool(stale or pictures))


if __name__ == "__main__":
    sys.exit(main())
