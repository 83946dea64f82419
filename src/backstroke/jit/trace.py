"""Python functions into LLVM IR: values with operators, loops as `for`, vectors with tail masks.

A kernel is a Python function `build(k, ...)`. It runs once, while it is compiled: what it computes with Python numbers
is a constant of the machine code, what it computes with `Value`s happens when the kernel runs. `k`, the `Trace`,
records. A loop is written as a loop:

    for row in k.range(rows):                       # a loop of the machine code
        for at in k.vectors(n, lanes):              # whole vectors, then (traced again, under a mask) the tail
            dx[row * n + at] = relu(dy[row * n + at])
    for j in range(4): ...                          # a loop of the tracer: four copies of the body

Integers are 64-bit and signed; `//` and `%` on them truncate, as indices are never negative. 16-bit floats are
widened to float32 as they are loaded and rounded to nearest even as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import llvmlite.ir as ir

from .target import Target
from .types import Param, Type, f32, f64, i32, i64, mask
from .values import INT32, Lanes, Number, Operand, Pointer, TraceError, Value, Var, shaped, storage

_ARITHMETIC = {  # operator -> (on floats, on integers and masks)
    "+": ("fadd", "add"), "-": ("fsub", "sub"), "*": ("fmul", "mul"), "/": ("fdiv", None), "//": (None, "sdiv"),
    "%": (None, "srem"), "<<": (None, "shl"), ">>": (None, "ashr"), "&": (None, "and_"), "|": (None, "or_"),
    "^": (None, "xor"),
}  # fmt: skip


class Trace:
    """Records one function. Kernels get it as `k`."""

    def __init__(self, target: Target, name: str, params: Sequence[Param], returns: Type | None = None) -> None:
        self.target, self.returns = target, returns
        self.module = ir.Module(name)
        self.module.triple = target.triple
        types = [ir.PointerType() if param.pointer else storage(param.type) for param in params]
        result = storage(returns) if returns else ir.VoidType()
        self.function = ir.Function(self.module, ir.FunctionType(result, types), name)
        self.function.attributes.add("nounwind")
        entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("body"))
        ir.IRBuilder(entry).branch(self.builder.block)
        self.arguments = [self._argument(raw, param) for raw, param in zip(self.function.args, params, strict=True)]
        self._open = 0

    def _argument(self, raw: ir.Value, param: Param) -> Value | Pointer:
        return Pointer(self, raw, param.type) if param.pointer else Value(self, raw, param.type)

    def argument(self, block: Any, index: int, param: Param) -> Value | Pointer:
        """One argument of a kernel, out of the block of eight-byte slots."""
        if param.pointer:
            return self.dereference(block.load(index, align=8), param.type)
        if param.type.kind != "f":
            return self.to(param.type, block.load(index, align=8))
        return self.to(param.type, Pointer(self, block.ir, f64).load(index, align=8))

    def finish(self) -> str:
        """The module's text, once the function is whole."""
        if self._open:
            raise TraceError("a loop was left by `break`: a traced loop always runs to its end")
        if not self.builder.block.is_terminated:
            self.builder.ret_void()
        return str(self.module)

    # ---- values ----------------------------------------------------------------------------------------------------

    def wrap(self, raw: ir.Value, type: Type, lanes: int = 1) -> Value:
        """What llvmlite's builder made, as a value."""
        return Value(self, raw, type, lanes)

    def value(self, x: Number, type: Type, lanes: int = 1) -> Value:
        """`x` as a value of that type: numbers become constants, scalars are spread over the lanes."""
        if isinstance(x, Operand):
            value = x.read()
            if value.type is not type:
                raise TraceError(f"{value!r} where {type} is wanted: convert with k.to(...)")
            return value if value.lanes == lanes else self.spread(value, lanes)
        if not isinstance(x, Real):
            raise TraceError(f"{x!r} where a number is wanted")
        if type.kind == "b" or (type.kind != "f" and x % 1 != 0):
            raise TraceError(f"{x!r} cannot be a constant of type {type}")
        number = float(x) if type.kind == "f" else int(x)
        constant = ir.Constant(storage(type), number)
        if lanes > 1:
            constant = ir.Constant(shaped(type, lanes), [constant] * lanes)
        return Value(self, constant, type, lanes)

    def spread(self, x: Value, lanes: int) -> Value:
        """A vector with the scalar in every lane."""
        if lanes == 1 and x.lanes == 1:
            return x
        if x.lanes != 1:
            raise TraceError(f"{x!r} where {lanes} lanes are wanted")
        undefined = ir.Constant(shaped(x.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, x.ir, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        return Value(self, self.builder.shuffle_vector(first, undefined, zeros), x.type, lanes)

    def alike(self, *values: Number) -> list[Value]:
        """The values in one common shape; plain numbers take the type of their company, or are indices."""
        known = [x.read() for x in values if isinstance(x, Operand)]
        if not known and all(isinstance(x, int) for x in values):
            return [self.value(x, i64) for x in values]
        if not known:
            raise TraceError("no traced value among the operands")
        lanes = max(x.lanes for x in known)
        return [self.value(x, known[0].type, lanes) for x in values]

    def arithmetic(self, operator: str, a: Number, b: Number) -> Value:
        """`a operator b`, elementwise."""
        x, y = self.alike(a, b)
        on_floats, on_integers = _ARITHMETIC[operator]
        name = on_floats if x.type.kind == "f" else on_integers
        if name is None or x.type.kind == "b":
            raise TraceError(f"{operator} is not defined on {x.type}")
        return Value(self, getattr(self.builder, name)(x.ir, y.ir), x.type, x.lanes)

    def negative(self, x: Value) -> Value:
        """`-x`; of floats the sign bit is turned over, for zeros too."""
        return Value(self, (self.builder.fneg if x.type.kind == "f" else self.builder.neg)(x.ir), x.type, x.lanes)

    def compare(self, operator: str, a: Number, b: Number) -> Value:
        """A mask; comparisons with NaN are false, but for `!=`."""
        x, y = self.alike(a, b)
        if x.type.kind == "b":
            raise TraceError(f"{operator} is not defined on {x.type}")
        if x.type.kind != "f":
            test = self.builder.icmp_signed
        else:
            test = self.builder.fcmp_unordered if operator == "!=" else self.builder.fcmp_ordered
        return Value(self, test(operator, x.ir, y.ir), mask, x.lanes)

    def below(self, x: Number, bound: Number) -> Value:
        """Whether 0 <= x < bound, for integers."""
        a, b = self.alike(x, bound)
        return Value(self, self.builder.icmp_unsigned("<", a.ir, b.ir), mask, a.lanes)

    def where(self, condition: Value, a: Number, b: Number) -> Value:
        """`a` where the condition holds, else `b`: both are computed."""
        x, y = self.alike(a, b)
        test = self._mask(condition)
        if test.lanes > x.lanes:
            x, y = (self.spread(v, test.lanes) for v in (x, y))
        if test.lanes not in (1, x.lanes):
            raise TraceError(f"a condition of {test.lanes} lanes for {x!r}")
        return Value(self, self.builder.select(test.ir, x.ir, y.ir), x.type, x.lanes)

    def no(self, condition: Value) -> Value:
        """Where the condition does not hold."""
        test = self._mask(condition)
        return Value(self, self.builder.not_(test.ir), mask, test.lanes)

    def _mask(self, condition: Value | Var, *, scalar: bool = False) -> Value:
        """A condition, which must be the result of a comparison; with `scalar`, of one number."""
        test = condition.read() if isinstance(condition, Operand) else None
        if test is None or test.type is not mask or (scalar and test.lanes > 1):
            raise TraceError(f"{condition!r} where {'one condition' if scalar else 'a condition'} is wanted")
        return test

    def least(self, a: Number, b: Number) -> Value:
        """The smaller of two numbers."""
        x, y = self.alike(a, b)
        return self.where(x < y, x, y)

    def most(self, a: Number, b: Number) -> Value:
        """The larger of two numbers."""
        x, y = self.alike(a, b)
        return self.where(x > y, x, y)

    def to(self, type: Type, x: Value | Var) -> Value:
        """Convert: floats round to nearest even, integers widen with their sign or are cut."""
        value = x.read()
        if value.type is type:
            return value
        b, goal, old = self.builder, shaped(type, value.lanes), value.type
        if "b" in (old.kind, type.kind) or type.kind == "m":
            raise TraceError(f"{value!r} is not converted to {type}: loads and stores do, or a comparison")
        if old.kind == "f" and type.kind == "f":
            raw = (b.fpext if type.bits > old.bits else b.fptrunc)(value.ir, goal)
        elif old.kind == "m":
            raw = b.zext(value.ir, goal)
        elif old.kind == "f":
            raw = b.fptosi(value.ir, goal)
        elif type.kind == "f":
            raw = b.sitofp(value.ir, goal)
        else:
            raw = (b.sext if type.bits > old.bits else b.trunc)(value.ir, goal)
        return Value(self, raw, type, value.lanes)

    def bits(self, type: Type, x: Value) -> Value:
        """The same bits read as another type of the same width."""
        return Value(self, self.builder.bitcast(x.ir, shaped(type, x.lanes)), type, x.lanes)

    def unsigned(self, type: Type, x: Value) -> Value:
        """An integer widened with zeros."""
        return Value(self, self.builder.zext(x.ir, shaped(type, x.lanes)), type, x.lanes)

    def opaque(self, x: Value) -> Value:
        """The same number or vector, of which LLVM no longer knows where it came from (on x86 and AArch64)."""
        if x.type is i64 and x.lanes == 1:
            if self.target.arch not in ("x86_64", "aarch64"):
                return x
            raw = self.builder.asm(ir.FunctionType(x.ir.type, [x.ir.type]), "", "=r,0", [x.ir], False)
            return Value(self, raw, x.type, x.lanes)
        register = {"x86_64": "v" if self.target.vector_bytes == 64 else "x", "aarch64": "w"}.get(self.target.arch)
        if register is None:
            return x
        least = 128 // x.type.bits  # what is less than a register has none of its own on some CPUs
        if x.lanes < least:
            full = self.shuffle(x, None, [min(i, x.lanes - 1) for i in range(least)])
            return self.shuffle(self.opaque(full), None, range(x.lanes))
        kind = x.ir.type
        raw = self.builder.asm(ir.FunctionType(kind, [kind]), "", f"={register},0", [x.ir], False)
        return Value(self, raw, x.type, x.lanes)

    def shift_right(self, x: Value, by: int) -> Value:
        """A logical shift: zeros come in from the left."""
        return Value(self, self.builder.lshr(x.ir, self.value(by, x.type, x.lanes).ir), x.type, x.lanes)

    def fma(self, a: Number, b: Number, c: Number) -> Value:
        """`a * b + c`, rounded once on every target."""
        x, y, z = self.alike(a, b, c)
        if x.type is f32 and not self.target.has_fma:
            return self._fma_in_float64(*(self.to(f64, v) for v in (x, y, z)))
        return self.elementwise_intrinsic("fma", x, y, z)

    def _fma_in_float64(self, a: Value, b: Value, c: Value) -> Value:
        """The product of two float32 is exact in float64; the sum is rounded to odd, so float32 rounds it right."""
        product = a * b
        total = product + c
        added = total - product
        lost = (product - (total - added)) + (c - added)
        bits = self.bits(i64, total)
        even = (lost != 0) & (lost == lost) & ((bits & 1) == 0)
        step = self.where((lost > 0) ^ (total > 0), -1 + (bits & 0), 1)
        return self.to(f32, self.bits(f64, self.where(even, bits + step, bits)))

    def muladd(self, a: Number, b: Number, c: Number) -> Value:
        """`a * b + c`, rounded once where the CPU does that in one instruction, else twice."""
        x, y, z = self.alike(a, b, c)
        return self.elementwise_intrinsic("fma" if self.target.has_fma else "fmuladd", x, y, z)

    def intrinsic(
        self, name: str, returns: ir.Type, arguments: Sequence[ir.Value], *, suffix: Sequence[ir.Type] = ()
    ) -> ir.Value:
        """Call `llvm.name`, its overloads spelled from `suffix`."""
        full = ".".join(["llvm", name, *(_mangle(type) for type in suffix)])
        return self.builder.call(self._declare(full, returns, [a.type for a in arguments]), arguments)

    def elementwise_intrinsic(self, name: str, *values: Value) -> Value:
        """An intrinsic whose operands and result have all the same type."""
        x = values[0]
        raw = self.intrinsic(name, x.ir.type, [v.ir for v in values], suffix=[x.ir.type])
        return Value(self, raw, x.type, x.lanes)

    def _declare(self, name: str, returns: ir.Type, types: Sequence[ir.Type]) -> ir.Function:
        known = self.module.globals.get(name)
        return known if known is not None else ir.Function(self.module, ir.FunctionType(returns, types), name)

    # ---- vectors ---------------------------------------------------------------------------------------------------

    def iota(self, lanes: int) -> Value:
        """0, 1, 2, ... as 64-bit integers."""
        return self.ramp(i64, lanes, 1)

    def ramp(self, type: Type, lanes: int, step: int) -> Value:
        """0, step, 2 step, ..."""
        if lanes == 1:
            return self.value(0, type)
        return Value(self, ir.Constant(shaped(type, lanes), [i * step for i in range(lanes)]), type, lanes)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        """A vector of constant picks: 0 to n-1 from `a`, n to 2n-1 from `b`."""
        other = a.ir if b is None else b.ir
        order = ir.Constant(ir.VectorType(INT32, len(picks)), list(picks))
        raw = self.builder.shuffle_vector(a.ir, other, order)
        return Value(self, raw, a.type, len(picks)) if len(picks) > 1 else self.lane(Value(self, raw, a.type, 2), 0)

    def turned(self, rows: Sequence[Value]) -> list[Value]:
        """A square block with rows and columns exchanged."""
        lanes, step = len(rows), 1
        block = [*rows]
        while step < lanes:
            result = list(block)
            for i in range(lanes):
                if not i & step:
                    low, high = block[i], block[i + step]
                    result[i] = self.shuffle(low, high, [lanes + j - step if j & step else j for j in range(lanes)])
                    picks = [lanes + j if j & step else j + step for j in range(lanes)]
                    result[i + step] = self.shuffle(low, high, picks)
            block, step = result, step * 2
        return block

    def by_parts(self, lanes: int, work: Callable[..., Value], *values: Value) -> Value:
        """What `work` makes of every `lanes` neighbouring lanes: for instructions that know one size only."""
        whole = values[0].lanes
        starts = range(0, whole, lanes) if whole > lanes else ()
        parts = [work(*(self.shuffle(v, None, range(i, i + lanes)) for v in values)) for i in starts] or [work(*values)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
        return parts[0]

    def lane(self, x: Value, index: int) -> Value:
        """One lane as a scalar."""
        return Value(self, self.builder.extract_element(x.ir, INT32(index)), x.type)

    def sum(self, x: Value | Var) -> Value:
        """The sum of the lanes, by halves: always in the same order."""
        value = x.read()
        if value.lanes & (value.lanes - 1):
            raise TraceError(f"{value!r} has no halves: sums are over 2, 4, 8... lanes")
        while value.lanes > 2:
            half = value.lanes // 2
            value = self.shuffle(value, None, range(half)) + self.shuffle(value, None, range(half, 2 * half))
        return self.lane(value, 0) + self.lane(value, 1) if value.lanes == 2 else value

    def smallest(self, x: Value | Var) -> Value:
        """The smallest of the lanes."""
        value = x.read()
        while value.lanes > 1:
            half = value.lanes // 2
            if half == 1:
                return self.least(self.lane(value, 0), self.lane(value, 1))
            value = self.least(self.shuffle(value, None, range(half)), self.shuffle(value, None, range(half, 2 * half)))
        return value

    def any(self, x: Value) -> Value:
        """Whether the mask holds in any lane."""
        test = self._mask(x)
        if test.lanes == 1:
            return test
        whole = self.builder.bitcast(test.ir, ir.IntType(test.lanes))
        return Value(self, self.builder.icmp_unsigned("!=", whole, ir.IntType(test.lanes)(0)), mask)

    # ---- variables and control flow --------------------------------------------------------------------------------

    def var(self, start: Value | Var | float, type: Type = f32, lanes: int = 1) -> Var:
        """A variable. A plain number as start takes `type` and `lanes`."""
        if isinstance(start, Operand):
            start = start.read()
            return Var(self, start if lanes == 1 else self.value(start, start.type, lanes))
        return Var(self, self.value(start, type, lanes))

    def stack(self, type: Type, count: int, align: int = 64) -> Pointer:
        """`count` elements of scratch memory on the stack of the running thread."""
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(storage(type), size=INT32(count))
            slot.align = align
            slot.type = ir.PointerType()  # llvmlite gives it the type of its first element, and would refuse vectors
        return Pointer(self, slot, type)

    @contextmanager
    def borrowed(self, flags: Pointer, count: Value, memory: Pointer, size: Value | int) -> Iterator[Pointer]:
        """A piece of scratch memory of `size` elements that nobody else uses meanwhile, one of `count` in `memory`.

        `flags` has a cache line for each. Who finds none free waits for one.
        """
        mine = self.var(-1, i64)
        with self.forever() as leave:
            for index in self.range(count):
                with self.when(mine < 0):
                    with self.when(self.compare_and_swap(flags.at(index * 8), 0, 1)):
                        mine.set(index)
            leave(mine >= 0)
        slot = mine.read()
        yield memory.at(slot * size)
        self.atomic_store(flags.at(slot * 8), 0)

    def range(self, start: Value | int, stop: Value | int | None = None, step: int = 1) -> Iterator[Value]:
        """A loop of the machine code, as `range`; its body is what the `for` traces."""
        if stop is None:
            start, stop = 0, start
        surely = isinstance(start, int) and isinstance(stop, int)
        if surely and start >= stop:
            return
        first, last = self.value(start, i64), self.value(stop, i64)
        body, after = self.function.append_basic_block("loop"), self.function.append_basic_block("after")
        before = self.builder.block
        if surely:
            self.builder.branch(body)
        else:
            self.builder.cbranch(self.builder.icmp_signed("<", first.ir, last.ir), body, after)
        self.builder.position_at_end(body)
        index = self.builder.phi(storage(i64))
        index.add_incoming(first.ir, before)
        self._open += 1
        yield Value(self, index, i64)
        self._open -= 1
        following = self.builder.add(index, storage(i64)(step), flags=["nsw"])
        index.add_incoming(following, self.builder.block)
        self.builder.cbranch(self.builder.icmp_signed("<", following, last.ir), body, after)
        self.builder.position_at_end(after)

    def unrolled(self, start: Value | int, stop: Value | int, times: int) -> Iterator[Value]:
        """A loop over a range whose body is traced `times` times, and once more for the elements left over."""
        whole = self.value(start, i64) + (self.value(stop, i64) - start) // times * times
        for index in self.range(start, whole, times):
            for i in range(times):
                yield index + i
        yield from self.range(whole, stop)

    def vectors(
        self,
        start: Value | int,
        stop: Value | int | None = None,
        *,
        lanes: int,
        unroll: int = 1,
        align: Pointer | None = None,
    ) -> Iterator[Lanes]:
        """The elements of a range in vectors of `lanes`: whole ones, `unroll` per turn, then the tail under a mask.

        The body is traced `unroll` times for the main loop, then once for the vectors left over and once for the tail.
        With `align`, a partial vector comes first, such that the whole ones are aligned in that array.
        """
        if stop is None:
            start, stop = 0, start
        if isinstance(start, int) and isinstance(stop, int) and start >= stop:
            return
        at: Value | int = start
        if align is not None:
            size = lanes * align.type.bytes
            short = ((0 - align.at(start).address) & (size - 1)) // align.type.bytes
            at = self.most(start, self.least(start + short, stop))
            with self.when(self.value(start, i64) < at):
                yield self.some(start, at - start, lanes)
        for turn in (unroll, 1) if unroll > 1 else (1,):
            end = at + (stop - at) // (turn * lanes) * (turn * lanes)
            for i in self.range(at, end, turn * lanes):
                for j in range(turn):
                    yield Lanes(i + j * lanes if j else i, lanes, aligned=align or False)
            at = end
        if isinstance(at, int) and isinstance(stop, int):
            if at < stop:
                yield self.some(at, stop - at, lanes)
            return
        with self.when(self.value(at, i64) < stop):
            yield self.some(at, stop - at, lanes)

    def some(self, start: Value | int, count: Value | int, lanes: int) -> Lanes:
        """The first `count` of `lanes` elements."""
        if lanes == 1:
            return Lanes(start, 1)
        return Lanes(start, lanes, self.iota(lanes) < self.value(count, i64, lanes))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """`with k.when(condition):` does its body only where the (scalar) condition holds."""
        test = self._mask(condition, scalar=True)
        body, after = self.function.append_basic_block("then"), self.function.append_basic_block("after")
        self.builder.cbranch(test.ir, body, after)
        self.builder.position_at_end(body)
        self._open += 1
        yield
        self._open -= 1
        if not self.builder.block.is_terminated:
            self.builder.branch(after)
        self.builder.position_at_end(after)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Value], None]]:
        """`with k.forever() as leave:` repeats its body until `leave(condition)` finds its condition true."""
        body, after = self.function.append_basic_block("repeat"), self.function.append_basic_block("after")
        self.builder.branch(body)
        self.builder.position_at_end(body)

        def leave(condition: Value) -> None:
            test, going_on = self._mask(condition, scalar=True), self.function.append_basic_block("stay")
            self.builder.cbranch(test.ir, after, going_on)
            self.builder.position_at_end(going_on)

        yield leave
        if not self.builder.block.is_terminated:
            self.builder.branch(body)
        self.builder.position_at_end(after)

    def give(self, value: Number) -> None:
        """Return from the function."""
        assert self.returns is not None, "the function returns nothing"
        self.builder.ret(self.value(value, self.returns).ir)
        self.builder.position_at_end(self.function.append_basic_block("unreachable"))
        self.builder.unreachable()
        self.builder.position_at_start(self.builder.block)

    # ---- memory as other threads and other programs see it ----------------------------------------------------------

    def prefetch(self, p: Pointer, *, write: bool = False) -> None:
        """Ask for the cache line at an address, which need not be one of ours."""
        arguments = [p.ir, INT32(int(write)), INT32(3), INT32(1)]
        self.intrinsic("prefetch", ir.VoidType(), arguments, suffix=[ir.PointerType()])

    def dereference(self, address: Value, type: Type) -> Pointer:
        """The array at an address."""
        return Pointer(self, self.builder.inttoptr(address.ir, ir.PointerType()), type)

    def atomic_load(self, p: Pointer) -> Value:
        """Load what other threads store (sequentially consistent)."""
        return Value(self, self.builder.load_atomic(p.ir, "seq_cst", p.type.bytes, typ=storage(p.type)), p.type)

    def atomic_store(self, p: Pointer, value: Number) -> None:
        """Store for other threads (sequentially consistent)."""
        self.builder.atomic_rmw("xchg", p.ir, self.value(value, p.type).ir, "seq_cst")

    def atomic_add(self, p: Pointer, value: Number) -> Value:
        """Add and give back what was there before."""
        return Value(self, self.builder.atomic_rmw("add", p.ir, self.value(value, p.type).ir, "seq_cst"), p.type)

    def compare_and_swap(self, p: Pointer, old: Number, new: Number) -> Value:
        """Store `new` where `old` is found, at once; whether it was."""
        olds, news = self.value(old, p.type).ir, self.value(new, p.type).ir
        both = self.builder.cmpxchg(p.ir, olds, news, "seq_cst", "seq_cst")
        return Value(self, self.builder.extract_value(both, 1), mask)

    def default_float_environment(self) -> Callable[[], None]:
        """Round to nearest and keep subnormal numbers from here on; what is returned puts back the caller's way."""
        nothing = ir.VoidType()
        if self.target.is_x86:
            before, ours = self.stack(i32, 1), self.stack(i32, 1)
            ours[0] = 0x1F80
            self.intrinsic("x86.sse.stmxcsr", nothing, [before.ir])
            self.intrinsic("x86.sse.ldmxcsr", nothing, [ours.ir])
            return lambda: self.intrinsic("x86.sse.ldmxcsr", nothing, [before.ir])
        if self.target.arch == "aarch64":
            state = self.intrinsic("aarch64.get.fpcr", storage(i64), [])
            self.intrinsic("aarch64.set.fpcr", nothing, [storage(i64)(0)])
            return lambda: self.intrinsic("aarch64.set.fpcr", nothing, [state])
        return lambda: None  # RISC-V and the like have no such modes

    def call(
        self, address: Value, *arguments: Value | Pointer, returns: Type | None = None, variadic: int = 0
    ) -> Value:
        """Call a C function by its address; `variadic` is how many arguments its prototype names before `...`."""
        types = [a.ir.type for a in arguments]
        result = storage(returns) if returns else ir.VoidType()
        prototype = ir.FunctionType(result, types[:variadic] or types, var_arg=bool(variadic))
        function = self.builder.inttoptr(address.ir, ir.PointerType())
        raw = self.builder.call(_Callee(function, prototype), [a.ir for a in arguments])
        return Value(self, raw, returns or i64)


class _Callee:
    """An address with a prototype, as llvmlite's `call` wants it."""

    def __init__(self, address: ir.Value, prototype: ir.FunctionType) -> None:
        self.address, self.function_type, self.type = address, prototype, prototype.as_pointer()
        self.is_declaration, self.calling_convention = False, ""

    def get_reference(self) -> str:
        return str(self.address.get_reference())


def _mangle(type: ir.Type) -> str:
    if isinstance(type, ir.VectorType):
        return f"v{type.count}{_mangle(type.element)}"
    if isinstance(type, ir.PointerType):
        return "p0"
    if isinstance(type, ir.IntType):
        return f"i{type.width}"
    return {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}[str(type)]


__all__ = ["Lanes", "Number", "Operand", "Pointer", "Trace", "TraceError", "Value", "Var"]
