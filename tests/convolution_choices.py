"""Taking the choice of a convolution's plan out of the cost model's hands, so that every plan that it may offer is run.

Whatever stands in the tables of `backstroke.convolution.choices` is reached: an algorithm that is put there is tested.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from backstroke import memory
from backstroke.convolution import choices
from backstroke.known import forget

TABLES = (choices.SWEEPS, choices.WEIGHTS)
_BYTES = 4096  # a constant of that size is a number of bytes
Price = Callable[[str, int, Any, float], float]


@contextmanager
def priced(price: Price, squeeze: int = 1) -> Iterator[None]:
    """Plans cost what `price(algorithm, number, plan, cycles)` says; caches are believed `squeeze` times as small.

    With small caches small problems too are cut into boxes, slices and chunks. A plan may be slow, never wrong.
    """

    def dearer(name: str, offer: Any) -> Any:
        def offers(*problem: Any) -> Iterator[tuple[Any, float]]:
            for number, (plan, cycles) in enumerate(offer(*problem)):
                yield plan, price(name, number, plan, cycles)

        return offers

    sizes = {
        field.name: max(1, size // squeeze)
        for field in fields(choices.CONSTANTS)
        if isinstance(size := getattr(choices.CONSTANTS, field.name), int) and size >= _BYTES
    }
    patch = pytest.MonkeyPatch()
    try:
        for table in TABLES:
            for name, offer in list(table.items()):
                patch.setitem(table, name, dearer(name, offer))
        patch.setattr(choices, "CONSTANTS", replace(choices.CONSTANTS, **sizes))
        forget()
        yield
    finally:
        patch.undo()
        forget()


@contextmanager
def any_plan(seed: int, squeeze: int = 1) -> Iterator[None]:
    """Plans cost what chance says."""

    def price(name: str, number: int, plan: Any, cycles: float) -> float:
        return random.Random(f"{seed} {name} {number}").random()

    with priced(price, squeeze):
        yield


def every_plan(squeeze: int = 1) -> Iterator[str]:
    """Inside each turn of the loop, each part of a convolution has the next of its plans; until all had their turn."""
    for names in itertools.zip_longest(*TABLES):
        for turn in itertools.count():
            offered = 0

            def price(name: str, number: int, plan: Any, cycles: float, turn: int = turn, names: Any = names) -> float:
                nonlocal offered
                if name in names:
                    offered = max(offered, number + 1)
                return -1.0 if name in names and number == turn else cycles

            with priced(price, squeeze):
                yield f"{' and '.join(filter(None, names))}, plan {turn}"
            if turn + 1 >= offered:
                break


class Fenced:
    """Memory from the pool has guard bytes around it and NaN in it: nobody may write beside it, or use what is there.

    Scratch memory and packed weights come from the pool, as results do.
    """

    _GUARD = 4096

    def __enter__(self) -> Fenced:
        self._lent: list[tuple[np.ndarray, int]] = []
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(memory.pool, "empty", self._empty)
        return self

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        room = np.full(size + 2 * self._GUARD, 0xA5, np.uint8)
        inside = room[self._GUARD : self._GUARD + size]
        inside[...] = 0xFF
        self._lent.append((room, size))
        return inside.view(dtype).reshape(shape)

    def __exit__(self, kind: Any, *_: object) -> None:
        self._patch.undo()
        if kind is None:
            for room, size in self._lent:
                assert (room[: self._GUARD] == 0xA5).all(), "written before a block"
                assert (room[self._GUARD + size :] == 0xA5).all(), "written behind a block"
