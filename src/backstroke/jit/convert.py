"""16-bit floats in memory, float32 in registers: widening is exact, narrowing rounds to nearest even, once.

Subnormal numbers are kept in both directions, NaN stays NaN. Where the CPU has an instruction it is used.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

import llvmlite.ir as ir

from .types import Type, bf16, f16, f32, i16, i32, mask

if TYPE_CHECKING:
    from .trace import Trace
    from .values import Value


def widen(k: Trace, x: Value) -> Value:
    """A value as memory holds it, in the compute type of its type."""
    if x.type is bf16:
        return k.bits(f32, k.unsigned(i32, k.bits(i16, x)) << 16)
    if x.type is f16:
        return k.to(f32, x) if k.target.has_float16 else _float16_to_float32(k, x)
    return x


def narrow(k: Trace, x: Value, stored: Type) -> Value:
    """A value of the compute type of `stored`, rounded to `stored`."""
    if stored is bf16:
        return _float32_to_bfloat16(k, x)
    if stored is f16:
        return k.to(f16, x) if k.target.has_float16 else _float32_to_float16(k, x)
    return x


def _float32_to_bfloat16(k: Trace, x: Value) -> Value:
    if x.lanes not in (16, 32) or not k.target.has_bfloat16:
        return _float32_to_bfloat16_by_integers(k, x)
    # The instruction takes subnormal numbers for zeros; they are rare enough to be worth a branch, not a blend.
    registers = [x] if x.lanes == 16 else [k.shuffle(x, None, range(16)), k.shuffle(x, None, range(16, 32))]
    name = "cvtneps2bf16" if x.lanes == 16 else "cvtne2ps2bf16"  # which takes the upper half first
    operands = [part.ir for part in reversed(registers)]
    rounded = k.intrinsic(f"x86.avx512bf16.{name}.512", ir.VectorType(_BFloat(), x.lanes), operands)
    result = k.var(k.wrap(k.builder.bitcast(rounded, ir.VectorType(ir.IntType(16), x.lanes)), bf16, x.lanes))
    with k.when(k.any(functools.reduce(operator.or_, (_subnormal(k, part) for part in registers)))):
        result.set(_float32_to_bfloat16_by_integers(k, x))
    return result.read()


def _subnormal(k: Trace, x: Value) -> Value:
    found = k.intrinsic("x86.avx512.fpclass.ps.512", ir.VectorType(ir.IntType(1), 16), [x.ir, ir.IntType(32)(0x20)])
    return k.wrap(found, mask, 16)


def _float32_to_bfloat16_by_integers(k: Trace, x: Value) -> Value:
    bits = k.bits(i32, x)
    rounded = bits + 0x7FFF + (k.shift_right(bits, 16) & 1)
    quiet = bits | 0x400000  # a NaN whose upper half is all zeros would round to an infinity
    halves = k.to(i16, k.shift_right(k.where(x == x, rounded, quiet), 16))
    if x.lanes > 1 and k.target.vector_bytes == 64:
        # LLVM 22 makes of a cut to 16 bits and a masked store of one lane a store of 32 bits: keep the two apart.
        halves = k.opaque(halves)
    return k.bits(bf16, halves)


def _float32_to_float16(k: Trace, x: Value) -> Value:
    bits = k.bits(i32, x)
    sign, size = k.shift_right(bits, 16) & 0x8000, bits & 0x7FFFFFFF
    # Subnormal results: added to 0.5, whose last bit is worth one float16 subnormal step, the adder rounds for us.
    small = k.bits(i32, k.bits(f32, size) + 0.5) - 0x3F000000
    normal = k.shift_right(size - (112 << 23) + 0xFFF + (k.shift_right(size, 13) & 1), 13)
    finite = k.where(size < (113 << 23), small, normal)
    result = k.where(size >= (143 << 23), k.where(size > 0x7F800000, 0x7E00 + (size & 0), 0x7C00), finite)
    return k.bits(f16, k.to(i16, result | sign))


def _float16_to_float32(k: Trace, x: Value) -> Value:
    raw = k.unsigned(i32, k.bits(i16, x))
    size = (raw & 0x7FFF) << 13
    normal = k.bits(f32, size + (112 << 23))
    special = k.bits(f32, size + (224 << 23))
    small = k.bits(f32, size + (113 << 23)) - 2.0**-14
    value = k.where(size >= (0x7C00 << 13), special, k.where(size < (1 << 23), small, normal))
    return k.bits(f32, k.bits(i32, value) | ((raw & 0x8000) << 16))


def pairs(k: Trace, low: Value, high: Value) -> Value:
    """Two vectors of float32 that are exact in bfloat16, side by side: an i32 holds an element of either."""
    return k.shift_right(k.bits(i32, low), 16) | (k.bits(i32, high) & -65536)


def halves(k: Trace, x: Value) -> tuple[Value, Value]:
    """The two vectors of float32 that `pairs` made one of."""
    return k.bits(f32, x << 16), k.bits(f32, x & -65536)


def add_products(k: Trace, a: Value, b: Value, total: Value) -> Value:
    """`total + low(a) low(b) + high(a) high(b)` of pairs; the instruction takes subnormal numbers for zeros."""
    if total.lanes != 16 or not k.target.has_pairs:
        for first, second in zip(halves(k, a), halves(k, b), strict=True):
            total = k.muladd(first, second, total)
        return total
    kind = ir.VectorType(_BFloat(), 32)
    operands = [total.ir, *(k.builder.bitcast(x.ir, kind) for x in (a, b))]
    return k.wrap(k.intrinsic("x86.avx512bf16.dpbf16ps.512", total.ir.type, operands), f32, 16)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite's IR lacks; it occurs only as the result of the conversion instruction."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)
