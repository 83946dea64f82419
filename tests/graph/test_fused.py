"""Fused kernels: the same numbers as the formulas on arrays, the same bits for any threads, nothing allocated."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.helpers import run

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import backstroke as bs
from backstroke.graph import Differentiable
from backstroke.graph.formulas import FORMULAS
from backstroke.graph.fuse import Fusion, Part, Unit, sum_part
from backstroke.graph.fused import Fused
from backstroke.jit import functions, target
from tests.graph.models import Array, model, node, normal, positive

Arrays = dict[str, Array]
every_target = pytest.mark.parametrize("name", target.runnable())


def fused(parts: list[Part], arrays: Arrays, wanted: set[str] | None = None) -> list[Unit]:
    """The kernels that these parts become, run on the arrays; what they write is put among them."""
    units = [Unit(lambda *_: None, [x for x in p.takes if isinstance(x, str)], [p.output], p) for p in parts]
    shapes = {p.output: p.space if p.kept is None else _kept_shape(p) for p in parts}
    kinds = {p.output: p.dtype for p in parts}

    def like(name: str) -> Array:
        return arrays[name] if name in arrays else np.empty(shapes[name], kinds[name])

    last = wanted if wanted is not None else {parts[-1].output}
    made = Fusion(units, lambda name: name, like, last, lambda name: (name, None)).run()
    for unit in made:
        assert isinstance(unit.run, Fused)
        arrays |= {name: np.full(shapes[name], 99, kinds[name]) for name in unit.writes}
        unit.run(*(arrays[name] for name in (*unit.reads, *unit.writes)))
    return made


def _kept_shape(part: Part) -> tuple[int, ...]:
    assert part.kept is not None
    return tuple(n if keep else 1 for n, keep in zip(part.space, part.kept, strict=True))


SPACES = [(5,), (3, 17), (2, 3, 5, 7), (1, 4, 1, 33), (40, 16, 1, 1), (2, 1, 70), (4, 5000)]
FLOAT, BOOL = np.dtype(np.float32), np.dtype(bool)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_broadcasting_in_every_way(space: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(6):
        a, b = (rng.standard_normal([n if rng.random() < 0.6 else 1 for n in space]).astype(FLOAT) for _ in range(2))
        arrays = {"a": a, "b": b, "c": rng.standard_normal(space).astype(FLOAT)}
        parts = [
            Part("Mul", {}, ["a", "c"], space, "d", FLOAT),
            Part("Greater", {}, ["d", "b"], space, "e", BOOL),
            Part("Where", {}, ["e", "d", 0.5], space, "y", FLOAT),
        ]
        made = fused(parts, arrays, {"e", "y"})
        assert len(made) == 1
        d = a * arrays["c"]
        np.testing.assert_array_equal(arrays["e"], np.broadcast_to(d > b, space))
        np.testing.assert_array_equal(arrays["y"], np.where(d > b, d, np.float32(0.5)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_sums_over_any_axes(space: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    for bits in range(1, 2 ** len(space)):
        axes = [i for i in range(len(space)) if bits >> i & 1]
        arrays = {"x": rng.standard_normal(space).astype(FLOAT), "m": rng.standard_normal(space[-1]).astype(FLOAT)}
        parts = [
            Part("Mul", {}, ["x", "m"], space, "p", FLOAT),
            sum_part("p", space, axes, "s", FLOAT),
            sum_part("x", space, axes, "t", FLOAT),
        ]
        assert len(fused(parts, arrays, {"p", "s", "t"})) == 1
        x, m = (arrays[name].astype(np.float64) for name in "xm")
        np.testing.assert_allclose(arrays["s"], (x * m).sum(tuple(axes), keepdims=True), rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(arrays["t"], x.sum(tuple(axes), keepdims=True), rtol=1e-6, atol=1e-4)
        np.testing.assert_array_equal(arrays["p"], arrays["x"] * arrays["m"])


def test_who_reads_a_sum_is_another_kernel_and_small_ones_are_computed_by_rows() -> None:
    space, row = (6, 40), (6, 1)
    arrays = {"x": normal(*space)}
    parts = [
        sum_part("x", space, [1], "s", FLOAT),
        Part("Div", {}, ["s", 40.0], row, "m", FLOAT),
        Part("Sub", {}, ["x", "m"], space, "y", FLOAT),
    ]
    first, second = fused(parts, arrays)
    assert (first.writes, second.writes) == (["s"], ["y"])
    np.testing.assert_allclose(arrays["y"], arrays["x"] - arrays["x"].mean(1, keepdims=True), atol=1e-6)


def test_no_group_waits_for_itself() -> None:
    """b = f(a), s = sum(b), c = b * s: c must not join b, for s lies between."""
    arrays = {"a": normal(4, 8)}
    parts = [
        Part("Neg", {}, ["a"], (4, 8), "b", FLOAT),
        sum_part("b", (4, 8), [0], "s", FLOAT),
        Part("Exp", {}, ["s"], (1, 8), "t", FLOAT),
        Part("Mul", {}, ["b", "t"], (4, 8), "c", FLOAT),
    ]
    assert len(fused(parts, arrays, {"c"})) == 2
    np.testing.assert_allclose(arrays["c"], -arrays["a"] * np.exp(-arrays["a"].sum(0)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("op", FORMULAS)
def test_every_formula_is_the_same_on_arrays_and_in_a_kernel(op: str, dtype: Any) -> None:
    if op == "Cast":
        pytest.skip("it is made by the kernel itself")
    kind, count = np.dtype(dtype), {"Where": 3, "And": 2, "Not": 1, "Sum": 3}.get(op)
    if count is None:
        unary = ("Erf", "Exp", "Log", "Neg", "Sigmoid", "Sign", "Sqrt", "Tanh")
        count = 1 if op in unary else 2
    arrays = {"abc"[i]: positive(3, 37).astype(kind) for i in range(count)}
    if op in ("And", "Not", "Where"):
        flags = "ab"[:count] if op != "Where" else "a"
        arrays |= {name: np.asarray(positive(3, 37) > 1) for name in flags}
    attributes = {"alpha": 0.3} if op in ("LeakyReluGrad", "QuickGeluGrad") else {}
    result = BOOL if FORMULAS[op].boolean else kind
    takes: list[str | float] = list(arrays)
    expected = FORMULAS[op].on_arrays(
        *(a if a.dtype == bool else a.astype(np.float64) for a in arrays.values()), **attributes
    )
    fused([Part(op, attributes, takes, (3, 37), "y", result)], arrays)
    if result == BOOL:
        np.testing.assert_array_equal(arrays["y"], expected)
    else:
        np.testing.assert_allclose(arrays["y"], expected, rtol=8 * np.finfo(kind).eps, atol=8 * np.finfo(kind).eps)


def of_one(k: Any, piece: Any, n: Any, x: Any, y: Any, *, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        y[at] = functions.erf(x[at])


def of_two(k: Any, piece: Any, n: Any, x: Any, y: Any, z: Any, *, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        z[at] = functions.power(x[at], y[at])


@every_target
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf(name: str, dtype: Any) -> None:
    x = np.concatenate([np.linspace(-8, 8, 20_001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 1.0, -1.0]]).astype(
        dtype
    )
    y = np.empty_like(x)
    with target.using(name):
        run(of_one, x.size, x, y, lanes=8)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    np.testing.assert_allclose(y, exact, rtol=4 * np.finfo(dtype).eps, atol=0)


@every_target
def test_power(name: str) -> None:
    values = np.float32([-3, -2.5, -1, -0.0, 0, 0.3, 1, 2, 7, np.inf, np.nan])
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, np.float32([-2, -1, 0, 0.5, 1, 2, 3, 3.5])))
    z = np.empty_like(x)
    with target.using(name):
        run(of_two, x.size, x, y, z, lanes=8)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(np.abs(z), np.abs(exact), rtol=3e-7)
    some = np.isfinite(exact) & (exact != 0)
    np.testing.assert_array_equal(np.sign(z[some]), np.sign(exact[some]))


def network() -> tuple[Any, list[str]]:
    """Convolutions, normalization, pooling, a residual, dense layers."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c s o m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p u", "d", pads=[1, 1, 1, 1]),
        node("Add", "d p", "q"),
        node("HardSwish", "q", "h"),
        node("GlobalAveragePool", "h", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f a e", "y", transB=1),
    ]
    weights = {"w": normal(8, 3, 3, 3), "b": normal(8), "s": positive(8), "o": normal(8), "m": normal(8)}
    weights |= {"v": positive(8), "u": normal(8, 8, 3, 3), "a": normal(5, 8), "e": normal(5)}
    return model(nodes, {"x": ["N", 3, 16, 16]}, weights), ["w", "b", "s", "o", "u", "a", "e"]


