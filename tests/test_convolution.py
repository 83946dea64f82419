"""The convolution kernels against their float64 twins: every plan of every algorithm, rank, layout, type and target.

The tests know no algorithm by name; they run what stands in the tables of `choices`. Arguments, and what is bad input,
are in `test_convolution_api.py`.
"""

from __future__ import annotations

import functools
import itertools
import signal
import textwrap
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import BFLOAT16, DTYPES, Guarded, same_bits
from convolution_choices import Fenced, any_plan, every_plan
from convolution_problems import Problem, problem, problems, recorded
from helpers import python, try_python
from hypothesis import given, settings
from hypothesis import strategies as st

import backstroke as bs
from backstroke import memory
from backstroke.convolution import choices, conv, conv_grad, plan, plans, reference
from backstroke.jit import compile as compiler
from backstroke.jit import target
from backstroke.known import forget
from benchmarks.convolution import layers

NAMES = ("y", "dx", "dw", "db")
any_type, any_target = st.sampled_from(DTYPES), st.sampled_from(target.runnable())
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = bs.get_num_threads()
    yield
    bs.set_num_threads(before)


def places(p: Problem, dtype: Any, shift: int = 0) -> list[Guarded]:
    return [Guarded(shape, dtype, shift) for shape in (p.shapes.y, p.x, p.w, p.shapes.b)]


def computed(p: Problem, given: tuple[np.ndarray, ...], shift: int = 0) -> list[np.ndarray]:
    """y, dx, dw and db of (dy, x, w, b), in guarded memory; the guards are checked."""
    dy, x, w, b = given
    outs = places(p, dy.dtype, shift)
    y, dx, dw, db = (out.array for out in outs)
    with Fenced():
        assert conv(x, w, b, **p.options, out=y) is y
        conv_grad(dy, x, w, **p.options, out=(dx, dw, db))
    for name, out in zip(NAMES, outs, strict=True):
        assert out.intact(), f"written beside {name}"
    return [y, dx, dw, db]


