"""Random convolutions for Hypothesis, and the recorded ones: shapes, the arguments of a public function, and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from checks import data
from hypothesis import strategies as st

from backstroke.convolution.shapes import Shapes, shapes_of


@dataclass(frozen=True)
class Problem:
    """A convolution. `options` are the keyword arguments of conv and conv_grad."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    options: dict[str, Any]
    seed: int = 0

    @property
    def shapes(self) -> Shapes:
        return shapes_of(self.x, self.w, **self.options)

    def normal(self, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
        """dy, x, w and b, standard normal."""
        rng, shapes = np.random.default_rng(self.seed), self.shapes
        return tuple(rng.standard_normal(s).astype(dtype) for s in (shapes.y, self.x, self.w, shapes.b))

    def whole(self, dtype: Any = np.float64, most: int = 4) -> tuple[np.ndarray, ...]:
        """dy, x, w and b of small integers."""
        rng, shapes = np.random.default_rng(self.seed), self.shapes
        return tuple(rng.integers(-most, most + 1, s).astype(dtype) for s in (shapes.y, self.x, self.w, shapes.b))


def problem(
    batch: int,
    channels: int,
    outputs: int,
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    layout: str = "NCX",
    group: int = 1,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A convolution of `channels` to `outputs`."""
    x = (batch, channels, *size) if layout == "NCX" else (batch, *size, channels)
    inside = channels // group
    w = (outputs, inside, *kernel) if layout == "NCX" else (*kernel, inside, outputs)
    return Problem(x, w, {"layout": layout, "group": group, **options}, seed)


@st.composite
def problems(draw: st.DrawFn, empty: bool = True) -> Problem:
    """Any rank, layout, groups, strides, dilations and pads; with `empty` also no images and no channels."""
    rank = draw(st.integers(1, 3))
    auto_pad = draw(st.sampled_from(["none", "none", "same_upper", "SAME_LOWER", "Valid"]))
    largest = {1: 40, 2: 12, 3: 6}[rank]
    sizes, kernels, strides, dilations, pads = [], [], [], [], []
    for _ in range(rank):
        size, kernel = draw(st.integers(1, largest)), draw(st.integers(1, 5 - (rank == 3)))
        stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        begin, end = (draw(st.integers(0, 6)), draw(st.integers(0, 6))) if auto_pad == "none" else (0, 0)
        lacking = max(0, (kernel - 1) * dilation + 1 - size - begin - end)
        if auto_pad == "none":
            end += lacking
        elif auto_pad == "Valid":
            size += lacking
        for values, value in zip(
            (sizes, kernels, strides, dilations, pads), (size, kernel, stride, dilation, (begin, end)), strict=True
        ):
            values.append(value)
    kind = draw(st.sampled_from(["dense", "dense", "depthwise", "multiplier", "grouped", "wide"]))
    least = 0 if empty else 1
    group = {"dense": 1, "wide": 1}.get(kind) or draw(st.integers(1, 19))
    count = st.integers(least, 40) if kind == "wide" else st.integers(least, 5)
    inside = 1 if kind in ("depthwise", "multiplier") else draw(count)
    outside = 1 if kind == "depthwise" else draw(count)
    return problem(
        draw(st.integers(least, 3)),
        group * inside,
        group * outside,
        sizes,
        kernels,
        layout=draw(st.sampled_from(["NCX", "NXC"])),
        group=group,
        seed=draw(st.integers(0, 2**32 - 1)),
        strides=tuple(strides),
        pads=tuple(pads) if auto_pad == "none" else 0,
        dilations=tuple(dilations),
        auto_pad=auto_pad,
    )


@dataclass(frozen=True)
class Recorded:
    """A case of ONNX Runtime's tests: a problem, the attributes as ONNX has them, and dy's shape."""

    name: str
    problem: Problem
    attributes: dict[str, Any]
    dy: tuple[int, ...]


def recorded() -> list[Recorded]:
    """All Conv and ConvGrad cases."""
    found = data("ort_convolution_cases.json")
    cases = [(c["name"], c["x"][0], c["x"][1], c["y"], c["attrs"]) for c in found["gradient_cases"]]
    cases += [("CUDA " + c["name"], c["X"], c["W"], c["dY"], c["attrs"]) for c in found["cuda_kernel_cases"]]
    result = []
    for name, x, w, dy, attributes in cases:
        rank, pads = len(x) - 2, attributes["pads"]
        options = {name: attributes[name] for name in ("strides", "dilations", "group") if name in attributes}
        options["pads"] = tuple(zip(pads[:rank], pads[rank:], strict=True))
        result.append(Recorded(name, Problem(tuple(x), tuple(w), options), attributes, tuple(dy)))
    return result
