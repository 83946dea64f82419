"""What a trace computes with: values, variables, vectors' lanes, arrays in memory, and their operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Union

import llvmlite.ir as ir

from . import convert
from .types import Type, i64

if TYPE_CHECKING:
    from .trace import Trace

INT32 = ir.IntType(32)
_FLOATS = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}


class TraceError(Exception):
    """A kernel's Python code asked for what cannot be machine code."""


def storage(type: Type) -> ir.Type:
    """LLVM's type of an element in memory; bfloat16, which llvmlite's IR does not know, is a 16-bit integer."""
    return _FLOATS[type.bits] if type.kind == "f" else ir.IntType(type.bits)


def shaped(type: Type, lanes: int) -> ir.Type:
    """LLVM's type of `lanes` elements."""
    return storage(type) if lanes == 1 else ir.VectorType(storage(type), lanes)


Number = Union["Operand", int, float]


class Operand:
    """The operators of values and variables."""

    k: Trace
    type: Type
    lanes: int

    def read(self) -> Value:
        raise NotImplementedError

    def __add__(self, other: Number) -> Value:
        return self.k.arithmetic("+", self, other)

    def __radd__(self, other: Number) -> Value:
        return self.k.arithmetic("+", other, self)

    def __sub__(self, other: Number) -> Value:
        return self.k.arithmetic("-", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self.k.arithmetic("-", other, self)

    def __mul__(self, other: Number) -> Value:
        return self.k.arithmetic("*", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self.k.arithmetic("*", other, self)

    def __truediv__(self, other: Number) -> Value:
        return self.k.arithmetic("/", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.k.arithmetic("/", other, self)

    def __floordiv__(self, other: Number) -> Value:
        return self.k.arithmetic("//", self, other)

    def __rfloordiv__(self, other: Number) -> Value:
        return self.k.arithmetic("//", other, self)

    def __mod__(self, other: Number) -> Value:
        return self.k.arithmetic("%", self, other)

    def __lshift__(self, other: Number) -> Value:
        return self.k.arithmetic("<<", self, other)

    def __rshift__(self, other: Number) -> Value:
        return self.k.arithmetic(">>", self, other)

    def __and__(self, other: Number) -> Value:
        return self.k.arithmetic("&", self, other)

    def __or__(self, other: Number) -> Value:
        return self.k.arithmetic("|", self, other)

    def __xor__(self, other: Number) -> Value:
        return self.k.arithmetic("^", self, other)

    def __neg__(self) -> Value:
        value = self.read()
        return value if value.type.kind == "m" else self.k.negative(value)

    def __lt__(self, other: Number) -> Value:
        return self.k.compare("<", self, other)

    def __le__(self, other: Number) -> Value:
        return self.k.compare("<=", self, other)

    def __gt__(self, other: Number) -> Value:
        return self.k.compare(">", self, other)

    def __ge__(self, other: Number) -> Value:
        return self.k.compare(">=", self, other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.k.compare("==", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.k.compare("!=", self, other)  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TraceError("a value has no truth while tracing: use k.where(...) or k.when(...)")


class Value(Operand):
    """A number, or a vector of `lanes` numbers, that is known when the kernel runs."""

    __slots__ = ("ir", "k", "lanes", "type")

    def __init__(self, k: Trace, value: ir.Value, type: Type, lanes: int = 1) -> None:
        self.k, self.ir, self.type, self.lanes = k, value, type, lanes

    def read(self) -> Value:
        return self

    def __repr__(self) -> str:
        return f"Value({self.type}{f' x {self.lanes}' if self.lanes > 1 else ''})"


class Var(Operand):
    """A value that changes: `total = k.var(0.0)`, then `total += x` or `total.set(x)`. It lives in a register."""

    __slots__ = ("k", "lanes", "slot", "type")

    def __init__(self, k: Trace, start: Value) -> None:
        self.k, self.type, self.lanes = k, start.type, start.lanes
        with k.builder.goto_entry_block():
            self.slot = k.builder.alloca(shaped(start.type, start.lanes))
        self.set(start)

    def read(self) -> Value:
        return Value(self.k, self.k.builder.load(self.slot, typ=shaped(self.type, self.lanes)), self.type, self.lanes)

    def set(self, value: Number) -> None:
        """Change the variable."""
        self.k.builder.store(self.k.value(value, self.type, self.lanes).ir, self.slot)

    def __iadd__(self, other: Number) -> Var:  # type: ignore[override]
        self.set(self + other)
        return self


@dataclass(frozen=True)
class Lanes:
    """`count` neighbouring elements from `start` on; under `mask` where not all of them exist."""

    start: Value | int
    count: int
    mask: Value | None = None
    aligned: Pointer | bool = False  # where they begin at a multiple of the vector's size: in that array, or everywhere

    def __add__(self, offset: Value | int) -> Lanes:
        return replace(self, start=self.start + offset, aligned=False)

    __radd__ = __add__


Index = Union["Lanes", "Value", int]


class Pointer:
    """An array of elements of `type` in memory. `p[i]` is an element, `p[lanes]` a vector, both of the compute type."""

    __slots__ = ("ir", "k", "type")

    def __init__(self, k: Trace, address: ir.Value, type: Type) -> None:
        self.k, self.ir, self.type = k, address, type

    def at(self, index: Value | int) -> Pointer:
        """The array that starts `index` elements further on."""
        if isinstance(index, int) and index == 0:
            return self
        place = self.k.builder.gep(self.ir, [self.k.value(index, i64).ir], source_etype=storage(self.type))
        return Pointer(self.k, place, self.type)

    def __getitem__(self, index: Index) -> Value:
        return self.load(index)

    def __setitem__(self, index: Index, value: Number) -> None:
        self.store(index, value)

    def load(self, index: Index, *, align: int = 1) -> Value:
        """The element, or the vector (zero where its mask is off), in the compute type; `align` in bytes."""
        at = index if isinstance(index, Lanes) else Lanes(index, 1)
        k, place, type = self.k, self.at(at.start).ir, shaped(self.type, at.count)
        if at.mask is None:
            raw = k.builder.load(place, typ=type, align=align)
        else:
            zero = ir.Constant(type, None)
            raw = k.intrinsic("masked.load", type, [place, INT32(align), at.mask.ir, zero], suffix=[type, place.type])
        return convert.widen(k, Value(k, raw, self.type, at.count))

    def store(self, index: Index, value: Number, *, align: int = 1, stream: bool = False) -> None:
        """Store an element or a vector, rounded to the type in memory.

        `stream` goes past the caches, where the lanes are whole and aligned in this array, and means nothing elsewhere.
        """
        at = index if isinstance(index, Lanes) else Lanes(index, 1)
        k, place = self.k, self.at(at.start).ir
        rounded = convert.narrow(k, k.value(value, self.type.compute, at.count), self.type)
        if at.mask is not None:
            arguments = [rounded.ir, place, INT32(align), at.mask.ir]
            k.intrinsic("masked.store", ir.VoidType(), arguments, suffix=[rounded.ir.type, place.type])
            return
        stream = stream and (at.aligned is self or at.aligned is True)
        store = k.builder.store(rounded.ir, place, align=at.count * self.type.bytes if stream else align)
        if stream:
            store.set_metadata("nontemporal", k.module.add_metadata([INT32(1)]))

    def viewed(self, type: Type) -> Pointer:
        """The same memory as elements of another type."""
        return Pointer(self.k, self.ir, type)

    @property
    def address(self) -> Value:
        """The address as an integer."""
        return Value(self.k, self.k.builder.ptrtoint(self.ir, storage(i64)), i64)
