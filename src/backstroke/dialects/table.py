"""What the dialects share: rows of a table of kernels, and the checking of a call against its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

REQUIRED = object()


@dataclass(frozen=True)
class Attribute:
    """An attribute by its contract: its kind is INT, FLOAT, STRING, BOOL or INTS."""

    name: str
    kind: str
    default: Any = REQUIRED

    def parse(self, value: Any) -> Any:
        """The value as Python has it; a `TypeError` where it is of another kind."""
        kinds: dict[str, Callable[[Any], Any]] = {
            "INT": _whole,
            "FLOAT": _single,
            "STRING": _text,
            "BOOL": _truth,
            "INTS": lambda v: tuple(map(_whole, v)),
        }
        try:
            return kinds[self.kind](value)
        except TypeError:
            raise TypeError(f"attribute {self.name} is {value!r}; expected {self.kind}") from None


@dataclass(frozen=True)
class Kernel:
    """One op of a dialect.

    `call(inputs, attributes, request)` does it; `request` carries what the contract gives besides (output shapes, the
    number of outputs). With `open` attributes that the contract does not name are let pass, as the original does.
    """

    op: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    call: Callable[..., list[Any]]
    types: tuple[str, ...] = ("float32", "float64", "float16", "bfloat16")
    optional_inputs: int = 0
    outputs: int = 1
    open: bool = False

    def __str__(self) -> str:
        attributes = ", ".join(
            f"{a.name}: {a.kind}" + ("" if a.default is REQUIRED else f" = {a.default!r}") for a in self.attributes
        )
        return f"{self.domain or 'ai.onnx'}::{self.op}-{self.version}({', '.join(self.inputs)}) [{attributes}]"

    def checked_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, as many as the contract has; optional ones that are absent are None."""
        if isinstance(inputs, (np.ndarray, str, bytes)) or not isinstance(inputs, Sequence):
            raise TypeError(f"inputs is a {type(inputs).__name__}; expected a list of arrays: {', '.join(self.inputs)}")
        least = len(self.inputs) - self.optional_inputs
        if not least <= len(inputs) <= len(self.inputs):
            raise ValueError(f"{self.op} got {len(inputs)} inputs; expected {', '.join(self.inputs)}")
        given = [*inputs, *[None] * (len(self.inputs) - len(inputs))]
        for name, value in zip(self.inputs[:least], given, strict=False):
            if value is None:
                raise ValueError(f"input {name} of {self.op} is missing")
        return given

    def checked_attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes of the contract, with its defaults."""
        if not isinstance(attributes, Mapping):
            raise TypeError(f"attributes is a {type(attributes).__name__}; expected a dictionary")
        known = {a.name: a for a in self.attributes}
        strange = [] if self.open else [name for name in attributes if name not in known]
        if strange:
            expected = ", ".join(known) or "none"
            raise ValueError(f"{self.op} has no attribute {strange[0]!r}; expected {expected}")
        for a in self.attributes:
            if a.default is REQUIRED and a.name not in attributes:
                raise ValueError(f"attribute {a.name} of {self.op} is missing; it is required")
        return {name: a.parse(attributes[name]) if name in attributes else a.default for name, a in known.items()}


def find(table: Sequence[Kernel], system: str, op: Any, domain: str) -> Kernel:
    """The row of an op; a `ValueError` that names the rows there are."""
    for row in table:
        if row.op == op and row.domain == domain:
            return row
    elsewhere = [row.domain for row in table if row.op == op]
    if elsewhere:
        raise ValueError(f"{op} is in domain {elsewhere[0]!r} of {system}, not in {domain!r}")
    raise ValueError(f"{op!r} is not an op of the {system} dialect; expected one of {', '.join(r.op for r in table)}")


def _whole(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError
    return int(value.__index__())


def _single(value: Any) -> float:
    """A FLOAT attribute is a float32."""
    if isinstance(value, (bool, np.bool_, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)
