"""Checkpoints: one file with all that a training is, so that it goes on with the same bits.

It is a zip archive without compression: `state.json`, `model.onnx` with the weights as they are (and the files of its
weights, if it has some, under `weights/`), and `arrays/*.npy` for the rest. Every member has its checksum, which is
verified when it is read; the file is written beside its place, flushed and renamed, so it is whole or absent.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from . import files
from .model_file import ModelFile

FORMAT = 1
_STATE, _MODEL, _WEIGHTS = "state.json", "model.onnx", "weights/"
_DATE = (1980, 1, 1, 0, 0, 0)  # the same content is the same file


@dataclass
class Checkpoint:
    """What `read` finds. `folder` is temporary, and holds the model's files where there are several."""

    state: dict[str, Any]
    arrays: dict[str, np.ndarray]
    model: ModelFile
    folder: Path | None


def write(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    model: ModelFile,
    weights: Mapping[str, np.ndarray],
) -> None:
    """Write a checkpoint; an older one of that name is replaced when this one is on the disk."""
    size = model.nbytes + sum(each.nbytes for each in arrays.values())
    goal = files.checked_output("path", path, size)
    about = {
        "format": FORMAT,
        "state": dict(state),
        "arrays": list(arrays),
        "files": model.locations,
        "home": str(model.home.resolve()) if model.home else None,
    }
    with files.whole(goal) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with _member(archive, _STATE) as member:
            member.write(json.dumps(about, indent=1).encode())
        with _member(archive, _MODEL) as member:
            for piece in model.content(weights):
                member.write(piece)
        for location in model.locations:
            with _member(archive, _WEIGHTS + location) as member:
                model.copy_external(location, member, weights)  # type: ignore[arg-type]
        for i, array in enumerate(arrays.values()):
            with _member(archive, f"arrays/{i}.npy") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; ValueError where it is none, or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(archive.read(_STATE))
            if about["format"] != FORMAT:
                raise ValueError(f"checkpoint: {str(path)!r} has format {about['format']}; expected {FORMAT}")
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(archive.read(f"arrays/{i}.npy")), allow_pickle=False)
                for i, name in enumerate(about["arrays"])
            }
            model, folder = _model(archive, about)
            return Checkpoint(about["state"], arrays, model, folder)
    except OSError as error:
        raise ValueError(f"checkpoint: {str(path)!r} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, EOFError) as error:
        raise ValueError(f"checkpoint: {str(path)!r} is not a whole checkpoint: {error}") from error


def _model(archive: zipfile.ZipFile, about: dict[str, Any]) -> tuple[ModelFile, Path | None]:
    home = Path(about["home"]) if about["home"] else None
    if not about["files"]:
        return ModelFile(archive.read(_MODEL), home), None
    folder = Path(tempfile.mkdtemp(prefix="backstroke-"))
    try:
        (folder / _MODEL).write_bytes(archive.read(_MODEL))
        model = ModelFile(folder / _MODEL, home)
        for location in about["files"]:
            goal = model.external(location)  # refuses what leaves the folder
            goal.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(_WEIGHTS + location) as member, goal.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return model, folder


@contextmanager
def _member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    with archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True) as member:
        yield member
