"""Functions for formulas. They take traced values, and NumPy arrays as well, so that a formula can be tried by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir
import numpy as np

from .trace import Number, Operand, Trace, Value
from .types import Type, f32, f64, i32, i64


def _trace(*operands: Any) -> Trace | None:
    return next((x.k for x in operands if isinstance(x, Operand)), None)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`."""
    k = _trace(condition)
    return k.where(condition, a, b) if k else np.where(condition, a, b)


def ready(x: Any) -> Any:
    """`x`, fetched whether or not it will be chosen.

    A choice between a number in memory and 0 would become a load under a mask, which waits for what the mask is made
    of, and two streams of memory would be read one after the other.
    """
    k = _trace(x)
    return k.elementwise_intrinsic("arithmetic.fence", x.read()) if k and k.target.is_x86 else x


def fma(a: Any, b: Any, c: Any) -> Any:
    """`a * b + c` with one rounding (on NumPy arrays: with two)."""
    k = _trace(a, b, c)
    return k.fma(a, b, c) if k else a * b + c


def largest(x: Any) -> float:
    """The largest finite number of the type of `x`."""
    name = np.float32 if getattr(x, "type", None) is f32 or getattr(x, "dtype", None) == np.float32 else np.float64
    return float(np.finfo(name).max)


def exp(x: Any, rest: Any = None) -> Any:
    """e to the power of x, at most 2 ulp from the true value; inf, 0 and NaN where they are due.

    `rest` is what rounding took off x, where that is known: then it is e to the power of x + rest.
    """
    k = _trace(x)
    if k is None:
        return np.exp(x if rest is None else x + rest)
    x = x.read()
    limit = _exp_limit(x.type)
    clamped = k.where(x < -limit, -limit, k.where(x > limit, limit, x))
    n, f, shifted = _times_log2e(k, clamped, 1.0)
    if rest is not None:
        f = k.muladd(k.where(clamped == x, rest, 0.0), _LOG2E, f)
    return _power_of_two(k, n, f, shifted)


def sqrt(x: Any) -> Any:
    """The square root, rounded once; NaN below zero."""
    k = _trace(x)
    return k.elementwise_intrinsic("sqrt", x.read()) if k else np.sqrt(x)


def log(x: Any) -> Any:
    """The natural logarithm, at most 2 ulp from the true value; -inf at 0, NaN below 0, inf and NaN as they are."""
    k = _trace(x)
    return _log(k, x.read()) if k else np.log(x)


def log_1p(x: Any) -> Any:
    """log(1 + x) for x from 0 to 1, at most 4 ulp from the true value."""
    if _trace(x) is None:
        return np.log1p(x)
    whole = 1 + x  # what rounding took off it is put back: log(w + d) is log(w) + d / w for so small a d
    return log(whole) + (x - (whole - 1)) / whole


def exact_difference(a: Any, b: Any) -> tuple[Any, Any]:
    """`a - b` rounded, and what rounding took off it."""
    difference = a - b
    taken = a - difference
    return difference, (a - (difference + taken)) - (b - taken)


def exp_of_minus_abs(x: Any, scale: Any = 1.0) -> Any:
    """e to the power of -|scale x|, with the product as it is before rounding; NaN where x is NaN."""
    k = _trace(x)
    if k is None:
        return np.exp(-np.abs(scale * x))
    x = x.read()
    size, factor = (k.elementwise_intrinsic("fabs", v) for v in (x, k.value(scale, x.type)))
    limit = _exp_limit(x.type) / factor
    return _power_of_two(k, *_times_log2e(k, k.where(size > limit, limit, size), -factor))


_LOG2E = 1.4426950408889634
_LOG2E_PARTS = {  # rounded to the type, and what that took off it
    f32: (1.44269502162933349609375, 1.92596299112661746887e-8),
    f64: (1.442695040888963387004650940070860087871551513671875, 2.0355273740931033e-17),
}
_POWER_SERIES = {  # c1, c2, ... of 1 + c1 f + c2 f^2 + ...: 2^f for |f| <= 1/2, relative errors 2^-28.5 and 2^-63.9
    f32: (
        0.6931472149680279, 0.24022652782887738, 0.05550310551013797, 0.009617692972993062, 0.0013406643902351759,
        0.0001559467816132662,
    ),
    f64: (
        0.6931471805599453, 0.24022650695910072, 0.055504108664821736, 0.009618129107628562, 0.0013333558146381738,
        0.00015403530393171835, 1.5252733864845099e-05, 1.321548700340765e-06, 1.0178047531180678e-07,
        7.054814836763028e-09, 4.4572393137403015e-10, 2.585523844459004e-11,
    ),
}  # fmt: skip
_SIXTEENTHS = tuple(2 ** (i / 16) for i in range(16))
_SHORT_SERIES = (0.6931471805599453, 0.24022650695910072, 0.05550410866482158)  # Taylor's; for |f| <= 1/32 2^-29.7 off


