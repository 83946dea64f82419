"""The parts of README and docs that are made, not typed: `python -m benchmarks.documents [--check]`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from backstroke.registry import OPS

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


def heading(figures: dict[str, Any]) -> str:
    """Where, when and against what."""
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    machine = figures["machine"]
    return (
        f"{machine['cpu']}, {figures['threads']} threads of {machine['cpus']} CPUs, Python {machine['python']}, "
        f"{figures['date']}; {versions}."
    )


def figures_table(figures: dict[str, Any], groups: tuple[str, ...] | None = None) -> str:
    """Times and ratios of the problems in `groups`, or of all."""
    peers = [name for name in figures["versions"] if name != "backstroke"]
    lines = ["| problem | as called | output given | of bandwidth | " + " | ".join(f"{p} takes" for p in peers) + " |"]
    lines.append("|---|--:|--:|--:|" + "--:|" * len(peers))
    for problem in figures["problems"]:
        if groups and problem["group"] not in groups:
            continue
        called, given = problem["called"], problem["given"]
        ratios = []
        for peer in peers:
            pair = [f"{t[peer] / t['backstroke']:.1f}x" if peer in t else "-" for t in (called, given)]
            ratios.append(" / ".join(pair) if pair != ["-", "-"] else "-")
        share = f"{100 * problem['share']:.0f} %" if problem.get("share") else "-"
        times = " | ".join(f"{t['backstroke'] * 1e6:,.1f} us" for t in (called, given))
        lines.append(f"| {problem['problem']} | {times} | {share} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def made(text: str, name: str, content: str) -> str:
    """The text with what stands between the markers of `name` made anew."""
    start = text.index(f"<!-- {name}:")
    start = text.index("-->", start) + 3
    return text[:start] + "\n" + content + "\n" + text[text.index(f"<!-- end of {name} -->") :]


def documents() -> dict[Path, str]:
    """Every made document with the content it should have."""
    readme = ROOT / "README.md"
    figures = json.loads(FIGURES.read_text())
    best = figures_table(figures, ("elementwise", "softmax", "softmax axis 1"))
    short = f"{heading(figures)}\nHow many times as long the others take: as called / with the output given.\n\n{best}"
    text = made(made(readme.read_text(), "ops", ops_table()), "figures", short)
    page = "# Figures\n\nMade by `make documents`; not typed.\n\n" + heading(figures) + "\n\n" + figures_table(figures)
    first = figures["first"]
    page += (
        f"\n\nStreaming bandwidth (read, read, write): {figures['bandwidth'] / 1e9:.1f} GB/s.\n"
        f"ReluGrad of 16 elements: {figures['overhead'] * 1e6:.2f} us a call. `import backstroke`: "
        f"{first['import'] * 1e3:.0f} ms. Slowest first call of an op: {first['cold'] * 1e3:.0f} ms cold, "
        f"{first['from cache'] * 1e3:.1f} ms from the disk cache.\n\n## Bars\n\n```\n"
    )
    page += "\n".join(figures["bars"]) + "\n```\n"
    return {readme: text, FIGURES.parent / "README.md": page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    check = parser.parse_args().check
    stale = [path for path, text in documents().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is not what its sources make' if check else 'made anew'}")
        if not check:
            path.write_text(documents()[path])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
