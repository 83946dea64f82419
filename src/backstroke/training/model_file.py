"""The user's model as the bytes it came in, and where its weights lie in them.

`write` copies those bytes and puts other numbers into the places of the weights: names, opset, metadata, order and all
that this library has never heard of stay as they are. Weights in files of their own (external data) are copied past in
chunks, so a model may be larger than the memory, and larger than the two gigabytes that protobuf allows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from . import files, wire

CHUNK = 16 << 20
# Of TensorProto: the types that weights have, and the field in which each lies if not in raw_data.
_DTYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
_TYPED_FIELD = {"float32": 4, "float64": 10}
_GRAPH, _NODE, _INITIALIZER = 7, 1, 5  # of ModelProto; of GraphProto
_OUTPUT, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 2, 4, 5, 7  # of NodeProto
_ATTRIBUTE_NAME, _TENSOR = 1, 5  # of AttributeProto
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL = 1, 2, 8, 9, 13  # of TensorProto


@dataclass
class Place:
    """Where the numbers of a weight lie: in segments of the model's bytes, or in a file of their own."""

    dtype: np.dtype
    shape: tuple[int, ...]
    segments: list[tuple[int, int]] = field(default_factory=list)
    location: str = ""
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass
class _Reference:
    """Where the model's bytes name a file of weights, and the messages around that name."""

    location: str
    start: int
    stop: int
    around: list[wire.Field]