def twins(p: Problem, given: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    dy, x, w, b = given
    return [reference.conv(x, w, b, **p.options), *reference.conv_grad(dy, x, w, **p.options)]


def assert_exact(p: Problem, dtype: Any, what: Any = "", shift: int = 0) -> list[np.ndarray]:
    """On integers every sum is exact, and rounded once where the type is small."""
    given = p.whole(dtype, most=2)
    results = computed(p, given, shift)
    for name, ours, exact in zip(NAMES, results, twins(p, given), strict=True):
        assert np.array_equal(ours, exact.astype(dtype)), (name, p, what)
    return results


def assert_close(p: Problem, dtype: np.dtype, what: Any = "", shift: int = 0) -> None:
    """Within eps x length elementwise, and eps x sqrt(length) in norm, of the root of the sum of the terms' squares.

    Which is what a sum would be were its terms independent. 16-bit types are rounded once more.
    """
    given = p.normal(dtype)
    dy, x, w, b = (a.astype(np.float64) for a in given)
    scales = twins(p, (dy * dy, x * x, w * w, b * b))
    lengths = twins(p, tuple(np.ones(a.shape) for a in given))
    sums = np.float64 if dtype == np.float64 else np.float32
    least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    unit, last = float(np.finfo(sums).eps), 0.0 if dtype == sums else float(ml_dtypes.finfo(dtype).eps) / 2
    for name, ours, exact, squares, length in zip(
        NAMES, computed(p, given, shift), twins(p, given), scales, lengths, strict=True
    ):
        off, scale, rounding = np.abs(ours.astype(np.float64) - exact), np.sqrt(squares), last * np.abs(exact)
        bound = unit * length * scale * (1 + last) + rounding + (least if last else 0)
        assert (off <= bound).all(), (name, p, what, float((off / np.maximum(bound, 1e-300)).max()))
        norm = unit * np.sqrt(length.max(initial=0)) * np.linalg.norm(scale) + np.linalg.norm(rounding + least)
        assert np.linalg.norm(off) <= norm, (name, p, what)


# ---- against the twin -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(problems(), any_type, any_target, st.integers(0, 17), st.booleans())
def test_what_the_cost_model_chooses(p: Problem, dtype: np.dtype, name: str, shift: int, whole: bool) -> None:
    with target.using(name):
        (assert_exact if whole else assert_close)(p, dtype, name, shift)


@settings(deadline=None, max_examples=120)
@given(problems(empty=False), any_type, any_target, st.booleans(), seeds, st.sampled_from([1, 16, 256, 4096]))
def test_any_plan(p: Problem, dtype: np.dtype, name: str, whole: bool, seed: int, squeeze: int) -> None:
    """A plan by chance, with caches of any size, is right."""
    with target.using(name), any_plan(seed, squeeze):
        (assert_exact if whole else assert_close)(p, dtype, (name, seed, squeeze))


# One of each kind, with sizes that divide by nothing.
KINDS = {
    "dense": problem(3, 5, 19, (9, 13), (3, 3), pads=((1, 0), (2, 1))),
    "wide": problem(2, 21, 37, (6, 7), (3, 2), pads=1),
    "1x1": problem(3, 18, 35, (7, 11), (1, 1)),
    "first": problem(2, 3, 20, (17, 19), (7, 7), pads=3, strides=2),
    "strided": problem(3, 4, 17, (11, 10), (3, 2), pads=((2, 0), (1, 4)), strides=(2, 3)),
    "dilated": problem(2, 4, 18, (10, 12), (3, 3), pads=2, dilations=(2, 1)),
    "depthwise": problem(2, 19, 19, (9, 17), (3, 3), pads=1, group=19),
    "multiplier": problem(2, 5, 15, (8, 9), (3, 3), pads=1, strides=2, group=5),
    "grouped": problem(2, 12, 18, (7, 9), (3, 3), pads=1, group=3),
    "line": problem(3, 7, 20, (53,), (4,), pads=((3, 0),), dilations=2),
    "patches": problem(2, 3, 17, (20, 33), (9, 11), pads=((1, 0), (2, 3)), strides=(9, 12)),
    "unseen": problem(1, 2, 1, (1,), (1,), strides=2, pads=((1, 0),)),  # every window lies in the padding
    "solid": problem(2, 3, 18, (4, 5, 6), (3, 2, 3), pads=1, strides=(1, 2, 1)),
}


def turned(p: Problem, layout: str) -> Problem:
    n, c, *size = p.x
    return problem(n, c, p.w[0], size, p.w[2:], **{**p.options, "layout": layout})


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_plan(kind: str, layout: str) -> None:
    """Every plan that any algorithm offers: with the caches there are and with hardly any, for 32 registers and 16."""
    p = turned(KINDS[kind], layout)
    for name, squeeze, dtype in (("host", 1, np.float32), ("x86-64-v3", 512, BFLOAT16), ("host", 512, np.float64)):
        if name in target.runnable():
            with target.using(name):
                for what in every_plan(squeeze):
                    assert_exact(p, dtype, (what, name, squeeze))


@pytest.mark.parametrize("name", target.runnable())
@pytest.mark.parametrize("algorithm", choices.ALGORITHMS)
def test_every_algorithm(algorithm: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each where it can, under every target, each kind in another type."""
    monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
    turn = target.runnable().index(name)
    with target.using(name):
        for number, (p, layout) in enumerate(itertools.product([*KINDS.values(), ODD], ["NCX", "NXC"])):
            assert_close(turned(p, layout), DTYPES[(number // 2 + number + turn) % len(DTYPES)], (algorithm, name))


@pytest.mark.parametrize("algorithm", choices.ALGORITHMS)
def test_onnx_runtimes_cases(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
    for number, case in enumerate(recorded()):
        dy, *_ = assert_exact(case.problem, DTYPES[number % len(DTYPES)], (algorithm, case.name))
        assert dy.shape == case.dy


ODD = problem(2, 3, 4, (2, 3), (5, 6), pads=((7, 1), (0, 8)))  # kernel larger than the input, pads than the kernel


@settings(deadline=None, max_examples=30)
@given(problems(), any_type, seeds)
def test_adjoint_and_bilinear(p: Problem, dtype: np.dtype, seed: int) -> None:
    """<dy, conv(v, w)> == <dx, v> for any v, <dy, conv(x, u)> == <dw, u> for any u, exactly on small integers."""
    dy, x, w, _ = p.whole(dtype, most=1)
    _, v, u, c = Problem(p.x, p.w, p.options, seed).whole(dtype, most=1)
    grads = conv_grad(dy, x, w, **p.options)
    answers = [conv(v, w, **p.options), conv(x, u, **p.options), conv(np.zeros_like(x), w, c, **p.options)]
    if dtype == BFLOAT16 and max(np.abs(a.astype(np.float64)).max(initial=0) for a in (*answers, *grads)) >= 256:
        return  # rounded
    for y, gradient, direction in zip(answers, grads, (v, u, c), strict=True):
        left, right = (np.sum(a.astype(np.float64) * c.astype(np.float64)) for a, c in ((dy, y), (gradient, direction)))
        assert left == right


# ---- the same bits --------------------------------------------------------------------------------------------------

THREADS = (1, 2, 3, 7)
SHARED = [
    problem(4, 24, 40, (29, 31), (3, 3), pads=1),
    problem(3, 40, 24, (28, 28), (1, 1), strides=2),
    problem(5, 32, 32, (23, 19), (3, 3), pads=1, group=32),
    problem(1, 16, 48, (700,), (2,), dilations=4),
    problem(2, 8, 20, (6, 10, 9), (3, 3, 3), pads=1, strides=(1, 2, 2)),
]


@pytest.mark.parametrize("p", SHARED, ids=str)
@pytest.mark.parametrize("algorithm", ["", *choices.ALGORITHMS])
def test_same_bits_for_any_number_of_threads(algorithm: str, p: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
    for layout, dtype in itertools.product(["NCX", "NXC"], [np.float32, BFLOAT16]):
        q = turned(p, layout)
        dy, x, w, b = q.normal(dtype)
        first: list[np.ndarray] = []
        for count in (*THREADS, 2):
            bs.set_num_threads(count)
            results = [conv(x, w, b, **q.options), *conv_grad(dy, x, w, **q.options)]
            first = first or results
            for name, ours, other in zip(NAMES, results, first, strict=True):
                assert same_bits(ours, other), (name, q, count)


@settings(deadline=None, max_examples=30)
@given(problems(empty=False), any_type, seeds, st.sampled_from([16, 4096]))
def test_same_bits_with_any_plan(p: Problem, dtype: np.dtype, seed: int, squeeze: int) -> None:
    with any_plan(seed, squeeze):
        dy, x, w, b = p.normal(dtype)
        found = []
        for count in THREADS:
            bs.set_num_threads(count)
            found.append([conv(x, w, b, **p.options), *conv_grad(dy, x, w, **p.options)])
    assert all(same_bits(*pair) for results in found[1:] for pair in zip(found[0], results, strict=True))


# ---- nothing else ---------------------------------------------------------------------------------------------------

LOCKED = """
import ctypes, mmap
import numpy as np
import backstroke as bs

libc = ctypes.CDLL(None)

def locked(a):  # an array of that shape in memory that cannot be read
    memory = mmap.mmap(-1, 1 << 20)
    assert a.nbytes <= 1 << 20
    assert libc.mprotect(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))), 1 << 20, 0) == 0
    return np.frombuffer(memory, np.float32, a.size).reshape(a.shape)

