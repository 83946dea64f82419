"""The launcher: it runs what is plain and touches nothing else."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest
from checks import DTYPES, Guarded, same_bits
from helpers import python
from hypothesis import given, settings
from hypothesis import strategies as st

import backstroke as bs
from backstroke import activation, softmax
from backstroke.jit import launch, target
from backstroke.jit.launch import LIMIT

relu, leaky, rows = (
    activation._relu_grad._launcher,
    activation._leaky_relu_grad._launcher,
    softmax._softmax_grad._launcher,
)
F32 = np.dtype(np.float32)
pytestmark = pytest.mark.skipif(not launch._headers_are_known(), reason="arrays look unlike anything known here")


@pytest.fixture(autouse=True)
def ready() -> None:
    """All kernels that the launchers may be asked for are there."""
    for dtype in DTYPES:
        for n in (4, 10 * LIMIT):  # the larger ones bring the workers
            a = np.ones(n, dtype)
            bs.relu_grad(a, a)
            bs.leaky_relu_grad(a, a)
            bs.softmax_grad(a, a)
    assert relu.call(np.ones(4, F32), np.ones(4, F32), np.empty(4, F32)) is True


def inputs(shape: Any, dtype: Any = F32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    dy, x = rng.standard_normal((2, *shape))
    return np.asarray(dy, dtype), np.asarray(x, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1,), (5,), (3, 7, 2), (LIMIT,), (LIMIT + 1,), (0,), (4, 0, 3), (), (1,) * 20], ids=str
)
def test_what_is_plain_runs(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    dy, x = inputs(shape, dtype)
    for where in (Guarded(shape, dtype), Guarded(shape, dtype, 1)):
        assert relu.call(dy, x, where.array) is True
        assert same_bits(where.array, np.where(x > 0, dy, dtype.type(0)))
        assert where.intact()
        assert leaky.call(dy, x, where.array, 0.5) is True
        assert where.intact()
        assert rows.call(dy, x, where.array) is bool(shape and shape[-1])  # rows of no length are Python's affair
        assert where.intact()


def test_the_answer_is_a_bool_of_python() -> None:
    a = np.ones(3, F32)
    assert relu.call(a, a, a.copy()) is True
    assert relu.call(a, a, None) is False


class Sub(np.ndarray):
    pass


class Fraction(float):
    pass


def like(a: np.ndarray, case: str) -> Any:
    """Something near `a` that is not plain."""
    n = a.size
    cases: dict[str, Any] = {
        "None": None,
        "list": a.tolist(),
        "number": 1.0,
        "scalar": a.dtype.type(1),
        "subclass": a.view(Sub),
        "matrix": a.view(np.matrix),
        "memmap": a.view(np.memmap),
        "recarray": a.view(np.recarray),
        "masked": np.ma.masked_array(a),
        "other type": a.astype(np.float64),
        "same width": a.view(np.int32),
        "integers": np.ones(n, np.int32),
        "complex": np.ones(n, np.complex64),
        "objects": np.ones(n, object),
        "text": np.full(n, "abcd"),
        "void": a.view(np.dtype("V4")),
        "structure": a.view(np.dtype([("f", np.float32)])),
        "datetime": np.zeros(n, "M8[s]"),
        "other byte order": a.astype(a.dtype.newbyteorder()),
        "metadata": a.view(np.dtype(a.dtype, metadata={"unit": "m"})),
        "shorter": a[:-1],
        "longer": np.ones(n + 1, a.dtype),
        "another rank": a.reshape(1, -1),
        "column": a.reshape(-1, 1),
        "0-D": np.ones((), a.dtype),
        "empty": np.ones(0, a.dtype),
        "strided": np.repeat(a, 2)[::2],
        "reversed": a[::-1],
        "broadcast": np.broadcast_to(a[:1], a.shape),
        "huge stride": np.lib.stride_tricks.as_strided(a, (n,), (2**62,)),
        "negative stride": np.lib.stride_tricks.as_strided(a[-1:], (n,), (-4,)),
        "misaligned": np.frombuffer(b"x" + a.tobytes() + b"yyy", np.uint8)[1 : 1 + a.nbytes].view(a.dtype),
        "bytes": a.tobytes(),
        "memoryview": memoryview(a),
        "type": np.ndarray,
        "dtype": a.dtype,
    }
    return cases[case]


CASES = [
    "None", "list", "number", "scalar", "subclass", "matrix", "memmap", "recarray", "masked", "other type",
    "same width", "integers", "complex", "objects", "text", "void", "structure", "datetime", "other byte order",
    "metadata", "shorter", "longer", "another rank", "column", "0-D", "empty", "strided", "reversed", "broadcast",
    "huge stride", "negative stride", "misaligned", "bytes", "memoryview", "type", "dtype",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("n", [40, LIMIT + 40])
def test_an_input_that_is_not_plain_is_refused_and_nothing_is_written(case: str, position: int, n: int) -> None:
    arguments: list[Any] = list(inputs((n,)))
    arguments[position] = like(arguments[position], case)
    out = Guarded((n,), F32)
    for launcher, more in ((relu, ()), (leaky, (0.5,)), (rows, ())):
        assert launcher.call(*arguments, out.array, *more) is False
    assert out.untouched()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [40, LIMIT + 40])
def test_an_output_that_is_not_plain_is_refused_and_nothing_is_written(case: str, n: int) -> None:
    guarded = Guarded((n,), F32)
    dy, x = inputs((n,))
    out = like(guarded.array, case)
    before = pickle.dumps(out) if isinstance(out, np.ndarray) and case != "huge stride" else b""
    for launcher, more in ((relu, ()), (leaky, (0.5,)), (rows, ())):
        assert launcher.call(dy, x, out, *more) is False
    assert guarded.untouched()
    if before:
        assert pickle.dumps(out) == before


@pytest.mark.parametrize("n", [40, LIMIT + 40])
def test_a_read_only_output_is_refused(n: int) -> None:
    dy, x = inputs((n,))
    out = Guarded((n,), F32)
    out.array.flags.writeable = False
    assert relu.call(dy, x, out.array) is False
    assert out.untouched()
    frozen = np.frombuffer(bytes(4 * n), F32)
    assert relu.call(dy, x, frozen) is False
    assert not frozen.any()
    dy.flags.writeable = x.flags.writeable = False  # of inputs nobody asks that
    assert relu.call(dy, x, np.empty_like(x)) is True


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 9, 100])
def test_a_wrong_number_of_arguments_is_refused(count: int) -> None:
    a = np.ones(4, F32)
    out = Guarded((4,), F32)
    assert relu.call(*[a] * min(count, 2), *[out.array] * max(count - 2, 0)) is False
    assert leaky.call(a, a, out.array, *[0.5] * (count if count != 1 else 0)) is False
    assert out.untouched()
    with pytest.raises(TypeError):
        relu.call(a, a, out=out.array)
    assert out.untouched()


@pytest.mark.parametrize(
    "alpha", [1, True, np.float64(0.5), np.float32(0.5), Fraction(0.5), "0.5", None, 1j, np.ones(1)]
)
def test_a_scalar_that_is_not_a_float_is_refused(alpha: Any) -> None:
    dy, x = inputs((40,))
    out = Guarded((40,), F32)
    assert leaky.call(dy, x, out.array, alpha) is False
    assert out.untouched()


@given(
    shift=st.integers(-50, 50),
    n=st.integers(1, 40),
    which=st.integers(0, 1),
    dtype=st.sampled_from(DTYPES),
    odd=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_an_output_that_partly_overlaps_is_refused(shift: int, n: int, which: int, dtype: np.dtype, odd: bool) -> None:
    memory = np.ones(200, dtype)
    raw = memory.view(np.uint8)
    start = (60 + shift) * dtype.itemsize + (1 if odd else 0)
    given_array, out = memory[60 : 60 + n], raw[start : start + n * dtype.itemsize].view(dtype)
    arguments = [np.full(n, 2, dtype), np.full(n, 2, dtype)]
    arguments[which] = given_array
    before = memory.tobytes()
    done = relu.call(*arguments, out)
    if odd or 0 < abs(shift) < n:
        assert done is False
        assert memory.tobytes() == before
    else:
        assert done is True
        want = np.full(n, 2 if which else 1, dtype)
        assert same_bits(out, want)


@pytest.mark.parametrize("shift", [1, -1, 1000, -1000, LIMIT + 99, -LIMIT - 99])
def test_large_outputs_that_partly_overlap_are_refused(shift: int) -> None:
    n = LIMIT + 100
    memory = np.ones(3 * n, F32)
    before = memory.tobytes()
    assert relu.call(memory[n : 2 * n], np.ones(n, F32), memory[n + shift : 2 * n + shift]) is False
    assert rows.call(np.ones(n, F32), memory[n : 2 * n], memory[n + shift : 2 * n + shift]) is False
    assert memory.tobytes() == before


@given(
    shape=st.lists(st.integers(0, 9), max_size=5),
    other=st.lists(st.integers(0, 9), max_size=5),
    third=st.lists(st.integers(0, 9), max_size=5),
    order=st.sampled_from("CF"),
)
@settings(max_examples=300, deadline=None)
def test_shapes_that_differ_are_refused(shape: list[int], other: list[int], third: list[int], order: Any) -> None:
    a, b, out = np.ones(shape, F32), np.ones(other, F32, order=order), Guarded(third, F32)
    done = relu.call(a, b, out.array)
    assert out.intact()
    alike = shape == other == third and b.flags.c_contiguous
    assert done is alike
    assert alike or out.untouched()


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_views_of_all_sorts_are_right_or_refused(data: st.DataObject) -> None:
    """Slices with offsets, steps and turns of one buffer: the launcher says no, or the answer is right."""
    buffer = np.arange(-200, 200, dtype=F32)

    def view() -> np.ndarray:
        start, step = data.draw(st.integers(0, 60)), data.draw(st.sampled_from([1, 1, 1, 2, 3, -1]))
        x = buffer[start:][::step][:24].copy() if data.draw(st.booleans()) else buffer[start:][::step][:24]
        x = x.reshape(data.draw(st.sampled_from([(24,), (4, 6), (2, 3, 4), (24, 1)])))
        return x.T if data.draw(st.booleans()) else x

    dy, x = view(), view()
    out = Guarded(data.draw(st.sampled_from([dy.shape, x.shape])), F32)
    if relu.call(dy, x, out.array):
        assert dy.shape == x.shape == out.array.shape
        np.testing.assert_array_equal(out.array, np.where(x > 0, dy, 0))
    else:
        assert out.untouched()
    assert out.intact()


def test_types_that_come_out_of_a_pickle_leave_room_for_the_others() -> None:
    """Unpickled arrays bring a type object of their own each; the table has four entries."""
    launch.forget_all()
    for _ in range(8):
        a = pickle.loads(pickle.dumps(np.ones(50, F32)))
        assert (bs.relu_grad(a, a) == 1).all()
    for dtype in DTYPES:
        a = np.ones(50, dtype)
        bs.relu_grad(a, a)
        assert relu.call(a, a, np.empty_like(a)) is True


def test_another_target_has_kernels_of_its_own() -> None:
    a = np.ones(40, F32)
    with target.using(target.runnable()[-1]):
        assert relu.call(a, a, np.empty_like(a)) is False
        bs.relu_grad(a, a)
        assert relu.call(a, a, np.empty_like(a)) is True
    assert relu.call(a, a, np.empty_like(a)) is False


def test_nothing_is_leaked() -> None:
    import sys

    a, out, alpha = np.ones(40, F32), np.empty(40, F32), 0.25
    counted = [a, out, alpha, True, False, None]
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(1000):
        leaky.call(a, a, out, alpha)
        leaky.call(a, a, out, None)
        leaky.call(a, a)
    after = [sys.getrefcount(thing) for thing in counted]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True))


def test_a_large_call_lets_other_python_threads_run() -> None:
    code = """
        import sys, threading, time
        import numpy as np, backstroke as bs
        bs.set_num_threads(1)
        sys.setswitchinterval(10)  # only who gives Python's lock away lets others in
        x = np.ones(20_000_000, np.float32)
        out = np.empty_like(x)
        bs.relu_grad(x, x, out=out)
        seen, stop = [], []
        def watch():
            while not stop:
                seen.append(1); time.sleep(0.0005)
        thread = threading.Thread(target=watch)
        thread.start()
        for _ in range(10): bs.relu_grad(x, x, out=out)
        count = len(seen)
        stop.append(1)
        thread.join()
        assert count >= 5, count
    """
    python(code)


def test_where_headers_are_unknown_everything_goes_through_python() -> None:
    code = """
        import numpy as np, backstroke as bs
        from backstroke.jit import launch
        launch._headers_are_known = lambda: False
        for n in (5, 100_000):
            x = np.linspace(-1, 1, n, dtype=np.float32)
            for _ in range(3):
                assert (bs.relu_grad(x, x) == np.maximum(x, 0)).all()
                bs.softmax_grad(x, x)
        from backstroke import activation
        assert activation._relu_grad._launcher.call is launch._never
    """
    python(code)


def test_a_repeated_call_costs_microseconds() -> None:
    """The contract is 6 us above an empty kernel; a busy machine gets some grace, and many chances."""
    x, out = np.ones(16, F32), np.empty(16, F32)
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(50):
            bs.relu_grad(x, x, out=out)
        best = min(best, (time.perf_counter() - start) / 50)
    assert best < 6e-6
