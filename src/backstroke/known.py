"""Calls found again: what was planned for a call is found by the bytes of its arguments when the same call comes back.

Everything that is kept here is made anew for another target and in a forked child, where what a thread of the parent
was in the middle of would stay so.
"""

from __future__ import annotations

import functools
import marshal
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .jit import compile as compiler

Key = tuple[str, np.dtype, bytes]
P = ParamSpec("P")
T = TypeVar("T")
_MOST = 1024
_calls: dict[Any, Any] = {}
_clear: list[Callable[[], None]] = [_calls.clear]


def key(op: str, x: Any, arguments: tuple[Any, ...]) -> Key | None:
    """What tells a call from others: as bytes, in which 3, 3.0 and True are three things."""
    try:
        return op, x.dtype, marshal.dumps((x.shape, arguments), 2)
    except (AttributeError, ValueError):  # another library's array, or arguments that are not plain
        return None


find: Callable[[Any], Any] = _calls.get


def learn(key: Key | None, x: Any, arguments: tuple[Any, ...], plan: Any) -> None:
    """Find the plan at once when the same call comes again."""
    if key is not None and type(x) is np.ndarray and _plain(arguments):
        if len(_calls) >= _MOST:
            _calls.clear()
        _calls[key] = plan


def _plain(x: Any) -> bool:
    return x is None or type(x) in (int, bool, str) or (type(x) in (tuple, list) and all(map(_plain, x)))


def kept(make: Callable[P, T], most: int = 256) -> Callable[P, T]:
    """Keep what a function makes."""
    known = functools.lru_cache(maxsize=most)(make)
    _clear.append(known.cache_clear)
    return known  # type: ignore[return-value]


def forget() -> None:
    """Make everything anew."""
    for clear in _clear:
        clear()


compiler.on_switch.append(forget)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