def _exp_limit(type: Type) -> float:
    """From this number on e^x is infinite and e^-x is nothing, and a little beyond."""
    return 105.0 if type is f32 else 747.0


def _by_table(k: Trace, type: Type, lanes: int) -> bool:
    """Whether vectors are looked up in a table of sixteen by one instruction."""
    return type is f32 and lanes % 16 == 0 and "avx512f" in k.target.features


def _times_log2e(k: Trace, x: Value, factor: Number) -> tuple[Value, Value, Value]:
    """x factor log2(e) as n + f: whole (by a table, sixteenths), and a fraction of a step that is rounded as itself.

    n is had by adding a number so large that the sum has no fraction left: no conversion that NaN could upset. That sum
    comes third; its last bits are n's.
    """
    scale, (high, low) = k.value(factor, x.type), _LOG2E_PARTS[x.type]
    first = scale * high
    second = k.muladd(scale, low, k.fma(scale, high, -first))
    magic = _round_magic(k, x)
    shifted = k.muladd(x, first, magic)
    n = shifted - magic
    return n, k.muladd(x, second, k.fma(x, first, -n)), shifted


def _round_magic(k: Trace, x: Value) -> float:
    return 1.5 * 2.0 ** (52 if x.type is f64 else 19 if _by_table(k, x.type, x.lanes) else 23)


def _power_of_two(k: Trace, n: Value, f: Value, shifted: Value) -> Value:
    """2^(n + f), of what `_times_log2e` gave. 2^f is a polynomial, if not by a table a long one; 2^n is made of bits.

    2^n goes on in two factors, so that results below the normal numbers and just below infinity come out right.
    """
    if _by_table(k, f.type, f.lanes):
        steps = k.by_parts(16, _sixteenth, shifted)
        series = k.muladd(k.muladd(_SHORT_SERIES[2], f, _SHORT_SERIES[1]), f, _SHORT_SERIES[0])
        return k.by_parts(16, _scale_by_instruction, k.muladd(steps * f, series, steps), n)
    single = f.type is f32
    constants = _POWER_SERIES[f.type]
    series = k.value(constants[-1], f.type, f.lanes)
    for c in constants[-2::-1]:
        series = k.muladd(series, f, c)
    series = (k.fma if single else k.muladd)(series, f, 1.0)  # where float32 has no fma, this step is worth its price
    if not single and f.lanes % 8 == 0 and "avx512f" in k.target.features:
        return k.by_parts(8, _scale_by_instruction, series, n)
    integers, fraction, bias = (i32, 23, 127) if single else (i64, 52, 1023)
    whole = k.bits(integers, shifted) - k.bits(integers, k.value(_round_magic(k, f), f.type, f.lanes))
    half = whole >> 1
    powers = [k.bits(f.type, (part + bias) << fraction) for part in (half, whole - half)]
    return series * powers[0] * powers[1]


def _log(k: Trace, x: Value) -> Value:
    """log(x) = n ln 2 + log(m) with x = 2^n m and m from sqrt(1/2) to sqrt(2); log(m) = 2 artanh((m - 1) / (m + 1)).

    artanh is its Taylor series. m - 1 = f is exact, and log(m) is written as f - (f^2/2 - s (f^2/2 + rest)) with
    s = f / (2 + f), so that what rounds is small against f. ln 2 is added in two parts, as in exp.
    """
    single = x.type is f32
    integers, fraction = (i32, 23) if single else (i64, 52)
    tiny, lift = (2.0**-126, 25) if single else (2.0**-1022, 54)
    high, low = (
        (0.693145751953125, 1.4286067653302215e-06)
        if single
        else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
    )
    terms = 5 if single else 11

    subnormal = x < tiny
    bits = k.bits(integers, k.where(subnormal, x * 2.0**lift, x))
    root = k.bits(integers, k.value(0.5**0.5, x.type, x.lanes))
    power = (bits - root) >> fraction  # m is x without it, and so lies from sqrt(1/2) on
    f = k.bits(x.type, bits - (power << fraction)) - 1
    n = k.to(x.type, k.where(subnormal, power - lift, power))
    s = f / (f + 2)
    square = s * s
    series = k.value(2 / (2 * terms + 1), x.type, x.lanes)
    for i in range(terms - 1, 0, -1):
        series = k.muladd(series, square, 2 / (2 * i + 1))
    half = f * f * 0.5
    rest = k.muladd(s, half + square * series, n * low)
    result = k.muladd(n, high, f - (half - rest))
    result = k.where(x == x, k.where(x > largest(x), x, result), x)
    return k.where(x > 0, result, k.where(x == 0, -float("inf"), k.where(x < 0, float("nan"), x)))


def _sixteenth(shifted: Value) -> Value:
    """2 to the power of as many sixteenths as the last four bits say."""
    k, index = shifted.k, shifted.k.bits(i32, shifted)
    table = ir.Constant(shifted.ir.type, [ir.Constant(ir.FloatType(), float(np.float32(x))) for x in _SIXTEENTHS])
    raw = k.intrinsic("x86.avx512.permvar.sf.512", shifted.ir.type, [table, index.ir])
    return Value(k, raw, f32, 16)


