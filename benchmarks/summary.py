"""What a figures file says, in few figures: families, geometric means, headlines. README, docs and page read this."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .report import geometric_mean

Record = dict[str, Any]
OURS = "backstroke"
NAMES = {
    "backstroke": "Backstroke", "torch": "PyTorch", "onednn": "oneDNN", "onnxruntime": "ONNX Runtime", "jax": "JAX",
    "numpy": "NumPy", "tensorflow.js": "TensorFlow.js",
}  # fmt: skip
_FAMILIES = ("Activations", "Softmax", "Small calls", "Max pooling", "Average pooling", "Convolution")
_VARIANTS = ("", ", channels last", ", bfloat16")
FAMILIES = tuple(family + variant for family in _FAMILIES for variant in _VARIANTS)


def dumps(figures: Record) -> str:
    """A figures file: a line for each record, and no more digits than were measured."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items()}
        return [short(each) for each in value] if isinstance(value, list) else value

    lines = []
    for name, value in short(figures).items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def family(record: Record) -> str:
    """The line of the summary that a problem counts for."""
    if record["group"] == "small":
        return "Small calls"
    of_pooling = "Max pooling" if record["op"].startswith("max") else "Average pooling"
    names = {"activation": "Activations", "softmax": "Softmax", "pooling": of_pooling, "convolution": "Convolution"}
    last = _VARIANTS[1] if "NXC" in record["group"].split() else ""
    return names[record["family"]] + last + (_VARIANTS[2] if record["dtype"] == "bfloat16" else "")


def peers_of(figures: Record) -> list[str]:
    """The others that were measured, in the order of `NAMES`."""
    return [name for name in NAMES if name in figures["versions"] and name != OURS]


def ratio(record: Record, peer: str, how: str = "") -> float | None:
    """How many times as long the peer takes, like with like.

    Both into a given output where the peer can take one, and both as called where it cannot; or as `how` says.
    """
    if {peer, OURS} & {*record["disturbed"]}:
        return None
    times = record[how or ("given" if peer in record["given"] else "called")]
    return times[peer] / times[OURS] if peer in times else None


@dataclass(frozen=True)
class Ratios:
    """Some problems against one peer."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, records: Iterable[Record], peer: str, how: str = "") -> Ratios:
        return cls(tuple(sorted(r for record in records if (r := ratio(record, peer, how)) is not None)))

    @property
    def mean(self) -> float | None:
        """The geometric mean."""
        return geometric_mean(self.values)

    @property
    def won(self) -> int:
        return sum(value >= 1 for value in self.values)

    def quantile(self, part: float) -> float:
        """The value below which that part of the ratios lies."""
        return self.values[min(len(self.values) - 1, int(part * len(self.values)))]


def by_family(figures: Record) -> dict[str, list[Record]]:
    """The problems of each line of the summary; lines without any are left out."""
    found: dict[str, list[Record]] = {name: [] for name in FAMILIES}
    for record in figures["problems"]:
        found[family(record)].append(record)
    return {name: records for name, records in found.items() if records}


def slower(figures: Record) -> list[tuple[float, str, Record]]:
    """(ratio, peer, problem) wherever somebody is faster than we are, the worst first."""
    pairs = [(ratio(record, peer), peer, record) for record in figures["problems"] for peer in peers_of(figures)]
    return sorted(((r, peer, record) for r, peer, record in pairs if r is not None and r < 1), key=lambda x: x[0])


def fastest(figures: Record) -> tuple[int, int]:
    """In how many problems nobody is faster, and of how many."""
    worst = [
        min((r for peer in peers_of(figures) if (r := ratio(record, peer)) is not None), default=None)
        for record in figures["problems"]
    ]
    return sum(r >= 1 for r in worst if r is not None), sum(r is not None for r in worst)


def disturbed(figures: Record) -> int:
    """How many times there are of which no ratio is made."""
    return sum(len(record["disturbed"]) for record in figures["problems"])


def share(records: Iterable[Record]) -> float | None:
    """The median share of the machine's limit."""
    known = [record["share"] for record in records if record["share"]]
    return statistics.median(known) if known else None


def closest(figures: Record) -> tuple[int, int]:
    """In how many ops nobody's mean error is less than ours, and of how many that somebody else has too."""
    shared = [record["ulp"] for record in figures.get("accuracy", ()) if len(record["ulp"]) > 1]
    best = [all(ulp[OURS]["mean"] <= other["mean"] * 1.001 for other in ulp.values()) for ulp in shared]
    return sum(best), len(best)


def starts(figures: Record) -> list[Record]:
    """The ops' first calls."""
    return [record for record in figures.get("startup", ()) if "op" in record]


def steps(figures: Record) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table of training steps: our time, how many times as long the others take, and the most
    memory of each process."""
    records = [record for record in figures.get("training", ()) if OURS in record["seconds"]]
    others = list(dict.fromkeys(name for record in records for name in record["seconds"] if name != OURS))
    rows = []
    for record in records:
        ours, memory = record["seconds"][OURS], record.get("memory", {})
        ratios = [times(record["seconds"][name] / ours) if name in record["seconds"] else "-" for name in others]
        sizes = [f"{memory[name] / 1e6:,.0f} MB" if name in memory else "-" for name in (OURS, *others)]
        rows.append([record["problem"].removeprefix("training step "), seconds(ours), *ratios, ", ".join(sizes)])
    return ["network", "our step", *others, "memory: ours, " + ", ".join(others)], rows


def start(figures: Record, name: str) -> Record:
    """Another record of the startup section, or nothing."""
    return next((record for record in figures.get("startup", ()) if record["name"] == name), {})


def seconds(value: float) -> str:
    """A time as one says it."""
    unit, size = ("s", 1.0) if value >= 1 else ("ms", 1e-3) if value >= 1e-3 else ("us", 1e-6)
    return f"{value / size:,.{0 if value / size >= 99.5 else 1 if value / size >= 9.95 else 2}f} {unit}"


def times(value: float | None) -> str:
    """A ratio as one says it."""
    return "-" if value is None else f"{value:,.0f}x" if value >= 99.5 else f"{value:.{1 if value >= 9.95 else 2}f}x"


def heading(figures: Record) -> str:
    """Where, when and against what."""
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    machine = figures["machine"]
    return (
        f"{machine['cpu']}, {figures['threads']} threads of {machine['cpus']} CPUs, Python {machine['python']}, "
        f"{figures['date']}; {versions}. {_extent(figures)}"
    )


def _extent(figures: Record) -> str:
    """How many of the problems were measured, or of which kind the run was."""
    if figures["quick"]:
        return "A quick run: a few problems of each family, few turns."
    return f"{len(figures['problems'])} of {figures['of']} problems."
