"""Pooling problems of real networks: benchdnn's shapes, those of them that every peer can express."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHAPES = Path(__file__).parent / "pool_shapes.csv"


def network_shapes() -> Iterator[tuple[str, tuple[int, ...], dict[str, Any]]]:
    """benchdnn's shapes of real networks: ("max", "avg" or "any", the shape of an NCX input, options)."""
    with SHAPES.open() as file:
        for row in csv.DictReader(file):
            shape, kernel, strides, pads = (
                tuple(map(int, row[name].split("x"))) for name in ("shape", "kernel", "strides", "pads")
            )
            options = {"kernel": kernel, "strides": strides}
            options |= {"pads": pads} if any(pads) else {}
            options |= {"ceil_mode": True} if row["rounding"] == "ceil" else {}
            yield row["of"], shape, options


def channels_last(shape: tuple[int, ...], options: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The same problem with the channels behind."""
    return (shape[0], *shape[2:], shape[1]), {**options, "layout": "NXC"}
