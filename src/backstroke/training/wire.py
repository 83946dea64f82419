"""The wire format of protobuf, as far as it takes to find a message's fields in bytes and to put others in their place.

A model is never serialized anew: what is not replaced keeps its bytes, whatever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Buffer = bytes | memoryview


class WireError(ValueError):
    """The bytes are no protobuf message."""


class Field(NamedTuple):
    """A field of a message: its number and kind, and from where to where its value lies. `length_at` is where the
    length of a BYTES field stands."""

    number: int
    kind: int
    start: int
    stop: int
    length_at: int = 0


@dataclass(frozen=True)
class Edit:
    """Other bytes for those from `start` to `stop`."""

    start: int
    stop: int
    new: Buffer

    @property
    def growth(self) -> int:
        return len(self.new) - (self.stop - self.start)


def fields(data: Buffer, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message that lies there, in order."""
    at = start
    while at < stop:
        tag, at = varint(data, at, stop)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"byte {at}: a field without a number")
        length_at = at
        if kind == VARINT:
            _, end = varint(data, at, stop)
        elif kind in (FIXED64, FIXED32):
            end = at + (8 if kind == FIXED64 else 4)
        elif kind == BYTES:
            size, at = varint(data, at, stop)
            end = at + size
        else:
            raise WireError(f"byte {at}: a field of kind {kind}")
        if end > stop:
            raise WireError(f"byte {at}: a field of {end - at} bytes where {stop - at} are left")
        yield Field(number, kind, at, end, length_at)
        at = end


def varint(data: Buffer, at: int, stop: int) -> tuple[int, int]:
    """The number that lies there, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise WireError(f"byte {at}: a number without an end")


def encoded(value: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def with_lengths(edits: Sequence[Edit], around: Sequence[Field]) -> list[Edit]:
    """The edits, in order, and those of the lengths of the messages `around` them, where these change."""
    result = list(edits)
    for message in sorted(around, key=lambda field: field.stop - field.start):  # an inner one before the outer
        growth = sum(e.growth for e in result if message.start <= e.start and e.stop <= message.stop)
        if growth:
            new = encoded(message.stop - message.start + growth)
            result.append(Edit(message.length_at, message.start, new))
    return sorted(result, key=lambda edit: edit.start)


def spliced(data: Buffer, edits: Sequence[Edit]) -> Iterator[Buffer]:
    """The pieces of the bytes with the edits made; the edits are in order and do not overlap."""
    view, at = memoryview(data), 0
    for edit in edits:
        yield view[at : edit.start]
        yield edit.new
        at = edit.stop
    yield view[at:]
