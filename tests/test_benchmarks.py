"""The benchmarks' own machinery: fair turns, figures that are joined, and the page that is made of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backstroke as bs
import peers
from benchmarks import __main__ as benchmarks_main
from benchmarks import accuracy, browser, documents, measuring, page, plots, report, scaling, summary, timing
from benchmarks.problems import PROBLEMS, Problem

_THREADS = bs.get_num_threads()


def _record(name: str, family: str, called: dict[str, float], given: dict[str, float], **other: Any) -> dict[str, Any]:
    group, _, problem = name.partition(": ")
    plain = {
        "dtype": "float32",
        "elements": 5,
        "bytes": 60,
        "operations": 0,
        "limit": None,
        "share": None,
        "disturbed": [],
    }
    return {
        "name": name, "group": group, "problem": problem, "op": problem.split()[0], "family": family, **plain,
        "called": called, "given": given, **other,
    }  # fmt: skip


@pytest.fixture
def figures() -> dict[str, Any]:
    """A made-up figures file."""
    called, given = {"backstroke": 1.0, "torch": 9.0, "numpy": 4.0}, {"backstroke": 0.5, "torch": 1.0}
    problems = [
        _record("elementwise: relu_grad 5", "activation", called, given, share=0.9, limit=0.45),
        _record("elementwise: tanh_grad 5", "activation", called, {**given, "torch": 0.25}),
        _record("elementwise bfloat16: relu_grad 5 bfloat16", "activation", called, given, dtype="bfloat16"),
        _record("small: relu_grad 1000 <b>", "activation", called, given),
        _record("max NXC of networks: max_pool_grad 8x5", "pooling", called, given),
        _record("conv resnet_50: conv_grad a/b 8x5 kernel3x3", "convolution", called, given, operations=9, share=0.8),
    ]
    by_threads = {name: {"1": 2.0, "2": 1.0} for name in ("backstroke", "torch")}
    ulp = {"max": 2.0, "p99": 1.0, "mean": 0.4, "scaled": 0.0}
    start = {"op": "relu_grad", "import": 0.1, "cold": 0.05, "from cache": 0.005}
    return {
        "machine": {"cpu": "made up", "cpus": 2, "python": "3"},
        "threads": 2,
        "versions": {"backstroke": "1", "torch": "2", "numpy": "3"},
        "date": "2026-01-01",
        "quick": False,
        "of": 8,
        "absent": {},
        "problems": problems,
        "training": [
            {"name": "t", "problem": "training step N 3x3", "seconds": {"backstroke": 1.0, "torch": 2.5}, "absent": {}}
        ],
        "by_threads": [_record("threads: relu_grad 5", "activation", by_threads, by_threads)],
        "sizes": [_record(f"sizes: relu_grad {n}", "activation", called, given, elements=n) for n in (10, 1000)],
        "startup": [
            {"name": "startup: a small call", "seconds": 4e-7},
            {"name": "startup: ResNet-50", "cold": 9.0, "from cache": 0.2},
            {"name": "startup: relu_grad", **start, "peers": {"torch": {"import": 0.9, "first": 0.001}}},
        ],
        "accuracy": [
            {"name": "accuracy: a", "problem": "a 5", "op": "a", "ulp": {"backstroke": ulp, "torch": ulp}},
            {
                "name": "accuracy: b", "problem": "b 5", "op": "b",
                "ulp": {"backstroke": ulp, "torch": {**ulp, "mean": 0.3}, "numpy": ulp},
            },
        ],
        "bandwidth": 7e10,
        "peak": None,
        "bars": ["  reached    1.27 (bar 1.00)  one", "  MISSED     0.50 (bar 1.00)  two", "  not measured  three"],
    }  # fmt: skip


class _Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now, self.sleeps, self.preempted = 0.0, 0, 0

    def sleep(self, seconds: float) -> None:
        self.now, self.sleeps = self.now + seconds, self.sleeps + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing, "_running", lambda: 1)
    monkeypatch.setattr(timing, "_preempted", lambda: clock.preempted)
    return clock


def test_turns_in_which_the_threads_shared_a_cpu_do_not_count(clock: _Clock) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.now += 5e-6 if 15 < calls < 25 else 8e-3  # most turns are hit, not all

    def steady() -> None:
        clock.now += 1e-3

    for order in ((call, steady), (steady, call)):
        calls = 0
        seconds = dict(zip(order, timing.interleaved(order), strict=True))
        assert seconds[steady] == pytest.approx((1e-3, False))
        assert seconds[call] == pytest.approx((5e-6, False))


def test_a_disturbed_turn_is_taken_anew(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_running", lambda: 2)
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        shared = calls % 20 < 15
        clock.now += 0.08 if shared else 0.03
        clock.preempted += 8 * shared

    assert timing.interleaved([call], 3)[0] == pytest.approx((0.03, False))

    def always() -> None:  # whoever is always disturbed is taken as it is, after as many turns again
        nonlocal calls
        calls += 1
        clock.now += 0.05 + 0.001 * calls
        clock.preempted += 10

    calls = 0
    (taken,) = timing.interleaved([always], 3)
    assert calls == 4 + 2 * 2 * 3
    assert taken == pytest.approx((0.05 + 0.001 * 6, True))
    monkeypatch.setattr(timing, "_running", lambda: 1)  # nobody else: it is the call's own way
    assert not timing.interleaved([always], 3)[0].disturbed


def test_slow_calls_get_fewer_turns(clock: _Clock) -> None:
    count = {0.05: 0, 0.3: 0, 1.0: 0, 5.0: 0}

    def call(seconds: float) -> None:
        count[seconds] += 1
        clock.now += seconds

    calls = [lambda seconds=seconds: call(seconds) for seconds in count]
    assert [taken.seconds for taken in timing.interleaved(calls)] == pytest.approx(list(count))
    assert count == {0.05: 4 + 7 * 2, 0.3: 2 + 3, 1.0: 2 + 1, 5.0: 1}


def test_a_turn_waits_until_the_machine_is_quiet(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [3, 2, 1, 9, 9]
    monkeypatch.setattr(timing, "_running", lambda: others.pop(0))
    timing.pause(8)
    assert clock.sleeps == 3
    monkeypatch.setattr(timing, "_running", lambda: 2)
    timing.pause(8)
    assert clock.sleeps == 3 + 8


def test_how_many_threads_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing._running() >= 0
    monkeypatch.setattr(timing, "_LOAD", tmp_path / "loadavg")
    assert timing._running() == 0
    (tmp_path / "loadavg").write_text("0.1 0.1 0.1 4/180 1234\n")
    assert timing._running() == 4


# ---- what is measured, and its file ---------------------------------------------------------------------------------


def test_every_piece_of_work_has_a_name_of_its_own_and_the_quick_ones_exist() -> None:
    found = [(work.section, work.name) for work in measuring.works()]
    assert len(set(found)) == len(found)
    assert {section for section, _ in found} == set(measuring.SECTIONS)
    quick = {(work.section, work.name) for work in measuring.works() if work.quick}
    assert {name for section, name in quick if section == "problems"} == measuring.QUICK
    assert {section for section, _ in quick} == set(measuring.SECTIONS)
    families = {problem.entry.family for problem in PROBLEMS if problem.name in measuring.QUICK}
    assert families == {problem.entry.family for problem in PROBLEMS}


def test_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 24)
    assert scaling.thread_counts(2) == [1, 2, 3, 4, 8, 16, 24]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert scaling.thread_counts(2) == [1, 2]
    assert scaling.thread_counts(3) == [1, 2, 3]


def test_distances_are_in_units_of_the_last_place() -> None:
    want = np.array([1.0, 1.0, 2.0**-20, 4.0])
    got = (want + np.array([0, 2.0**-23, 2.0**-42, 0])).astype(np.float32)
    found = accuracy.distances([(got[:2], want[:2]), (got[2:], want[2:])])
    assert (found["max"], found["mean"]) == (2, 0.75)
    assert found["scaled"] == 1  # of the first pair, beside a 1; of the second, beside a 4, it would be nothing


def test_accuracy_of_everybody_on_the_same_data() -> None:
    problem = Problem("tanh_grad", (40, 30), "accuracy")
    record = accuracy.of(problem, [peers.named("backstroke"), peers.named("numpy")])
    assert record["ulp"]["backstroke"]["max"] <= 2
    assert record["ulp"]["numpy"]["max"] > record["ulp"]["backstroke"]["max"]  # 1 - y y loses digits
    with pytest.raises(ValueError, match="nobody"):
        peers.named("nobody")


def _work(name: str, log: list[str]) -> measuring.Work:
    def measure(now: measuring.Circumstances) -> dict[str, Any]:
        disturbed = ["torch"] if name == "startup: a" and not log else []
        log.append(name)
        return {"op": "relu_grad", "cold": 0.123456789, "disturbed": disturbed}

    return measuring.Work("startup", name, measure, quick=name == "startup: a")


def test_a_long_run_can_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    file = tmp_path / "new" / "figures.json"
    names = ["startup: a", "startup: b", "startup: c"]
    monkeypatch.setattr(benchmarks_main, "works", lambda: [_work(name, log) for name in names])

    def run(*arguments: str) -> list[str]:
        log.clear()
        monkeypatch.setattr("sys.argv", ["benchmarks", "--peers", "", "--json", str(file), *arguments])
        benchmarks_main.main()
        return [record["name"] for record in json.loads(file.read_text())["startup"]]

    try:
        assert run("--quick") == ["startup: a"]
        assert run("--keep", "--minutes", "4", "--only", "b$") == ["startup: b"]  # a quick run's figures are not kept
        assert run("--keep", "--minutes", "4") == names
        assert log == ["startup: a", "startup: c"]
        assert run("--keep", "--only", "b$") == names
        assert log == ["startup: b"]
        assert run("--keep", "--minutes", "4") == names
        assert log == ["startup: a"]  # which was disturbed
        assert run("--keep", "--only", "a$") == names
        assert run("--only", "b$") == ["startup: b"]
        monkeypatch.setattr(time, "monotonic", iter(range(0, 10**6, 100)).__next__)
        assert run("--minutes", "3") == ["startup: a"]
    finally:
        bs.set_num_threads(_THREADS)


# ---- what is made of it ---------------------------------------------------------------------------------------------


def test_like_is_compared_with_like() -> None:
    record: dict[str, Any] = {"called": {"backstroke": 1.0, "torch": 9.0, "jax": 3.0}, "disturbed": []}
    record["given"] = {"backstroke": 0.5, "torch": 2.0}
    assert summary.ratio(record, "torch") == 4
    assert summary.ratio(record, "torch", "called") == 9
    assert summary.ratio(record, "jax") == 3
    assert summary.ratio(record, "jax", "given") is None
    assert summary.ratio(record, "onednn") is None
    record["disturbed"] = ["torch"]
    assert summary.ratio(record, "torch") is None
    assert summary.ratio(record, "jax") == 3
    assert summary.disturbed({"problems": [record]}) == 1


def test_the_summary(figures: dict[str, Any]) -> None:
    families = summary.by_family(figures)
    names = ["Activations", "Activations, bfloat16", "Small calls", "Max pooling, channels last", "Convolution"]
    assert list(families) == names
    ratios = summary.Ratios.of(families["Activations"], "torch")
    assert ratios.values == (0.5, 2.0)
    assert (ratios.mean, ratios.won, ratios.quantile(0.95)) == (1.0, 1, 2.0)
    assert [(r, peer) for r, peer, _ in summary.slower(figures)] == [(0.5, "torch")]
    assert summary.fastest(figures) == (5, 6)
    assert summary.closest(figures) == (1, 2)
    assert "6 of 8 problems" in summary.heading(figures)
    assert "quick run" in summary.heading({**figures, "quick": True})
    assert summary.share(families["Activations"]) == 0.9
    assert summary.share(families["Small calls"]) is None
    assert [summary.seconds(s) for s in (2.5, 0.0123, 3e-7)] == ["2.50 s", "12.3 ms", "0.30 us"]
    assert [summary.times(r) for r in (0.5, 12.345, 1234.5, None)] == ["0.50x", "12.3x", "1,234x", "-"]


def test_the_figures_file_has_a_line_for_each_record(figures: dict[str, Any]) -> None:
    text = summary.dumps(figures)
    assert json.loads(text)["problems"][0]["name"] == figures["problems"][0]["name"]
    assert sum('"name": "elementwise' in line for line in text.splitlines()) == 3
    assert json.loads(summary.dumps({"a": [1.23456789], "b": [], "c": {"d": 2 / 3}})) == {
        "a": [1.2346], "b": [], "c": {"d": 0.66667},
    }  # fmt: skip


def test_the_page_has_everything_in_it(figures: dict[str, Any]) -> None:
    text = page.page(figures)
    for tag in ("<script", "<link rel=stylesheet", "@import", "src=", "url(http"):
        assert tag not in text
    assert not re.findall(r'href="(?!#|data:)[^"]*"', text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert not set(re.findall(r"(?:href=\"?#|url\(#)([\w-]+)", text)) - set(ids)
    plots_of = re.findall(r'<figure id="([^"]+)".*?</figure>', text, re.DOTALL)
    assert plots_of == [
        f"figure-{name}" for name in (
            "overview", "activations", "small", "max-pooling", "convolution", "limit", "threads", "sizes", "start",
            "accuracy-plot",
        )
    ]  # fmt: skip
    assert text.count("<svg") == 2 * len(plots_of)
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not [colour for colour in plots.LIGHT.values() if colour in svgs]
    assert "var(--torch)" in svgs
    assert len(set(plots.LIGHT.values())) == len(plots.LIGHT) == len(plots.DARK)
    assert "relu_grad 1000 &lt;b&gt;" in text  # names are text, not HTML
    assert "missed" in text


def test_what_was_disturbed_is_in_no_plot(figures: dict[str, Any]) -> None:
    figures["sizes"] = [{**record, "called": {"torch": 1.0, "backstroke": 1.0}} for record in figures["sizes"]]
    clean = plots.sizes(figures, plots.WIDE)
    figures["sizes"] = [{**record, "disturbed": ["torch"]} for record in figures["sizes"]]
    less = plots.sizes(figures, plots.WIDE)
    assert clean is not None
    assert less is not None
    assert (len(clean.axes[0].lines), len(less.axes[0].lines)) == (2, 1)


def test_the_page_of_a_run_of_which_little_is_there(figures: dict[str, Any]) -> None:
    few = {**figures, "versions": {"backstroke": "1"}, "absent": {"torch": "not installed"}}
    few |= {name: [] for name in ("training", "by_threads", "sizes", "startup", "accuracy", "bars")}
    few["problems"] = [{**figures["problems"][0], "called": {"backstroke": 1.0}, "given": {"backstroke": 1.0}}]
    text = page.page(few)
    assert "torch: not installed" in text
    assert "NaN" not in text
    few["problems"] = []
    assert "<h1>" in page.page(few)


def test_the_pictures_say_what_they_were_made_from(
    figures: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = page.digest(summary.dumps(figures))
    written = page.write(figures, tmp_path, source)
    assert {p.name for p in written} == {"index.html"} | {
        f"{name}-{theme}.png" for name in page.PNGS for theme in ("light", "dark")
    }
    monkeypatch.setattr(documents, "FIGURES", tmp_path / "figures.json")
    assert documents.stale_pictures(source) == []
    assert len(documents.stale_pictures(page.digest("others"))) == 4


def test_the_documents(figures: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = documents.figures_page(figures)
    assert "| elementwise" not in text
    assert "| relu_grad 5 | 1.00 s | 500.0 ms | 90 % | 9.00x / 2.00x |" in text.replace("500 ms", "500.0 ms")
    assert "1.00x (1/2)" in documents.readme_figures(figures)
    for name in ("## First calls", "## Training steps", "## Threads", "## Accuracy", "## Bars", "### Convolution"):
        assert name in text
    file = tmp_path / "quick.json"
    file.write_text(summary.dumps({**figures, "quick": True}))
    monkeypatch.setattr("sys.argv", ["documents", "--figures", str(file)])
    assert documents.main() == 2


# ---- the browser ----------------------------------------------------------------------------------------------------

_PLOT = {"left": 10, "right": 380, "width": 370, "height": 200, "drawn": 50, "outside": 0, "letters": 11}
_SEEN = {
    "figures": [{"name": "a", "plots": [_PLOT]}], "width": 390, "scroll": 390, "height": 900, "fetched": [],
    "paper": "rgb(255, 255, 255)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fetched": ["https://a/b.js"]}, "fetches https://a/b.js"),
        ({"scroll": 391}, "391 pixels wide in a window of 390"),
        ({"figures": []}, "no plots"),
        ({"figures": [{"name": "a", "plots": []}]}, "0 plots show"),
        ({"figures": [{"name": "a", "plots": [_PLOT, _PLOT]}]}, "2 plots show"),
        ({"figures": [{"name": "a", "plots": [{**_PLOT, "right": 391}]}]}, "not in the window"),
        ({"figures": [{"name": "a", "plots": [{**_PLOT, "drawn": 3}]}]}, "hardly anything"),
        ({"figures": [{"name": "a", "plots": [{**_PLOT, "outside": 2}]}]}, "2 marks or words"),
        ({"figures": [{"name": "a", "plots": [{**_PLOT, "letters": 6.0}]}]}, "letters of 6.0"),
        ({"paper": "rgb(16, 23, 30)"}, "the paper is"),
    ],
)
def test_what_is_wrong_with_a_page_is_said(change: dict[str, Any], words: str) -> None:
    assert browser.problems(_SEEN, dark=False) == []
    (said,) = browser.problems(_SEEN | change, dark=False)
    assert words in said


@pytest.mark.skipif(bool(browser.why_absent()), reason=browser.why_absent())
def test_a_browser_looks_at_the_page(figures: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(page.page(figures))
    assert browser.look(tmp_path / "index.html", tmp_path / "shots") == []
    assert {p.name for p in (tmp_path / "shots").iterdir()} == {f"{name}.png" for name in browser.SIGHTS} | {
        "print.pdf"
    }
    bad = page.page(figures).replace("</main>", "<p style='width:2000px'>x</p><script>nowhere()</script></main>")
    (tmp_path / "bad.html").write_text(bad)
    wrong = browser.look(tmp_path / "bad.html", tmp_path / "shots")
    for name in browser.SIGHTS:
        assert any(text.startswith(f"{name}: ") and "nowhere is not defined" in text for text in wrong)
    assert any("2000 pixels" in text or "pixels wide in a window of 390" in text for text in wrong)


def test_the_bars_of_the_first_moments() -> None:
    calls = {"relu_grad": (0.06, 0.0045), "tanh_grad": (0.05, 0.0055), "conv": (0.16, 0.004)}
    starts: list[dict[str, Any]] = [
        {"name": f"startup: {op}", "op": op, "import": 0.14, "cold": cold, "from cache": cached}
        for op, (cold, cached) in calls.items()
    ]
    lines = report.times([*starts, {"name": "startup: a small call", "seconds": 7e-6}])
    found = {line.split(")  ")[1]: line.split()[0] for line in lines}
    assert found == {
        "ReluGrad of 16 elements, all told": "MISSED",
        "import backstroke": "reached",
        "first call of the slowest op (relu_grad), cold": "reached",
        "first call of the slowest op (tanh_grad), from cache": "MISSED",
        "first call of the slowest convolution (conv), cold": "MISSED",
        "first call of the slowest convolution (conv), from cache": "reached",
    }
    assert report.times([]) == []
