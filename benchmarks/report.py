"""From times to a table, and to the bars that the project sets itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from backstroke.registry import OPS
from peers.ours import TFJS

from . import convolution, startup
from .limits import LARGE
from .problems import Problem
from .training import TrainingProblem


@dataclass(frozen=True)
class Timed:
    """One problem: what it moves and computes; seconds by peer, as called and with the output given; and at the limit.

    The limit is the machine's: of its memory, or of its multiplications and additions where `operations` are counted.
    """

    problem: Problem | TrainingProblem
    bytes: int
    operations: int
    called: dict[str, float]
    given: dict[str, float]
    limit: float | None = None
    disturbed: tuple[str, ...] = ()  # who had no undisturbed turn

    @property
    def share(self) -> float | None:
        """Our share of the machine's limit."""
        if not self.limit or {"limit", "backstroke"} & {*self.disturbed}:
            return None
        return self.limit / self.given["backstroke"]

    def ratio(self, peer: str, how: str) -> float | None:
        """How many times as long the peer takes."""
        times: dict[str, float] = getattr(self, how)
        if {peer, "backstroke"} & {*self.disturbed}:
            return None
        return times[peer] / times["backstroke"] if peer in times else None

    def as_json(self) -> dict[str, Any]:
        assert isinstance(self.problem, Problem)
        return {
            "problem": str(self.problem),
            "group": self.problem.group,
            "op": self.problem.op,
            "family": self.problem.entry.family,
            "dtype": self.problem.dtype,
            "elements": math.prod(self.problem.shape),
            "bytes": self.bytes,
            "operations": self.operations,
            "called": self.called,
            "given": self.given,
            "limit": self.limit,
            "share": self.share,
            "disturbed": list(self.disturbed),
        }

    @classmethod
    def from_json(cls, problem: Problem | TrainingProblem, found: dict[str, Any]) -> Timed:
        names = ("bytes", "operations", "called", "given", "limit")
        return cls(problem, *(found[name] for name in names), disturbed=tuple(found["disturbed"]))


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
    return max((t.bytes / t.limit for t in timed if t.limit and not t.operations), default=None)


def peak(timed: list[Timed]) -> float | None:
    """The most operations a second that were seen."""
    return max((t.operations / t.limit for t in timed if t.limit and t.operations), default=None)


def _conv(
    text: str, bound: float, join: Callable[..., float | None], *, of: str = "", peer: str = "torch", what: str = "conv"
) -> Bar:
    """A bar for the convolutions whose group begins with `what`; of one network or one kind, or of all."""

    def chosen(t: Timed) -> bool:
        head, _, network = t.problem.group.rpartition(" ")
        return head == what and of in ("", network, convolution.kind(t.problem))

    return Bar(text, bound, lambda timed: join(t.ratio(peer, "called") for t in timed if chosen(t)))


def _dense_shares(timed: list[Timed]) -> list[float | None]:
    plain = [t for t in timed if t.problem.group.rpartition(" ")[0] == "conv"]
    return [t.share for t in plain if convolution.kind(t.problem) == "dense 3x3"]


def _small_type_convolutions(timed: list[Timed]) -> list[float | None]:
    single = {t.problem.label: t.called["backstroke"] for t in timed if t.problem.group == "conv resnet_50"}
    half = {t.problem.label: t.called["backstroke"] for t in timed if t.problem.group == "conv bfloat16 resnet_50"}
    return [single[label] / half[label] for label in single if label in half]


def _small_types(timed: list[Timed]) -> list[float | None]:
    single = {t.problem.op: t.given["backstroke"] for t in timed if t.problem.group == "elementwise"}
    half = {t.problem.op: t.given["backstroke"] for t in timed if t.problem.group == "elementwise bfloat16"}
    return [single[op] / half[op] for op in single if op in half]


def _pool(
    text: str, bound: float, join: Callable[..., float | None], what: str, how: str = "given", *, large: bool = False,
    peer: str = "torch",
) -> Bar:  # fmt: skip
    """A bar for the pooling problems of that kind, the named ones and those of networks; `large`: over 32 MB."""

    def chosen(t: Timed) -> bool:
        return t.problem.group in (what, f"{what} of networks") and (not large or t.problem.output_bytes > LARGE)

    return Bar(text, bound, lambda timed: join(t.ratio(peer, how) for t in timed if chosen(t)))