rng, layout = np.random.default_rng(1), "LAYOUT"
shapes = [(2, 4, 9, 9), (4, 2, 3, 3)] if layout == "NCX" else [(2, 9, 9, 4), (3, 3, 2, 4)]
x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
dy, options = x[::-1].copy(), dict(pads=1, group=2, layout=layout)
whole = bs.conv_grad(dy, x, w, **options)
"""


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("algorithm", ["", *choices.ALGORITHMS])
def test_what_wrt_leaves_out_is_not_computed(algorithm: str, layout: str) -> None:
    """dx needs no x, dw no w, db neither: those lie in memory that ends the process when it is read."""
    code = LOCKED.replace("LAYOUT", layout) + textwrap.dedent("""
        for wrt, given in dict(x=(locked(x), w), w=(x, locked(w)), b=(locked(x), locked(w))).items():
            some = bs.conv_grad(dy, *given, wrt=wrt, **options)
            for name, ours, each in zip("xwb", some, whole):
                assert (ours is None) == (name != wrt)
                assert ours is None or ours.tobytes() == each.tobytes()
        print("computed")
    """)
    assert python(code, BACKSTROKE_CONV_ALGORITHM=algorithm) == "computed\n"


@pytest.mark.parametrize("call", ["conv_grad(dy, locked(x), w, wrt='w'", "conv_grad(dy, x, locked(w), wrt='x'"])
def test_locked_memory_ends_who_reads_it(call: str) -> None:
    """Or the test above would prove nothing."""
    assert try_python(LOCKED.replace("LAYOUT", "NCX") + f"bs.{call}, **options)").returncode == -signal.SIGSEGV


class Borrowed:
    """How many bytes a call takes: from the pool, and from Python's memory at the most."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> Borrowed:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(memory.pool, "empty", self._empty)
        tracemalloc.start()
        return self

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.bytes += size
        return np.broadcast_to(np.zeros((), dtype), shape) if size > 1 << 20 else np.zeros(shape, dtype)

    def __exit__(self, *_: object) -> None:
        self.bytes += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self._patch.undo()


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_working_memory(layout: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 8 MB for each thread and one packed copy of the weights; over all layers that are timed.

    Kernels take no memory of their own, so they need not run: what Python takes for them is counted.
    """
    ran: list[Any] = []
    prepared = SimpleNamespace(call=lambda *given: ran.append(given) or True)
    monkeypatch.setattr(compiler, "kernel", lambda *_, **__: None)
    monkeypatch.setattr(plans, "Prepared", lambda *_, **__: prepared)
    forget()
    for algorithm, threads in itertools.product(["", *choices.ALGORITHMS] if dtype == np.float32 else [""], (1, 2)):
        monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
        bs.set_num_threads(threads)
        for what, p in benchmarked(layout).items():
            dy, x, w, y, dx, dw = (np.empty(s, dtype) for s in (p.shapes.y, p.x, p.w, p.shapes.y, p.x, p.w))
            db, packed = np.empty(p.shapes.b, dtype), w.size * max(w.itemsize, 4)
            for call in (
                lambda: conv(x, w, **p.options, out=y),  # noqa: B023 - called at once
                lambda: conv_grad(dy, x, w, wrt="x", **p.options, out=dx),  # noqa: B023
                lambda: conv_grad(dy, x, w, wrt=("w", "b"), **p.options, out=(dw, db)),  # noqa: B023
            ):
                with Borrowed() as taken:
                    call()
                assert taken.bytes <= packed + threads * (8 << 20), (what, algorithm, threads, taken.bytes)
    forget()
    assert ran


@functools.cache
def benchmarked(layout: str) -> dict[str, Problem]:
    """The distinct layers that are timed."""
    found = {}
    for _, _, (batch, channels, *size), options in layers():
        rest = {name: value for name, value in options.items() if name not in ("outputs", "kernel")}
        p = problem(batch, channels, options["outputs"], size, options["kernel"], layout=layout, **rest)
        found[str(p)] = p
    assert len(found) > 100
    return found


# ---- which and why --------------------------------------------------------------------------------------------------


PARTS = {"forward": choices.SWEEPS, "dx": choices.SWEEPS, "dw": choices.WEIGHTS}


def test_the_plan_says_what_is_chosen_and_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced algorithm is taken wherever it can be, and each can be somewhere."""
    taken = set()
    for p, layout in itertools.product(KINDS.values(), ["NCX", "NXC"]):
        q = turned(p, layout)
        monkeypatch.delenv("BACKSTROKE_CONV_ALGORITHM", raising=False)
        free = plan("conv_grad", q.x, q.w, **q.options)
        for algorithm in choices.ALGORITHMS:
            monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
            forced = plan("conv_grad", q.x, q.w, **q.options)
            for part, table in PARTS.items():
                choice, otherwise = getattr(forced, part), getattr(free, part)
                assert choice == otherwise or choice.algorithm == algorithm
                assert choice.algorithm in table
                assert choice.cycles >= otherwise.cycles > 0
                assert f"{part}={choice.algorithm} (about " in repr(forced)
                taken |= {choice.algorithm} & {algorithm}
    assert taken == set(choices.ALGORITHMS)


def test_an_algorithm_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", "magic")
    _, x, w, _ = KINDS["dense"].normal(np.float32)
    for call in (lambda: conv(x, w), lambda: plan("conv", x.shape, w.shape)):
        with pytest.raises(ValueError, match=r"BACKSTROKE_CONV_ALGORITHM is 'magic'; expected one of channels, "):
            call()
