"""The convolutions that are timed, and what they cost.

The layers of `conv_shapes.csv` are those of real networks, each of the networks' first appearance; their pads are the
same on both sides.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstroke.convolution.shapes import Shapes, shapes_of

if TYPE_CHECKING:
    from .problems import Problem

LAYERS = Path(__file__).parent / "conv_shapes.csv"
_DEFAULTS = {"strides": 1, "pads": 0, "dilations": 1, "group": 1}


def layers(*networks: str) -> Iterator[tuple[str, str, tuple[int, ...], dict[str, Any]]]:
    """(network, layer, shape of x, options) of all layers, or of those networks. Channels come first."""
    with LAYERS.open(newline="") as file:
        for row in csv.DictReader(file):
            if networks and row["network"] not in networks:
                continue
            sizes = {name: tuple(map(int, row[name].split("x"))) for name in ("size", "kernel", *list(_DEFAULTS)[:3])}
            options: dict[str, Any] = {"outputs": int(row["outputs"]), "kernel": sizes["kernel"]}
            for name, default in _DEFAULTS.items():
                values = sizes.get(name) or (int(row[name]),)
                if set(values) != {default}:
                    options[name] = values if name in sizes else values[0]
            yield row["network"], row["layer"], (int(row["batch"]), int(row["channels"]), *sizes["size"]), options


def shapes(problem: Problem) -> Shapes:
    """All shapes of a problem."""
    options = dict(problem.options)
    kernel, outputs, group = options.pop("kernel"), options.pop("outputs"), options.get("group", 1)
    if options.get("layout", "NCX") == "NCX":
        return shapes_of(problem.shape, (outputs, problem.shape[1] // group, *kernel), **options)
    return shapes_of(problem.shape, (*kernel, problem.shape[-1] // group, outputs), **options)


def operations(problem: Problem) -> int:
    """Multiplications and additions that dx and dw need. Taps in the padding are not counted."""
    which = shapes(problem)
    geometry, images = which.geometry, which.x[0]
    taps = math.prod(
        sum(len(geometry.axis_taps(axis, o)) for o in range(size)) for axis, size in enumerate(geometry.output_size)
    )
    inside = which.w[1] if which.layout == "NCX" else which.w[-2]
    return 2 * 2 * images * taps * inside * which.outputs


def kind(problem: Problem) -> str:
    """ "1x1", "depthwise", "first" (three channels), "1-D", "3-D", "dense 3x3" (stride 1, 64 channels and more)..."""
    which = shapes(problem)
    geometry, group = which.geometry, which.group
    channels = which.x[1] if which.layout == "NCX" else which.x[-1]
    if geometry.rank != 2:
        return f"{geometry.rank}-D"
    if group == channels > 1:
        return "depthwise"
    if channels == 3:
        return "first"
    if geometry.kernel == (1, 1):
        return "1x1"
    plain = geometry.strides == geometry.dilations == (1, 1) and group == 1
    if geometry.kernel == (3, 3) and plain and min(channels, which.outputs) >= 64:
        return "dense 3x3"
    return "other"