def _pooling_shares(timed: list[Timed]) -> list[float | None]:
    pooling = [t for t in timed if isinstance(t.problem, Problem) and t.problem.entry.family == "pooling"]
    return [t.share for t in pooling if t.problem.output_bytes > LARGE]


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
    _pool("AvgPoolGrad NCX, output given, geometric mean against torch", 4.0, geometric_mean, "avg NCX"),
    _pool("AvgPoolGrad NCX, output given, each against torch", 1.5, least, "avg NCX"),
    _pool("AvgPoolGrad NXC, output given, geometric mean against torch", 1.3, geometric_mean, "avg NXC"),
    _pool("AvgPoolGrad NXC, output given, each against torch", 1.0, least, "avg NXC"),
    _pool("MaxPoolGrad NCX, output given, geometric mean against torch", 1.5, geometric_mean, "max NCX"),
    _pool("MaxPoolGrad NCX, output given, each against torch", 1.0, least, "max NCX"),
    _pool("MaxPoolGrad NCX over 32 MB, as called, each against torch", 3.0, least, "max NCX", "called", large=True),
    _pool("MaxPoolGrad NXC, output given, geometric mean against torch", 1.3, geometric_mean, "max NXC"),
    _pool("MaxPoolGrad NXC, output given, each against torch", 1.0, least, "max NXC"),
    _pool("AvgPoolGrad bfloat16, output given, against torch", 10.0, least, "avg bfloat16"),
    _pool("TensorFlow.js' MaxPoolGrad, against TensorFlow.js", 50.0, least, TFJS, "called", peer="tensorflow.js"),
    Bar("pooling over 32 MB, least share of streaming bandwidth", 0.6, lambda t: least(_pooling_shares(t))),
    _conv("convolutions, geometric mean against torch", 1.25, geometric_mean),
    _conv("convolutions, each against torch", 0.9, least),
    _conv("convolutions of ResNet-50, geometric mean against torch", 1.15, geometric_mean, of="resnet_50"),
    _conv("1x1 convolutions, geometric mean against torch", 1.5, geometric_mean, of="1x1"),
    _conv("depthwise convolutions, geometric mean against torch", 1.5, geometric_mean, of="depthwise"),
    _conv("convolutions of three channels, geometric mean against torch", 1.5, geometric_mean, of="first"),
    _conv("1-D convolutions, geometric mean against torch", 1.2, geometric_mean, of="1-D"),
    _conv("3-D convolutions, geometric mean against torch", 1.2, geometric_mean, of="3-D"),
    _conv("convolutions, geometric mean against ONNX Runtime", 3.0, geometric_mean, peer="onnxruntime"),
    Bar("dense 3x3 convolutions, least share of a microkernel's peak", 0.85, lambda t: least(_dense_shares(t))),
    _conv("channels last, geometric mean against torch channels_last", 1.0, geometric_mean, what="conv NXC"),
    Bar("bfloat16 ResNet-50 against our float32", 1.5, lambda t: geometric_mean(_small_type_convolutions(t))),
    _conv("bfloat16 ResNet-50 against torch bfloat16", 1.0, geometric_mean, what="conv bfloat16"),
    _bar("training steps, each against torch", 1.3, "training", "called", least),
    _bar("training steps, each against torch channels_last", 1.0, "training", "called", least, "torch channels_last"),
    _bar("training steps, each against ONNX Runtime's", 2.0, "training", "called", least, "onnxruntime training"),
)


def row(record: dict[str, Any]) -> str:
    """One line of the table."""
    called, given = record["called"], record["given"]
    cells = [f"{record['problem']:44}", f"{_time(called['backstroke'])} {_time(given['backstroke'])}"]
    share = f"{100 * record['share']:4.0f} %" if record["share"] else "      "
    operations = record["operations"]
    speed, unit = (operations, "GFLOP/s") if operations else (record["bytes"], "GB/s")
    cells.append(f"{speed / given['backstroke'] / 1e9:6.1f} {unit} {share}")
    for peer in called:
        if peer != "backstroke":
            pair = [f"{t[peer] / t['backstroke']:6.2f}" if peer in t else "     -" for t in (called, given)]
            cells.append(f"{peer} {' '.join(pair)}")
    if record["disturbed"]:
        cells.append(f"DISTURBED: {', '.join(record['disturbed'])}")
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


def times(starts: Sequence[dict[str, Any]]) -> list[str]:
    """The bars of what the first moments cost, and a small call: each with its figure, the slowest op with its name."""
    lines = []

    def line(figure: float, most: float, unit: str, text: str) -> None:
        verdict = "reached" if figure <= most else "MISSED "
        lines.append(f"  {verdict}  {figure:6.2f} {unit} (bar {most:g} {unit})  {text}")

    by_name = {each["name"]: each for each in starts}
    if startup.OVERHEAD in by_name:
        line(by_name[startup.OVERHEAD]["seconds"] * 1e6, 6, "us", "ReluGrad of 16 elements, all told")
    calls = [each for each in starts if "import" in each]
    if calls:
        line(statistics.median(each["import"] for each in calls) * 1e3, 150, "ms", "import backstroke")
    families = {op.name: op.family for op in OPS}
    # A convolution is several kernels.
    for of, several in (("op", False), ("convolution", True)):
        some = [each for each in calls if (families[each["op"]] == "convolution") == several]
        for how, most in (("cold", 100), ("from cache", 5)) if some else ():
            seconds, name = max((each[how], each["op"]) for each in some)
            line(seconds * 1e3, most, "ms", f"first call of the slowest {of} ({name}), {how}")
    resnet = by_name.get(startup.RESNET, {})
    for name, most in (("cold", 10.0), ("from cache", 0.3)):
        if name in resnet:
            line(resnet[name], most, "s", f"compiling for ResNet-50's backward pass, {name}")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:9.1f} us" if seconds < 0.1 else f"{seconds * 1e3:9.1f} ms"
