"""Functions for formulas. They take traced values, and NumPy arrays as well, so that a formula can be tried by hand."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np

from .trace import Operand, Trace, Value
from .types import f32, i32, i64


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


def exp(x: Any) -> Any:
    """e to the power of x, at most 2 ulp from the true value; inf, 0 and NaN where they are due."""
    k = _trace(x)
    return _exp(k, x.read(), None) if k else np.exp(x)


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


def exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """`a * b` rounded, and what rounding took off it."""
    product = a * b
    return product, fma(a, b, -product)


def exact_difference(a: Any, b: Any) -> tuple[Any, Any]:
    """`a - b` rounded, and what rounding took off it."""
    difference = a - b
    taken = a - difference
    return difference, (a - (difference + taken)) - (b - taken)


def exp_of_minus_abs(x: Any, rest: Any) -> Any:
    """e to the power of -|x + rest|, where `rest` is what rounding took off x; NaN where x is NaN."""
    k = _trace(x)
    if k is None:
        return np.exp(-np.abs(x + rest))
    rest = k.value(rest, x.type, x.lanes)
    return _exp(k, k.where(x > 0, -x, x), k.where(x > 0, -rest, rest))


def _exp(k: Trace, x: Value, rest: Value | None) -> Value:
    """exp(x) = 2^n * exp(r) with x = n ln 2 + r and |r| <= ln(2)/2; exp(r) is its Taylor series, 2^n is made of bits.

    ln 2 is subtracted in two parts, the first so short that its product with n is exact. n is had by adding a number
    so large that the sum has no fraction left: no conversion that NaN could upset. 2^n goes on in two factors, so that
    results below the normal numbers and just below infinity come out right. With `rest`, a tiny number still to be
    added to x, x is not positive.
    """
    single = x.type is f32
    integers, fraction, bias = (i32, 23, 127) if single else (i64, 52, 1023)
    top, bottom = (89.0, -104.0) if single else (710.0, -746.0)
    high, low = (
        (0.693359375, -2.121944400546905827679e-4)
        if single
        else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
    )
    terms = 7 if single else 13

    x = k.where(x < bottom, bottom, x)
    if rest is None:
        x = k.where(x > top, top, x)
    magic = 1.5 * 2.0**fraction
    shifted = k.muladd(x, 1.4426950408889634, magic)
    n = shifted - magic
    r = k.muladd(n, -low, k.muladd(n, -high, x))
    if rest is not None:
        r = r + k.where(x > bottom, rest, 0.0)

    factorial = 1.0
    for i in range(1, terms + 1):
        factorial *= i
    series = k.value(1 / factorial, x.type, x.lanes)
    for i in range(terms, 1, -1):
        factorial /= i
        series = k.muladd(series, r, 1 / factorial)
    series = (k.fma if single else k.muladd)(series, r, 1.0)  # where float32 has no fma, this step is worth its price
    if x.lanes * x.type.bits == 512 and "avx512f" in k.target.features:
        return _scale_by_instruction(k, series, n)
    whole = k.bits(integers, shifted) - k.bits(integers, k.value(magic, x.type, x.lanes))
    half = whole >> 1
    powers = [k.bits(x.type, (part + bias) << fraction) for part in (half, whole - half)]
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


def _scale_by_instruction(k: Trace, x: Value, n: Value) -> Value:
    """x 2^n by the one instruction that AVX-512 has for it."""
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
    u = _exp(k, argument, None)
    terms = 10 if x.type is f32 else 18  # enough for abs x up to 1/4
    series = k.value(1.0, x.type, x.lanes)
    for i in range(terms, 1, -1):
        series = k.muladd(series * argument, 1 / i, 1.0)
    e = argument * series  # exp(argument) - 1
    far, near = (1 - u) / (1 + u), -e / (2 + e)
    result = k.where(size > 0.25, far, near)
    return k.where(x > 0, result, -result)


__all__ = [
    "exact_difference", "exact_product", "exp", "exp_of_minus_abs", "fma", "largest", "log", "log_1p", "ready", "sqrt",
    "tanh", "where",
]  # fmt: skip
