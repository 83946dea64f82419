"""Random pooling problems for Hypothesis: the arguments of a public function, and an input to use them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from backstroke.geometry import Geometry, ceil_rounding


@dataclass(frozen=True)
class Problem:
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    kernel: tuple[int, ...]
    options: dict[str, Any]
    geometry: Geometry
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def arrange(batch: int, channels: int, size: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return (batch, channels, *size) if layout == "NCX" else (batch, *size, channels)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    auto_pad = draw(st.sampled_from(["none", "none", "same_upper", "SAME_LOWER", "Valid"]))
    layout = draw(st.sampled_from(["NCX", "NXC"]))
    largest = {1: 12, 2: 7, 3: 5}[rank]
    sizes, kernels, strides, dilations, pads = [], [], [], [], []
    for _ in range(rank):
        size, kernel = draw(st.integers(1, largest)), draw(st.integers(1, 4 - (rank == 3)))
        stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        begin, end = (draw(st.integers(0, 4)), draw(st.integers(0, 4))) if auto_pad == "none" else (0, 0)
        lacking = max(0, (kernel - 1) * dilation + 1 - size - begin - end)
        if auto_pad == "none":
            end += lacking
        elif auto_pad == "Valid":
            size += lacking
        for values, value in zip(
            (sizes, kernels, strides, dilations, pads), (size, kernel, stride, dilation, (begin, end)), strict=True
        ):
            values.append(value)
    options = {
        "strides": tuple(strides),
        "pads": tuple(pads),
        "dilations": tuple(dilations),
        "auto_pad": auto_pad,
        "ceil_mode": draw(st.booleans()),
        "layout": layout,
    }
    geometry = Geometry.of(
        sizes,
        tuple(kernels),
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        rounding=ceil_rounding(options["ceil_mode"]),
    )
    batch, channels = draw(st.sampled_from([1, 2, 3, 1, 2, 0])), draw(st.sampled_from([1, 2, 3, 1, 2, 0]))
    return Problem(
        arrange(batch, channels, geometry.input_size, layout),
        arrange(batch, channels, geometry.output_size, layout),
        geometry.kernel,
        options,
        geometry,
        draw(st.integers(0, 2**32 - 1)),
    )
