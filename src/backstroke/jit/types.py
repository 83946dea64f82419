"""The number types that kernels know, without LLVM: this module is cheap to import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """A type of one element, as it lies in memory. `kind` is "f" (IEEE), "b" (bfloat), "i" (integer) or "m" (mask)."""

    name: str
    kind: str
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def compute(self) -> Type:
        """The type in which a kernel computes with such elements: 16-bit floats are widened to float32."""
        return f32 if self in (f16, bf16) else self

    def __repr__(self) -> str:
        return self.name


f64 = Type("f64", "f", 64)
f32 = Type("f32", "f", 32)
f16 = Type("f16", "f", 16)
bf16 = Type("bf16", "b", 16)
i64 = Type("i64", "i", 64)
i32 = Type("i32", "i", 32)
i16 = Type("i16", "i", 16)
i8 = Type("i8", "i", 8)
mask = Type("mask", "m", 1)


@dataclass(frozen=True)
class Param:
    """One argument of a compiled function: a pointer to elements of `type`, or (where not `pointer`) a scalar."""

    type: Type
    pointer: bool = False

    @property
    def pack(self) -> str:
        """The `struct` letter of the argument: every argument of a kernel takes eight bytes."""
        return "P" if self.pointer else "d" if self.type.kind == "f" else "q"


def pointer(to: Type) -> Param:
    """A pointer argument."""
    return Param(to, pointer=True)


def scalar(type: Type = i64) -> Param:
    """A scalar argument."""
    return Param(type)