def test_a_step_allocates_nothing_after_warm_up() -> None:
    """No array is made: what Python itself takes for a step is a hundredth of one activation."""
    made, wrt = network()
    trained = Differentiable(made, of=["y"], wrt=wrt, training=True)
    optimizer = bs.AdamW()
    from backstroke.training.optimizers import Updates

    updates = Updates(optimizer, trained.parameters)
    x, dy = normal(64, 3, 16, 16), normal(64, 5)

    def step() -> dict[str, Array]:
        trained.forward({"x": x})
        grads = trained.backward({"y": dy})
        updates.step(grads, 1e-3)
        return grads

    places = {name: g.ctypes.data for name, g in step().items()}
    weights = {name: p.ctypes.data for name, p in trained.parameters.items()}
    for _ in range(3):
        step()
    tracemalloc.start()
    try:
        for _ in range(5):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            step()
            after, peak = tracemalloc.get_traced_memory()
            assert peak - before < 40_000, "an array was made"
            assert after - before < 4_000, "something was kept"
    finally:
        tracemalloc.stop()
    assert {name: g.ctypes.data for name, g in step().items()} == places
    assert {name: p.ctypes.data for name, p in trained.parameters.items()} == weights


def test_the_same_bits_for_any_number_of_threads() -> None:
    made, wrt = network()
    trained = Differentiable(made, of=["y"], wrt=wrt, training=True)
    x, dy, found = normal(6, 3, 16, 16), normal(6, 5), []
    before = bs.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            trained.forward({"x": x})
            bs.set_num_threads(threads)
            found.append({name: g.copy() for name, g in trained.backward({"y": dy}).items()})
    finally:
        bs.set_num_threads(before)
    for other in found[1:]:
        for name, gradient in found[0].items():
            np.testing.assert_array_equal(other[name], gradient)
