"""Files that are whole or absent: written beside their place, flushed to the disk, and renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def checked_output(name: str, path: str | os.PathLike[str], size: int = 0) -> Path:
    """`path`, when a file of that size can be written there; else a ValueError that says why not."""
    goal = Path(path)
    if goal.is_dir():
        raise ValueError(f"{name}: {str(goal)!r} is a folder; expected the path of a file")
    if not goal.parent.is_dir():
        raise ValueError(f"{name}: {str(goal)!r} cannot be written: there is no folder {str(goal.parent)!r}")
    try:
        with tempfile.TemporaryFile(dir=goal.parent) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise ValueError(f"{name}: {str(goal)!r} cannot be written: {error.strerror or error}") from error
    if hasattr(os, "statvfs"):
        disk = os.statvfs(goal.parent)
        free = disk.f_bavail * disk.f_frsize
        if free < size:
            raise ValueError(f"{name}: {str(goal)!r} needs {size:,} bytes, and the disk has {free:,} left")
    return goal


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it takes its place only when all is written, and nothing is left where that fails."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(path))
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _flush_folder(path.parent)


def _mode(path: Path) -> int:
    """The rights of the file that is there, or those that a new one gets."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _flush_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