def _scale_by_instruction(x: Value, n: Value) -> Value:
    """x 2^n by the one instruction that AVX-512 has for it."""
    k = x.k
    name = "x86.avx512.mask.scalef." + ("ps.512" if x.type is f32 else "pd.512")
    every, nearest = ir.Constant(ir.IntType(x.lanes), -1), ir.IntType(32)(4)
    return Value(k, k.intrinsic(name, x.ir.type, [x.ir, n.ir, x.ir, every, nearest]), x.type, x.lanes)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent, at most 4 ulp from the true value."""
    k = _trace(x)
    return _tanh(k, x.read()) if k else np.tanh(x)


def _tanh(k: Trace, x: Value) -> Value:
    """(1 - u) / (1 + u) with u = exp(-2 abs x); near 0, where 1 - u cancels, u - 1 by its own series."""
    size = k.where(x > 0, x, -x)
    argument = -2 * size
    u = exp_of_minus_abs(x, 2.0)
    terms = 10 if x.type is f32 else 18  # enough for abs x up to 1/4
    series = k.value(1.0, x.type, x.lanes)
    for i in range(terms, 1, -1):
        series = k.muladd(series * argument, 1 / i, 1.0)
    e = argument * series  # exp(argument) - 1
    far, near = (1 - u) / (1 + u), -e / (2 + e)
    result = k.where(size > 0.25, far, near)
    return k.where(x > 0, result, -result)


def like(x: Any, number: float) -> Any:
    """A number of the type of `x`."""
    k = _trace(x)
    return k.value(number, x.type, x.lanes) if k else np.asarray(number, x.dtype)


def power(x: Any, y: Any) -> Any:
    """`x` to the power of `y`: NaN where x < 0 and y is not whole, 1 where y is 0. At most 2 ulp off in float32."""
    k = _trace(x, y)
    return _power(k, *k.alike(x, y)) if k else np.power(x, y)


def _power(k: Trace, x: Value, y: Value) -> Value:
    kind = x.type
    x, y = k.to(f64, x), k.to(f64, y)
    size = exp(y * log(k.elementwise_intrinsic("fabs", x)))
    half = y * 0.5
    whole, even = (k.elementwise_intrinsic("floor", v) == v for v in (y, half))
    signed = k.where(whole, k.where(even, size, -size), float("nan"))
    return k.to(kind, k.where(y == 0, 1.0, k.where(x < 0, signed, size)))


def erf(x: Any) -> Any:
    """The error function, at most 4 ulp from the true value."""
    k = _trace(x)
    if k is None:
        return _erf_of_numbers(x).astype(x.dtype) if np.size(x) else x
    return _erf(k, x.read())


_erf_of_numbers = np.vectorize(math.erf, otypes=[np.float64])
_ERF_FROM = {f32: (10, 9), f64: (20, 24)}  # terms of the series near 0, degree of the polynomial beyond


def _erf(k: Trace, x: Value) -> Value:
    """Up to 1 its Taylor series; beyond, 1 - exp(-x^2) p(t), where t = (x - 3) / (x + 3) goes from -1/2 to 1."""
    terms, degree = _ERF_FROM[x.type]
    size = k.elementwise_intrinsic("fabs", x)
    square = size * size
    taylor = [(-1) ** n * 2 / math.sqrt(math.pi) / (math.factorial(n) * (2 * n + 1)) for n in range(terms)]
    near = x * _polynomial(k, square, taylor)
    t = (size - 3.0) / (size + 3.0)
    far = 1 - exp(-square) * _polynomial(k, t, _scaled_complement(degree))
    far = k.where(size > 6.5, 1.0, far)
    return k.where(size > 1, k.where(x > 0, far, -far), near)


def _polynomial(k: Trace, x: Value, coefficients: Sequence[float]) -> Value:
    result = k.value(coefficients[-1], x.type, x.lanes)
    for c in coefficients[-2::-1]:
        result = k.muladd(result, x, c)
    return result


def _scaled_complement(degree: int) -> list[float]:
    """exp(x^2) erfc(x) for x from 1 to 6.5 as a polynomial of t = (x - 3) / (x + 3), by interpolation."""
    low, high = -0.5, 3.5 / 9.5

    def values(t: Any) -> Any:
        xs = [3 * (1 + float(v)) / (1 - float(v)) for v in t]
        return np.asarray([math.exp(x * x) * math.erfc(x) for x in xs])

    fitted = np.polynomial.Chebyshev.interpolate(values, degree, domain=[low, high])
    return [float(c) for c in fitted.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1]).coef]


__all__ = [
    "erf", "exact_difference", "exp", "exp_of_minus_abs", "fma", "largest", "like", "log", "log_1p", "power", "ready",
    "sqrt", "tanh", "where",
]  # fmt: skip
