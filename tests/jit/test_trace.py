"""Operators, loops, vectors, masks, shuffles, variables: traced, compiled, run, and compared with NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from helpers import run

from backstroke.jit import compile as compiler
from backstroke.jit import functions, target
from backstroke.jit.target import current
from backstroke.jit.trace import Lanes, TraceError
from backstroke.jit.types import bf16, f16, f32, f64, i16, i32, i64, pointer, scalar

every_target = pytest.mark.parametrize("name", target.runnable())

OPERATORS = {
    "a+b": lambda a, b: a + b,
    "a-b": lambda a, b: a - b,
    "a*b": lambda a, b: a * b,
    "a/b": lambda a, b: a / b,
    "-a": lambda a, b: -a,
    "2-a": lambda a, b: 2 - a,
    "2/b": lambda a, b: 2 / b,
    "2*a+1": lambda a, b: 1 + 2 * a,
    "a<b": lambda a, b: functions.where(a < b, a, b),
    "a<=b": lambda a, b: functions.where(a <= b, a, b),
    "a>b": lambda a, b: functions.where(a > b, a, b),
    "a>=b": lambda a, b: functions.where(a >= b, 1.0, b),
    "a==b": lambda a, b: functions.where(a == b, 1.0, a),
    "a!=b": lambda a, b: functions.where(a != b, a, 1.0),
    "and": lambda a, b: functions.where((a > 0) & (b > 0), a, 0.0),
    "or": lambda a, b: functions.where((a > 0) | (b > 0), a, 0.0),
    "xor": lambda a, b: functions.where((a > 0) ^ (b > 0), a, 0.0),
}
INTEGER_OPERATORS = {
    "a+b": lambda a, b: a + b,
    "a-b": lambda a, b: a - b,
    "a*b": lambda a, b: a * b,
    "a//b": lambda a, b: a // b,
    "7//b": lambda a, b: 7 // b,
    "a%b": lambda a, b: a % b,
    "a<<3": lambda a, b: a << 3,
    "a>>2": lambda a, b: a >> 2,
    "a&b": lambda a, b: a & b,
    "a|b": lambda a, b: a | b,
    "a^b": lambda a, b: a ^ b,
    "-a": lambda a, b: -a,
}
SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.0, np.inf, -np.inf, np.nan, 1e-40, 3e38]


def elementwise(k: Any, piece: Any, n: Any, a: Any, b: Any, c: Any, *, formula: Any, lanes: int) -> None:
    for at in k.vectors(n, lanes=lanes):
        c[at] = formula(a[at], b[at])


@every_target
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operators_on_floats_are_those_of_numpy(name: str, operator: str, dtype: Any) -> None:
    a, b = (m.ravel().astype(dtype) for m in np.meshgrid(SPECIAL, SPECIAL))
    c, formula = np.empty_like(a), OPERATORS[operator]
    with target.using(name), np.errstate(all="ignore"):
        run(elementwise, a.size, a, b, c, formula=formula, lanes=8)
        want = np.broadcast_to(formula(a, b), a.shape).astype(dtype)
    np.testing.assert_array_equal(c, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(c[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize("operator", INTEGER_OPERATORS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_operators_on_integers_are_those_of_numpy(operator: str, lanes: int) -> None:
    a, b = (m.ravel().astype(np.int64) for m in np.meshgrid([0, 1, 7, 1000, 2**40], [1, 3, 8, 12345]))
    c, formula = np.empty_like(a), INTEGER_OPERATORS[operator]
    run(elementwise, a.size, a, b, c, formula=formula, lanes=lanes)
    np.testing.assert_array_equal(c, formula(a, b))


def test_division_of_integers_truncates() -> None:
    a, b = np.array([-7, -8, 7]), np.array([2, 3, -2])
    c = np.empty_like(a)
    run(elementwise, 3, a, b, c, formula=lambda a, b: a // b * 100 + a % b, lanes=1)
    np.testing.assert_array_equal(c, [-3 * 100 - 1, -2 * 100 - 2, -3 * 100 + 1])


# ---- loops ---------------------------------------------------------------------------------------------------------


def count_up(k: Any, piece: Any, start: Any, stop: Any, seen: Any, *, bounds: Any, step: int) -> None:
    first, last = bounds or (start, stop)
    for i in k.range(first, last, step):
        seen[i] = seen[i] + 1


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 9, 10])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("static", [False, True])
def test_range_is_range(start: int, stop: int, step: int, static: bool) -> None:
    seen = np.zeros(12, np.int64)
    run(count_up, start, stop, seen, bounds=(start, stop) if static else None, step=step)
    want = np.zeros(12, np.int64)
    want[range(start, stop, step)] = 1
    np.testing.assert_array_equal(seen, want)


def nest(k: Any, piece: Any, rows: Any, columns: Any, out: Any) -> None:
    for row in k.range(rows):
        total = k.var(0, i64)
        for column in k.range(columns):
            with k.when(column % 2 == 0):
                total += column
            out[row * columns + column] = total + 100 * row


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, 0), (1, 1), (3, 7)])
def test_loops_nest_and_variables_start_anew_in_each_turn(rows: int, columns: int) -> None:
    out = np.full(32, -1)
    run(nest, rows, columns, out)
    sums = np.cumsum([c if c % 2 == 0 else 0 for c in range(columns)])
    want = np.full(32, -1)
    want[: rows * columns] = (100 * np.arange(rows)[:, None] + sums).ravel()
    np.testing.assert_array_equal(out, want)


def collatz(k: Any, piece: Any, start: Any, steps: Any) -> None:
    n, count = k.var(start), k.var(0, i64)
    with k.forever() as leave:
        leave(n == 1)
        odd = n % 2 == 1
        n.set(k.where(odd, 3 * n + 1, n // 2))
        count += 1
        leave(count == 500)
    steps[0] = count


@pytest.mark.parametrize(("start", "want"), [(1, 0), (6, 8), (27, 111)])
def test_forever_repeats_until_it_is_left(start: int, want: int) -> None:
    steps = np.zeros(1, np.int64)
    run(collatz, start, steps)
    assert steps[0] == want


# ---- vectors -------------------------------------------------------------------------------------------------------


def bump(
    k: Any, piece: Any, start: Any, stop: Any, x: Any, *, lanes: int, unroll: int, align: bool, bounds: Any
) -> None:
    first, last = bounds or (start, stop)
    for at in k.vectors(first, last, lanes=lanes, unroll=unroll, align=x if align else None):
        x.store(at, x[at] + 1, stream=align)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 8), (np.float64, 4), (np.float16, 8), (np.float32, 1)])
@pytest.mark.parametrize("unroll", [1, 3])
def test_vectors_meet_every_element_once(dtype: Any, lanes: int, unroll: int, align: bool) -> None:
    buffer = np.zeros(3 * lanes * unroll + 64, dtype)
    for n in range(3 * lanes * unroll + 2):
        for start in (0, 3):
            for offset in (0, 1, lanes - 1):
                buffer[:] = 0
                x = buffer[16 + offset :]
                run(bump, start, n, x, lanes=lanes, unroll=unroll, align=align, bounds=None)
                want = np.zeros_like(buffer)
                want[16 + offset + start : 16 + offset + n] = 1
                np.testing.assert_array_equal(buffer, want, f"{n=} {start=} {offset=}")


@pytest.mark.parametrize("start", [0, 3, 20])
@pytest.mark.parametrize("stop", [-9, -1, 0, 1, 7, 8, 9, 16, 17, 31, 33])
def test_vectors_between_constants_meet_every_element_once(start: int, stop: int) -> None:
    buffer = np.zeros(96, np.float32)
    run(bump, 0, 0, buffer[32:], lanes=8, unroll=2, align=False, bounds=(start, stop))
    want = np.zeros_like(buffer)
    want[32 + start : 32 + max(start, stop)] = 1
    np.testing.assert_array_equal(buffer, want)


@pytest.mark.parametrize("stop", [-20, -9, -8, -1])
@pytest.mark.parametrize("align", [False, True])
def test_vectors_backwards_meet_nothing(stop: int, align: bool) -> None:
    buffer = np.zeros(96, np.float32)
    run(bump, 0, stop, buffer[41:], lanes=8, unroll=2, align=align, bounds=None)
    assert not buffer.any()


@every_target
def test_the_tail_touches_no_byte_beyond_it(name: str) -> None:
    """The last element lies at the end of a page, after which nothing may be read or written."""
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    mprotect = ctypes.CDLL(None).mprotect
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert mprotect(start + page, page, 0) == 0
    for dtype in (np.float32, np.float64, np.float16):
        whole = np.frombuffer(pages, dtype, count=page // np.dtype(dtype).itemsize)
        lanes = target.named(name).lanes(f64 if dtype is np.float64 else f32)
        for n in range(1, 2 * lanes + 2):
            whole[:] = 0
            with target.using(name):
                run(bump, 0, n, whole[-n:], lanes=lanes, unroll=1, align=False, bounds=None)
            assert whole.sum(dtype=np.float64) == n
        del whole


def partial(k: Any, piece: Any, count: Any, x: Any, y: Any) -> None:
    y[Lanes(0, 8)] = x[k.some(0, count, 8)]


def test_lanes_whose_mask_is_off_read_zero() -> None:
    x, y = np.arange(1, 9, dtype=np.float32), np.full(8, 9, np.float32)
    run(partial, 3, x, y)
    np.testing.assert_array_equal(y, [1, 2, 3, 0, 0, 0, 0, 0])


def shifted(k: Any, piece: Any, n: Any, x: Any, y: Any) -> None:
    for at in k.vectors(n, lanes=4):
        y[2 + at] = x[at + 1]


def test_lanes_move() -> None:
    x, y = np.arange(12, dtype=np.float32), np.zeros(16, np.float32)
    run(shifted, 10, x, y)
    np.testing.assert_array_equal(y[:13], [0, 0, *range(1, 11), 0])


def reorder(k: Any, piece: Any, x: Any, y: Any) -> None:
    a, b = x[Lanes(0, 4)], x[Lanes(4, 4)]
    y[Lanes(0, 4)] = k.shuffle(a, b, [6, 0, 3, 5])
    y[Lanes(4, 2)] = k.shuffle(a, None, [3, 1])
    y[6] = k.shuffle(a, None, [2])
    y[7] = k.lane(b, 3)
    y[8] = k.sum(k.shuffle(a, b, range(8)))
    y[9] = k.to(f32, k.sum(k.iota(16)))


def test_shuffles_lanes_and_sums() -> None:
    x, y = np.arange(8, dtype=np.float32) * 10, np.zeros(10, np.float32)
    run(reorder, x, y)
    np.testing.assert_array_equal(y, [60, 0, 30, 50, 30, 10, 20, 70, 280, 120])


def halves(k: Any, piece: Any, x: Any, y: Any) -> None:
    y[0] = k.sum(x[Lanes(0, 8)])


def test_the_sum_of_lanes_is_taken_by_halves() -> None:
    x, y = np.random.default_rng(1).standard_normal(8).astype(np.float32), np.zeros(1, np.float32)
    run(halves, x, y)
    quarters = x[:4] + x[4:]
    pair = quarters[:2] + quarters[2:]
    assert y[0] == pair[0] + pair[1]


def extremes(k: Any, piece: Any, x: Any, y: Any) -> None:
    a, b = x[Lanes(0, 4)], x[Lanes(4, 4)]
    y[Lanes(0, 4)] = k.least(a, b)
    y[Lanes(4, 4)] = k.most(a, 2.0)
    y[8] = k.where(k.any(a > 3.5), 1.0, k.to(f32, k.value(0, i64)))
    y[9] = k.where(k.any(a > 4.5), x[0], 7.0)
    y[10] = k.where(k.no(x[0] > 0), x[0], 8.0)


def test_least_most_any_and_no() -> None:
    x, y = np.array([1, 4, 2, 3, 4, 1, 2, 9], np.float32), np.zeros(11, np.float32)
    run(extremes, x, y)
    np.testing.assert_array_equal(y, [1, 1, 2, 3, 2, 4, 2, 3, 1, 7, 8])


def variables(k: Any, piece: Any, n: Any, x: Any, y: Any) -> None:
    scratch = k.stack(f32, 8)
    for i in k.range(8):
        scratch[i] = k.to(f32, i * i)
    sums = k.var(0.0, f32, 4)
    for at in k.vectors(n, lanes=4):
        sums += x[at]
    best = k.var(x[0])
    for i in k.range(n):
        with k.when(x[i] > best):
            best.set(x[i])
    y[0], y[1], y[2] = k.sum(sums), best, scratch[k.to(i64, best)]
    y[3] = k.where((scratch.address & 63) == 0, 1.0, x[0])
    widened = k.var(k.var(x[1]), lanes=4)
    y[Lanes(4, 4)] = widened


def test_variables_and_the_stack() -> None:
    x, y = np.array([1, 5, 2, 4, 3, 0, 2], np.float32), np.zeros(8, np.float32)
    run(variables, 7, x, y)
    np.testing.assert_array_equal(y, [17, 5, 25, 1, 5, 5, 5, 5])


def branches(k: Any, piece: Any, n: Any, y: Any) -> None:
    with k.when(n > 2):
        y[0] = 1.0
        with k.when(n > 4):
            y[1] = 1.0
    with k.when(k.no(n > 2)):
        y[2] = 1.0


@pytest.mark.parametrize(("n", "want"), [(1, [0, 0, 1]), (3, [1, 0, 0]), (5, [1, 1, 0])])
def test_when_does_its_body_only_then(n: int, want: list[int]) -> None:
    y = np.zeros(3, np.float32)
    run(branches, n, y)
    np.testing.assert_array_equal(y, want)


def casts(k: Any, piece: Any, x: Any, i: Any, y: Any, j: Any) -> None:
    y[0], y[1] = x[0], k.to(f64, k.to(f32, x[0]))
    y[2] = k.to(f64, k.to(f16, k.to(f32, x[0])))
    y[3] = k.to(f64, i[0])
    y[4] = k.to(f64, k.to(i16, i[1]))
    j[0], j[1] = k.to(i64, x[0]), k.to(i64, -x[0])
    j[2] = k.unsigned(i64, k.to(i16, i[1]))
    j[3] = k.bits(i64, x[0])
    j[4] = k.shift_right(i[0], 1)
    j[5] = k.to(i64, x[0] > 1) + k.to(i64, x[0] > 100)
    j[6] = k.to(i64, k.to(i32, i[0]))


def test_conversions_between_numbers() -> None:
    x, i = np.array([10.7]), np.array([-5, 2**16 - 3])
    y, j = np.zeros(5), np.zeros(7, np.int64)
    run(casts, x, i, y, j)
    np.testing.assert_array_equal(y, [10.7, np.float32(10.7), np.float16(10.7), -5, -3])
    np.testing.assert_array_equal(j, [10, -10, 65533, x.view(np.int64)[0], (2**64 - 5) // 2, 1, -5])


@every_target
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(name: str, dtype: Any) -> None:
    """Products and sums that only one rounding gets right, halfway cases above all."""
    rng = np.random.default_rng(3)
    digits = np.finfo(dtype).nmant // 2 + 1
    a = np.concatenate([rng.standard_normal(5000), np.full(64, 1 + 2.0**-digits), [1e-30, np.inf, 0, -0.0, np.inf]])
    b = np.concatenate([rng.standard_normal(5000), np.full(64, 1 + 2.0**-digits), [1e-10, 1, np.inf, 1, 1]])
    tiny = np.concatenate([s * 2.0 ** -rng.integers(50, 90, 32) for s in (1, -1)])
    c = np.concatenate([-a[:5000] * b[:5000], tiny, [1e-42, 1, 1, -0.0, -np.inf]])
    a, b, c = (m.astype(dtype) for m in (a, b, c))
    got = np.empty_like(a)
    with target.using(name):
        run(fused, a.size, a, b, c, got)
    with np.errstate(all="ignore"):
        want = np.array([_fma(*map(dtype, row), dtype) for row in zip(a, b, c, strict=True)], dtype)
    np.testing.assert_array_equal(got, want)
    assert np.signbit(got[-2]) == 1


def fused(k: Any, piece: Any, n: Any, a: Any, b: Any, c: Any, y: Any) -> None:
    for at in k.vectors(n, lanes=4):
        y[at] = functions.fma(a[at], b[at], c[at])


def _fma(a: Any, b: Any, c: Any, dtype: Any) -> Any:
    from fractions import Fraction

    if not np.isfinite([a, b, c]).all() or a * b == 0:
        return a * b + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return dtype(0)
    near = dtype(float(exact))  # right but for a second rounding: look at the neighbours as well
    rivals = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    unit = Fraction(float(np.spacing(near)))
    return min(rivals, key=lambda r: (abs(Fraction(float(r)) - exact), Fraction(float(r)) / unit % 2))


# ---- mistakes ------------------------------------------------------------------------------------------------------


def _trace(body: Any, *constants: Any) -> str:
    params = (scalar(), pointer(f32), pointer(f64), pointer(bf16))
    return compiler.emit_ir(current(), lambda k, piece, n, x, d, h: body(k, n, x, d, h), *params)


MISTAKES = {
    "mixed floats": lambda k, n, x, d, h: x[0] + d[0],
    "float and integer": lambda k, n, x, d, h: x[0] * n,
    "fraction and integer": lambda k, n, x, d, h: n * 0.5,
    "infinity and integer": lambda k, n, x, d, h: n + np.inf,
    "fraction as index": lambda k, n, x, d, h: x[0.5],
    "float value as index": lambda k, n, x, d, h: x[x[0]],
    "text": lambda k, n, x, d, h: x[0] + "1",
    "nothing": lambda k, n, x, d, h: x[0] == None,  # noqa: E711
    "truth of a value": lambda k, n, x, d, h: bool(x[0] > 1),
    "value in if": lambda k, n, x, d, h: 1 if x[0] > 1 else 2,
    "/ of integers": lambda k, n, x, d, h: n / 2,
    "// of floats": lambda k, n, x, d, h: x[0] // 2.0,
    "% of floats": lambda k, n, x, d, h: x[0] % 2.0,
    "<< of floats": lambda k, n, x, d, h: x[0] << 2,
    "lanes that differ": lambda k, n, x, d, h: x[Lanes(0, 4)] + x[Lanes(0, 8)],
    "vector into an element": lambda k, n, x, d, h: x.store(0, x[Lanes(0, 4)]),
    "float64 into float32": lambda k, n, x, d, h: x.store(0, d[0]),
    "where on a number": lambda k, n, x, d, h: k.where(n, x[0], 0.0),
    "where on lanes that differ": lambda k, n, x, d, h: k.where(x[Lanes(0, 4)] > 0, x[Lanes(0, 8)], 0.0),
    "where of plain numbers": lambda k, n, x, d, h: k.where(n > 1, 1.0, 2.0),
    "when on a number": lambda k, n, x, d, h: k.when(n).__enter__(),
    "when on a vector": lambda k, n, x, d, h: k.when(x[Lanes(0, 4)] > 0).__enter__(),
    "when on a truth": lambda k, n, x, d, h: k.when(True).__enter__(),
    "no of a number": lambda k, n, x, d, h: k.no(n),
    "any of numbers": lambda k, n, x, d, h: k.any(x[Lanes(0, 4)]),
    "sum of three lanes": lambda k, n, x, d, h: k.sum(k.iota(3)),
    "bfloat16 in arithmetic": lambda k, n, x, d, h: k.bits(bf16, k.to(i16, n)) + k.bits(bf16, k.to(i16, n)),
    "bfloat16 compared": lambda k, n, x, d, h: k.bits(bf16, k.to(i16, n)) < k.bits(bf16, k.to(i16, n)),
    "bfloat16 constant": lambda k, n, x, d, h: k.value(1.5, bf16),
    "float32 to bfloat16": lambda k, n, x, d, h: k.to(bf16, x[0]),
    "bfloat16 to float32": lambda k, n, x, d, h: k.to(f32, k.bits(bf16, k.to(i16, n))),
    "range to a float": lambda k, n, x, d, h: list(k.range(x[0])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_trace_errors(mistake: str) -> None:
    with pytest.raises(TraceError):
        _trace(MISTAKES[mistake])


def break_in_range(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
    for _ in k.range(n):
        break


def break_in_when(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
    for i in k.range(n):
        with k.when(i > 2):
            break


def break_in_vectors(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
    for _ in k.vectors(n, lanes=4):
        break


def break_in_the_first_part(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
    for at in k.vectors(n, lanes=4, align=x):
        if at.mask is not None:
            break


def break_in_the_tail(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
    for at in k.vectors(n, lanes=4):
        if at.mask is not None:
            break


BREAKS = [break_in_range, break_in_when, break_in_vectors, break_in_the_first_part, break_in_the_tail]


@pytest.mark.parametrize("body", BREAKS, ids=lambda body: body.__name__)
def test_a_traced_loop_cannot_be_left_by_break(body: Any) -> None:
    with pytest.raises(TraceError, match="break"):
        _trace(body)


def test_what_llvm_refuses_is_a_trace_error() -> None:
    def escapes(k: Any, n: Any, x: Any, d: Any, h: Any) -> None:
        for i in k.range(n):
            last = i
        x[0] = k.to(f32, last)  # known in the loop alone

    text = _trace(escapes)
    with pytest.raises(TraceError, match="LLVM"), compiler._optimised(current(), text):
        pass


def test_llvm_objects_are_closed_in_order_also_after_an_exception() -> None:
    """A collector that found module and context in one cycle freed the context first, and the process died."""
    text = _trace(lambda k, n, x, d, h: x.store(0, 1.0))
    with pytest.raises(KeyboardInterrupt), compiler._optimised(current(), text) as (machine, module):
        raise KeyboardInterrupt
    assert machine.closed
    assert module.closed
    assert module._context.closed


# ---- what is recorded ----------------------------------------------------------------------------------------------


def scale(k: Any, piece: Any, y: Any, *, factor: Any) -> None:
    y[0] = 1 / (y[0] * factor)


def test_constants_that_are_equal_but_not_the_same_make_kernels_of_their_own() -> None:
    results = []
    for factor in (0.0, -0.0):
        y = np.ones(1, np.float32)
        run(scale, y, factor=factor)
        results.append(y[0])
    assert results == [np.inf, -np.inf]


def test_a_formula_of_somebody_else_is_known_by_what_it_does() -> None:
    """Two functions of one name: the cache must not take one for the other."""

    def make(number: float) -> Any:
        def formula(dy: Any, x: Any) -> Any:
            return dy + number * x

        return formula

    from backstroke.activation import kernels

    one = np.ones(4, np.float32)
    for number in (2.0, 3.0):
        y = np.zeros(4, np.float32)
        run(kernels.elementwise, 4, one, one, y, formula=make(number), type=f32, stream=False)
        np.testing.assert_array_equal(y, 1 + number)
    y = np.zeros(4, np.float32)
    formula = functools.partial(lambda c, dy, x: dy + c * x, 5.0)
    run(kernels.elementwise, 4, one, one, y, formula=formula, type=f32, stream=False)
    np.testing.assert_array_equal(y, 6)


def test_a_kernel_is_compiled_once_for_a_target() -> None:
    params = (scalar(), *[pointer(f32)] * 3)
    options: dict[str, Any] = {"formula": OPERATORS["a+b"], "lanes": 4}
    first = compiler.kernel(elementwise, *params, **options)
    assert compiler.kernel(elementwise, *params, **options) is first
    with target.using("x86-64-v2") if target.host().is_x86 else target.using("host"):
        other = compiler.kernel(elementwise, *params, **options)
    assert (other is first) == (not target.host().is_x86)


def streams(k: Any, piece: Any, n: Any, x: Any, y: Any, *, aligned: bool) -> None:
    for at in k.vectors(n, lanes=4, align=y if aligned else None):
        y.store(at, x[at], stream=True)
        x.store(at, x[at] + 1, stream=True)  # not the aligned array: an ordinary store


def test_streaming_stores_go_to_the_aligned_array_alone() -> None:
    goal = target.foreign("x86_64-unknown-linux-gnu", "x86-64")
    text = {a: compiler.emit_assembly(goal, streams, scalar(), *[pointer(f32)] * 2, aligned=a) for a in (True, False)}
    assert text[True].count("movntps") == 1
    assert "movnt" not in text[False]


def test_alignment_is_passed_on() -> None:
    def copy(k: Any, piece: Any, x: Any, y: Any) -> None:
        y.store(Lanes(0, 4), x.load(Lanes(0, 4), align=16), align=16)

    text = compiler.emit_ir(current(), copy, pointer(f32), pointer(f32))
    assert text.count("align 16") == 2
