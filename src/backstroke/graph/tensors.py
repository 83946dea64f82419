"""The language that gradient rules are written in: symbolic tensors whose operators are nodes of the gradient graph.

A rule sees a forward node as an `Op`: its inputs `x`, its outputs `y`, the gradients `dy` of its outputs. It computes
with them as with arrays, and what it computes becomes ONNX nodes: standard ones, ONNX Runtime's gradient ops
(com.microsoft), and some of our own, which an export does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .model import Model, Node

OWN = "backstroke"
MICROSOFT = "com.microsoft"
_BOOL, _INT64 = np.dtype(bool), np.dtype(np.int64)


class SizesNeededError(ValueError):
    """A rule must know sizes that the model does not tell; they are known when arrays come in."""


@dataclass
class GradientNode:
    """A node of the gradient graph."""

    op: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    like: str = ""  # the forward tensor whose shape the output has, where the inputs do not tell it


class Tensor:
    """A tensor of the forward or of the gradient graph."""

    __slots__ = ("dtype", "graph", "name")

    def __init__(self, graph: Builder, name: str, dtype: np.dtype) -> None:
        self.graph, self.name, self.dtype = graph, name, dtype

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype})"

    def _with(self, op: str, other: Tensor | float, *, swap: bool = False, dtype: np.dtype | None = None) -> Tensor:
        b = other if isinstance(other, Tensor) else self.graph.constant(np.asarray(other, self.dtype))
        return self.graph.node(op, *((b, self) if swap else (self, b)), dtype=dtype or self.dtype)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._with("Add", other)

    def __radd__(self, other: float) -> Tensor:
        return self._with("Add", other, swap=True)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._with("Sub", other)

    def __rsub__(self, other: float) -> Tensor:
        return self._with("Sub", other, swap=True)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._with("Mul", other)

    def __rmul__(self, other: float) -> Tensor:
        return self._with("Mul", other, swap=True)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._with("Div", other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._with("Div", other, swap=True)

    def __neg__(self) -> Tensor:
        return self.graph.node("Neg", self)

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self._with("Greater", other, dtype=_BOOL)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self._with("Less", other, dtype=_BOOL)

    def equals(self, other: Tensor | float) -> Tensor:
        return self._with("Equal", other, dtype=_BOOL)

    def __and__(self, other: Tensor) -> Tensor:
        return self._with("And", other)

    def __invert__(self) -> Tensor:
        return self.graph.node("Not", self)

    def to(self, dtype: Any) -> Tensor:
        """Converted to another type."""
        return self.graph.cast(self, np.dtype(dtype))


def exp(x: Tensor) -> Tensor:
    return x.graph.node("Exp", x)


def log(x: Tensor) -> Tensor:
    return x.graph.node("Log", x)


def sqrt(x: Tensor) -> Tensor:
    return x.graph.node("Sqrt", x)


def erf(x: Tensor) -> Tensor:
    return x.graph.node("Erf", x)


def sign(x: Tensor) -> Tensor:
    return x.graph.node("Sign", x)


def sigmoid(x: Tensor) -> Tensor:
    return x.graph.node("Sigmoid", x)


def tanh(x: Tensor) -> Tensor:
    return x.graph.node("Tanh", x)


def power(x: Tensor, exponent: Tensor | float) -> Tensor:
    return x._with("Pow", exponent)


def where(condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    """`a` where the condition holds, else `b`; one of the two is a tensor."""
    known = a if isinstance(a, Tensor) else b
    assert isinstance(known, Tensor)
    graph = known.graph
    both = [v if isinstance(v, Tensor) else graph.constant(np.asarray(v, known.dtype)) for v in (a, b)]
    return graph.node("Where", condition, *both, dtype=known.dtype)


@dataclass
class Builder:
    """The gradient graph while it grows."""

    model: Model
    nodes: list[GradientNode] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    prefix: str = "Gradient"
    names: dict[str, int] = field(default_factory=dict)
    _shapes: dict[str, Tensor] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def fresh(self, suffix: str) -> str:
        """A name that nothing has yet."""
        base = f"{self.prefix}_Grad/{suffix}"
        while True:
            count = self.names[base] = self.names.get(base, -1) + 1
            name = f"{base}_{count}"
            if not self.model.knows(name):
                return name

    def node(
        self,
        op: str,
        *inputs: Tensor | None,
        dtype: Any = None,
        domain: str = "",
        like: Tensor | None = None,
        **attributes: Any,
    ) -> Tensor:
        """A node with one output, of the type of its first input if no other is told."""
        output = self.nodes_out(op, inputs, [dtype], domain=domain, **attributes)[0]
        if like is not None:
            self.nodes[-1].like = like.name
        return output

    def nodes_out(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        dtypes: Sequence[Any],
        *,
        wanted: Sequence[bool] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> list[Tensor]:
        """A node with several outputs; those that are not wanted are named ""."""
        first = next(x for x in inputs if x is not None)
        name = self.fresh(op)
        outputs = [
            Tensor(
                self, (name if not i else f"{name}:{i}") if wanted is None or wanted[i] else "", dtype or first.dtype
            )
            for i, dtype in enumerate(dtypes)
        ]
        names = [x.name if x is not None else "" for x in inputs]
        attributes = {word: value for word, value in attributes.items() if value is not None}
        self.nodes.append(GradientNode(op, domain, name, names, [y.name for y in outputs], attributes))
        return outputs

    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """A constant; the same one is made once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            name = self.fresh("Constant")
            self.constants[name] = array
            self._known[key] = Tensor(self, name, array.dtype)
        return self._known[key]

    def integers(self, *values: int) -> Tensor:
        """A constant vector of int64."""
        return self.constant(np.asarray(values, np.int64))

    def shape(self, x: Tensor) -> Tensor:
        """The shape of a tensor, as a tensor."""
        if x.name not in self._shapes:
            self._shapes[x.name] = self.node("Shape", x, dtype=_INT64)
        return self._shapes[x.name]

    def cast(self, x: Tensor, dtype: np.dtype) -> Tensor:
        """Converted to another type; nothing where it has it already."""
        from onnx import helper

        return x if x.dtype == dtype else self.node("Cast", x, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(dtype))

    def sum_to(self, x: Tensor, shape: Tensor) -> Tensor:
        """The gradient of broadcasting: summed over what was repeated, down to that shape."""
        return self.node("SumTo", x, shape, domain=OWN)

    def reduce_sum(self, x: Tensor, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        """Summed over constant axes."""
        if self.model.opset >= 13:
            return self.node("ReduceSum", x, self.integers(*axes), keepdims=int(keepdims))
        return self.node("ReduceSum", x, axes=list(axes), keepdims=int(keepdims))

    def reshape(self, x: Tensor, shape: Tensor | Sequence[int]) -> Tensor:
        """In another shape; 0 in a constant shape keeps an axis, -1 is what is left."""
        return self.node("Reshape", x, shape if isinstance(shape, Tensor) else self.integers(*shape))

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """With axes of length 1 put in."""
        if self.model.opset >= 13:
            return self.node("Unsqueeze", x, self.integers(*axes))
        return self.node("Unsqueeze", x, axes=list(axes))

    def expand(self, x: Tensor, shape: Tensor) -> Tensor:
        """Broadcast to that shape."""
        return self.node("Expand", x, shape)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """With its axes in that order."""
        return x if list(order) == sorted(order) else self.node("Transpose", x, perm=list(order))


class Op:
    """A forward node as its rule sees it."""

    def __init__(self, graph: Builder, node: Node, dy: Sequence[Tensor | None], wants: Sequence[bool]) -> None:
        self.graph, self.node, self.dys, self._wants = graph, node, list(dy), list(wants)
        self.opset, self.attr = graph.model.opset, node.attributes
        self.x = [self._tensor(name) for name in node.inputs]
        self.y = [self._tensor(name) for name in node.outputs]

    def _tensor(self, name: str) -> Tensor:
        return Tensor(self.graph, name, self.graph.model.types.get(name, np.dtype(np.float32)))

    @property
    def dy(self) -> Tensor:
        """The gradient of the first output."""
        first = self.dys[0]
        assert first is not None
        return first

    def has(self, i: int) -> bool:
        """Whether input `i` is there."""
        return i < len(self.x) and self.x[i].name != ""

    def wants(self, i: int) -> bool:
        """Whether the gradient of input `i` is asked for."""
        return i < len(self._wants) and self._wants[i]

    def number(self, name: str, default: Any) -> Any:
        """An attribute."""
        value = self.attr.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def value(self, i: int) -> np.ndarray | None:
        """The value of input `i` where it is a constant that no gradient is asked of; else None."""
        return self.graph.model.value(self.x[i].name) if self.has(i) and not self.wants(i) else None

    def rank(self, x: Tensor) -> int:
        """How many axes a forward tensor has."""
        shape = self.graph.model.shapes.get(x.name)
        if shape is None:
            raise SizesNeededError(
                f"model: {self.node}: nothing tells how many axes {x.name!r} has (no inferred shape)"
            )
        return len(shape)

    def dims(self, x: Tensor) -> tuple[Any, ...]:
        """The shape of a forward tensor as far as it is known: numbers, names of symbols, None."""
        return self.graph.model.shapes.get(x.name, ())

    def static_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """The shape of a forward tensor, where all of it is known."""
        shape = self.graph.model.shapes.get(x.name)
        return shape if shape is not None and all(isinstance(d, int) for d in shape) else None

    def count(self, of: Tensor, per: Tensor) -> Tensor:
        """How many elements of one tensor there are for each of another, as a number of their type."""
        sizes = [self.graph.node("Size", t, dtype=_INT64) for t in (of, per)]
        return (sizes[0] / sizes[1]).to(of.dtype)

    def unbroadcast(self, dx: Tensor, i: int) -> Tensor:
        """`dx` summed to the shape of input `i`."""
        mine, theirs = self.graph.model.shapes.get(self.x[i].name), self.graph.model.shapes.get(self.y[0].name)
        if mine is not None and mine == theirs and None not in mine:
            return dx
        return self.graph.sum_to(dx, self.graph.shape(self.x[i]))

    def microsoft(self, name: str, *inputs: Tensor, **attributes: Any) -> Tensor:
        """One of ONNX Runtime's gradient ops."""
        return self.graph.node(name, *inputs, domain=MICROSOFT, **attributes)