class ModelFile:
    """A model from a path, from bytes, or from an onnx.ModelProto. `weights` has the places of the weights by name.

    `home` is where the user keeps it, if that is not where it is read: its files of weights are not to be written over.
    """

    def __init__(self, model: Any, home: Path | None = None) -> None:
        self.path: Path | None = None
        if isinstance(model, (str, os.PathLike)):
            self.path = Path(model)
            try:
                self.data = self.path.read_bytes()
            except OSError as error:
                raise ValueError(f"model: {str(model)!r} cannot be read: {error.strerror or error}") from error
        elif isinstance(model, (bytes, bytearray, memoryview)):
            self.data = bytes(model)
        elif hasattr(model, "SerializeToString"):
            self.data = model.SerializeToString()
        else:
            raise TypeError(f"model is a {type(model).__name__}; expected a path, bytes or an onnx.ModelProto")
        self.home = home or self.path
        self.weights: dict[str, Place] = {}
        self._references: list[_Reference] = []
        try:
            self._scan()
        except wire.WireError as error:
            raise ValueError(f"model: {self} is not a whole ONNX model: {error}") from error

    def __str__(self) -> str:
        return repr(str(self.path)) if self.path else f"a model of {len(self.data):,} bytes"

    # ---- reading ----

    @property
    def locations(self) -> list[str]:
        """The files in which weights lie, as the model names them."""
        return list(dict.fromkeys(reference.location for reference in self._references))

    def external(self, location: str) -> Path:
        """The file of weights that the model names so."""
        if self.path is None:
            raise ValueError(f"model: weights lie in the file {location!r}; expected the model's path, to find it by")
        parts = PurePosixPath(location).parts
        if not parts or ".." in parts or PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive:
            raise ValueError(f"model: weights lie in {location!r}; expected a file in the model's folder or below it")
        return self.path.parent / location

    @property
    def nbytes(self) -> int:
        """How large the model is, the files of its weights included."""
        return len(self.data) + sum(self.external(location).stat().st_size for location in self.locations)

    def read(self, name: str) -> np.ndarray:
        """A weight, as it was in the file."""
        place = self.weights[name]
        if place.location:
            try:
                with self.external(place.location).open("rb") as file:
                    file.seek(place.offset)
                    raw = file.read(place.nbytes)
            except OSError as error:
                raise ValueError(f"model: weight {name!r} cannot be read: {error.strerror or error}") from error
        else:
            raw = b"".join(self.data[start:stop] for start, stop in place.segments)
        if len(raw) != place.nbytes:
            raise ValueError(f"model: weight {name!r} has {len(raw)} bytes; expected {place.nbytes}")
        return np.frombuffer(raw, place.dtype.newbyteorder("<")).astype(place.dtype).reshape(place.shape)

    def _scan(self) -> None:
        graphs = [f for f in wire.fields(self.data, 0, len(self.data)) if (f.number, f.kind) == (_GRAPH, wire.BYTES)]
        for graph in graphs:
            for tensor in self._parts(graph, _INITIALIZER):
                self._scan_tensor(tensor, [graph])
        if not self.weights:  # as graph.model has it: then they are its Constants of more than one number
            for graph in graphs:
                for node in self._parts(graph, _NODE):
                    self._scan_node(node, graph)

    def _parts(self, message: wire.Field, number: int) -> list[wire.Field]:
        """The messages (or texts) of a field."""
        found = wire.fields(self.data, message.start, message.stop)
        return [part for part in found if part.number == number and part.kind == wire.BYTES]

    def _text(self, message: wire.Field, number: int) -> str:
        """The text of a field, the first if there are several."""
        parts = self._parts(message, number)
        return self.data[parts[0].start : parts[0].stop].decode(errors="replace") if parts else ""

    def _scan_node(self, node: wire.Field, graph: wire.Field) -> None:
        if self._text(node, _OP_TYPE) != "Constant" or self._text(node, _DOMAIN) not in ("", "ai.onnx"):
            return
        for attribute in self._parts(node, _ATTRIBUTE):
            if self._text(attribute, _ATTRIBUTE_NAME) == "value":
                for tensor in self._parts(attribute, _TENSOR):
                    self._scan_tensor(tensor, [graph, node, attribute], self._text(node, _OUTPUT))

    def _scan_tensor(self, tensor: wire.Field, around: list[wire.Field], called: str = "") -> None:
        dims: list[int] = []
        kind, name, raw = 0, "", None
        typed: dict[int, list[tuple[int, int]]] = {4: [], 10: []}
        outside: dict[str, str] = {}
        for part in wire.fields(self.data, tensor.start, tensor.stop):
            if part.number == _DIMS:
                at = part.start
                while at < part.stop:
                    size, at = wire.varint(self.data, at, part.stop)
                    dims.append(size)
            elif part.number == _TYPE:
                kind, _ = wire.varint(self.data, part.start, part.stop)
            elif part.number == _NAME:
                name = self.data[part.start : part.stop].decode(errors="replace")
            elif part.number == _RAW:
                raw = (part.start, part.stop)
            elif part.number in typed:
                typed[part.number].append((part.start, part.stop))
            elif part.number == _EXTERNAL:
                key, value, span = self._entry(part)
                outside[key] = value
                if key == "location":
                    self._references.append(_Reference(value, *span, [*around, tensor, part]))
        if kind not in _DTYPES:
            return
        dtype = np.dtype(ml_dtypes.bfloat16 if _DTYPES[kind] == "bfloat16" else _DTYPES[kind])
        place = Place(dtype, tuple(dims), location=outside.get("location", ""))
        if place.location:
            place.offset = int(outside.get("offset") or 0)
        else:
            place.segments = [raw] if raw else typed.get(_TYPED_FIELD.get(dtype.name, 0), [])
        if not called:
            self.weights[name] = place
        elif np.prod(dims, dtype=np.int64) > 1:
            self.weights[called] = place

    def _entry(self, entry: wire.Field) -> tuple[str, str, tuple[int, int]]:
        """Key and value of a StringStringEntryProto, and where the value's field lies."""
        found = {1: "", 2: ""}
        span = (entry.stop, entry.stop)
        at = entry.start
        for part in wire.fields(self.data, entry.start, entry.stop):
            if part.number in found:
                found[part.number] = self.data[part.start : part.stop].decode(errors="replace")
            if part.number == 2:
                span = (at, part.stop)
            at = part.stop
        return found[1], found[2], span

    # ---- writing ----

    def content(self, values: Mapping[str, np.ndarray], rename: Callable[[str], str] = str) -> Iterator[wire.Buffer]:
        """The model's bytes, in pieces, with `values` in the places of the weights of those names.

        `rename` says what a file of weights is to be called.
        """
        edits, around = [], {}
        for name, value in values.items():
            place = self._place(name, value)
            raw = None if place.location else _bytes(value)
            at = 0
            for start, stop in place.segments if raw is not None else ():
                edits.append(wire.Edit(start, stop, raw[at : at + stop - start]))  # type: ignore[index]
                at += stop - start
        for reference in self._references:
            new = rename(reference.location).encode()
            if new.decode() != reference.location:
                edits.append(wire.Edit(reference.start, reference.stop, b"\x12" + wire.encoded(len(new)) + new))
                around.update({message.start: message for message in reference.around})
        yield from wire.spliced(self.data, wire.with_lengths(edits, list(around.values())))

    def copy_external(self, location: str, file: BinaryIO, values: Mapping[str, np.ndarray]) -> None:
        """Write that file of weights anew, in chunks, with `values` in the places of the weights of those names."""
        mine = [
            (self.weights[name].offset, self._place(name, value), value)
            for name, value in values.items()
            if self.weights[name].location == location
        ]
        with self.external(location).open("rb") as source:
            for start, place, value in sorted(mine, key=lambda each: each[0]):
                _copy(source, file, start - source.tell(), location)
                file.write(_bytes(value))
                source.seek(start + place.nbytes)
            _copy(source, file, None, location)

    def save(self, path: str | os.PathLike[str], values: Mapping[str, np.ndarray]) -> None:
        """Write the model with `values` to `path`, and the files of its weights beside it.

        These keep their names where nothing else has them. Beside the original they are called after the new model,
        for the original keeps its own.
        """
        goal = files.checked_output("path", path, self.nbytes)
        names = self._names_at(goal)
        for location, name in names.items():
            (goal.parent / name).parent.mkdir(parents=True, exist_ok=True)
            with files.whole(goal.parent / name) as file:
                self.copy_external(location, file, values)
        with files.whole(goal) as file:
            for piece in self.content(values, names.__getitem__):
                file.write(piece)

    def _names_at(self, goal: Path) -> dict[str, str]:
        """What the files of weights are called beside a model at `goal`."""
        locations = self.locations
        if not locations or self.home is None:
            return {}
        ours = set(locations) if goal.resolve() == self.home.resolve() else _locations_of(goal)
        beside = goal.parent.resolve() == self.home.parent.resolve()
        if all(name in ours or not (beside or (goal.parent / name).exists()) for name in locations):
            return {location: location for location in locations}
        if len(locations) == 1:
            return {locations[0]: f"{goal.name}.data"}
        return {location: f"{goal.name}.{i}.data" for i, location in enumerate(locations)}

    def _place(self, name: str, value: np.ndarray) -> Place:
        place = self.weights.get(name)
        if place is None:
            raise ValueError(f"the model has no floating-point weight {name!r}")
        if value.dtype != place.dtype or value.shape != place.shape:
            given, wanted = (f"{each.dtype} of shape {each.shape}" for each in (value, place))
            raise ValueError(f"weight {name!r} is {given}; expected {wanted}")
        if not place.location and sum(stop - start for start, stop in place.segments) != place.nbytes:
            raise ValueError(f"weight {name!r} lies in the model in a form that cannot be replaced")
        return place


def _locations_of(path: Path) -> set[str]:
    """The files of weights of the model that is there, if one is."""
    try:
        return set(ModelFile(path).locations)
    except ValueError:
        return set()


def _bytes(value: np.ndarray) -> memoryview:
    """The numbers as they lie in a model: dense, little-endian."""
    dense = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return dense.reshape(-1).view(np.uint8).data


def _copy(source: BinaryIO, goal: BinaryIO, count: int | None, location: str) -> None:
    """Copy `count` bytes, or all that are left."""
    while count is None or count > 0:
        chunk = source.read(CHUNK if count is None else min(CHUNK, count))
        if not chunk:
            if count is None:
                return
            raise ValueError(f"model: the file of weights {location!r} is shorter than the model says")
        goal.write(chunk)
        if count is not None:
            count -= len(chunk)
