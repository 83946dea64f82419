"""Object code on disk. It will be executed, so only whole files that the user alone could have written are read.

A file holds a magic word, its key, the length and a checksum of the code, and the code. It is written under a
temporary name and renamed, so that readers see all of it or nothing and writers cannot disturb one another. Whatever
goes wrong here costs a compilation and nothing else; `info()` says what it was.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import struct
import tempfile
from pathlib import Path

import platformdirs

_MAGIC = b"BSTROKE1"
_HEADER = struct.Struct("<8s32sQ32s")
_LARGEST = 64 << 20

_trouble = ""


@functools.cache
def folder() -> Path | None:
    """Where the cache lies: `BACKSTROKE_CACHE_DIR` (empty: no cache), else the user's cache folder."""
    chosen = os.environ.get("BACKSTROKE_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(platformdirs.user_cache_dir("backstroke", appauthor=False))


def trouble() -> str:
    """What went wrong last, in words; empty where nothing did."""
    return _trouble


def read(key: bytes) -> bytes | None:
    """The object code kept under `key`, or None."""
    place = folder()
    if place is None:
        return None
    try:
        _insist_private(os.stat(place), place)
        return _whole(_bytes_of(place / _name(key)), key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _remember(error)
        return None


def write(key: bytes, image: bytes) -> None:
    """Keep object code under `key`, if that can be done."""
    place = folder()
    if place is None:
        return
    temporary = None
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _insist_private(os.stat(place), place)
        descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=place)  # mode 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, key, len(image), hashlib.sha256(image).digest()) + image)
        os.replace(temporary, place / _name(key))
        temporary = None
    except (OSError, ValueError) as error:
        _remember(error)
    finally:
        if temporary is not None:
            try:
                os.unlink(temporary)
            except OSError as error:
                _remember(error)


def _name(key: bytes) -> str:
    return f"{key.hex()}.o"


def _bytes_of(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        _insist_private(status, path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError(f"{path.name} is not a file of object code")
        return file.read()


def _insist_private(status: os.stat_result, path: Path) -> None:
    """Refuse what belongs to, or could have been written by, anybody else."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        raise ValueError(f"{path.name} belongs to another user")
    if status.st_mode & 0o022:
        raise ValueError(f"{path.name} can be written by others")


def _whole(content: bytes, key: bytes) -> bytes:
    if len(content) < _HEADER.size:
        raise ValueError("a cached file is cut short")
    magic, named, length, checksum = _HEADER.unpack_from(content)
    image = content[_HEADER.size :]
    if magic != _MAGIC or named != key or length != len(image) or checksum != hashlib.sha256(image).digest():
        raise ValueError("a cached file is damaged")
    return image


def _remember(error: Exception) -> None:
    global _trouble
    _trouble = f"{type(error).__name__}: {error}"
