"""The table of problems. A line is an op, its shape, and its options; the groups say which bar it counts for."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backstroke.registry import OPS, Op, results
from peers.ours import TFJS

from . import convolution, pooling

SEED = 2026


@dataclass(frozen=True)
class Problem:
    """One thing to time."""

    op: str
    shape: tuple[int, ...]
    group: str
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    label: str = ""

    @property
    def entry(self) -> Op:
        return next(op for op in OPS if op.name == self.op)

    @property
    def keywords(self) -> dict[str, Any]:
        """The options that the function takes by keyword."""
        return self.entry.keywords(self.options)

    def arguments(self) -> list[Any]:
        """The arguments by position, the same in every run."""
        dtype = next(d for d in self.entry.dtypes if d.name == self.dtype)
        return self.entry.sample(np.random.default_rng(SEED), self.shape, dtype, **self.options)

    def output(self, arguments: list[Any]) -> Any:
        """An output to be given: an array, or a tuple of them."""
        answer = self.entry.function(*arguments, **self.keywords)
        empty = tuple(map(np.empty_like, results(answer)))
        return empty if isinstance(answer, tuple) else empty[0]

    @property
    def output_bytes(self) -> int:
        """The size of what is computed, for ops whose result has the input's shape."""
        return math.prod(self.shape) * next(d for d in self.entry.dtypes if d.name == self.dtype).itemsize

    @functools.cached_property
    def operations(self) -> int:
        """Multiplications and additions, where they and not the memory are the limit."""
        return convolution.operations(self) if self.entry.family == "convolution" else 0

    def hopeless(self, peer: str) -> bool:
        """Whether one call would take a minute: ONNX Runtime does some 3e9 operations a second in 3-D."""
        return peer == "onnxruntime" and self.operations > 60e9

    @property
    def name(self) -> str:
        """Group and text: no other problem has both."""
        return f"{self.group}: {self}"

    def __str__(self) -> str:
        def plain(value: Any) -> str:
            return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

        options = "".join(f" {name}{plain(value)}" for name, value in self.options.items())
        kind, label = "" if self.dtype == "float32" else f" {self.dtype}", f" {self.label}" if self.label else ""
        return f"{self.op}{label} {plain(self.shape)}{options}{kind}"


_ELEMENTWISE = ("relu_grad", "leaky_relu_grad", "sigmoid_grad", "tanh_grad", "quick_gelu_grad")
_SOFTMAX = ("softmax_grad", "log_softmax_grad")
_IMAGES = (32, 64, 112, 112)

# The pooling problems that the figures name: shape, kernel and stride, pads.
_WINDOWS = (
    ((32, 64, 112, 112), 3, 2, 1), ((8, 64, 112, 112), 3, 2, 1), ((32, 128, 56, 56), 2, 2, 0),
    ((8, 192, 28, 28), 3, 1, 1), ((8, 192, 35, 35), 3, 1, 1), ((8, 512, 7, 7), 7, 7, 0), ((1, 64, 600, 600), 3, 2, 0),
    ((8, 3, 112, 112), 3, 2, 0), ((16, 64, 1024), 3, 2, 0), ((8, 32, 16, 56, 56), 3, 2, 1),
    ((1, 64, 32, 32, 32), 2, 2, 0),
)  # fmt: skip


def _pooling() -> Iterator[Problem]:
    """Average and maximum, channels first and last: the named ones, then those of real networks."""
    named = [("any", shape, {"kernel": k, "strides": s, "pads": p}) for shape, k, s, p in _WINDOWS]
    for group, shapes in (("", named), (" of networks", list(pooling.network_shapes()))):
        for kind, op in (("avg", "avg_pool_grad"), ("max", "max_pool_grad")):
            for layout in ("NCX", "NXC"):
                for of, shape, options in shapes:
                    if of in (kind, "any"):
                        place = (shape, options) if layout == "NCX" else pooling.channels_last(shape, options)
                        yield Problem(op, place[0], f"{kind} {layout}{group}", place[1])


def _from_input() -> Iterator[Problem]:
    """Maxima that are found again in the input, as oneDNN and TensorFlow.js have it: the named windows."""
    for layout in ("NCX", "NXC"):
        for shape, k, s, p in _WINDOWS:
            options = {"kernel": k, "strides": s, "pads": p}
            place = (shape, options) if layout == "NCX" else pooling.channels_last(shape, options)
            yield Problem("max_pool_grad_from_input", place[0], f"max from input {layout}", place[1])


_LARGE_WINDOWS = {"kernel": 3, "strides": 2, "pads": 1}
_SAME = {"kernel": 3, "strides": 2, "auto_pad": "same_upper", "layout": "NXC"}
_IMAGE_NETWORKS = ("resnet_50", "mobilenet", "vgg_11", "googlenet_v1", "other")


def _convolutions(*networks: str, layout: str = "NCX", dtype: str = "float32") -> Iterator[Problem]:
    """The layers of these networks. Their group is "conv", or "conv NXC", or "conv bfloat16", and the network."""
    what = " ".join(["conv", *([layout] if layout != "NCX" else []), *([dtype] if dtype != "float32" else [])])
    for network, layer, shape, options in convolution.layers(*networks):
        if layout == "NXC":
            shape, options = (shape[0], *shape[2:], shape[1]), {**options, "layout": layout}
        yield Problem("conv_grad", shape, f"{what} {network}", options, dtype, f"{network}/{layer}")


PROBLEMS = (
    *(Problem(op, _IMAGES, "elementwise") for op in _ELEMENTWISE),
    *(Problem(op, _IMAGES, "elementwise bfloat16", dtype="bfloat16") for op in _ELEMENTWISE),
    *(Problem(op, shape, "softmax") for op in _SOFTMAX for shape in ((4096, 1000), (49152, 128), (64, 50257))),
    *(Problem(op, (32, 256, 28, 28), "softmax axis 1", {"axis": 1}) for op in _SOFTMAX),
    *(Problem("relu_grad", (n,), "small") for n in (1, 10, 100, 1000, 10_000)),
    *(Problem(op, (n,), "small") for op in _ELEMENTWISE[1:] for n in (1, 10_000)),
    *(Problem(op, shape, "small") for op in _SOFTMAX for shape in ((1, 1), (10, 10), (100, 100))),
    *_pooling(),
    *_from_input(),
    Problem("max_pool_grad_from_input", (8, 56, 56, 64), TFJS, _SAME),
    Problem("avg_pool_grad", _IMAGES, "avg bfloat16", _LARGE_WINDOWS, "bfloat16"),
    Problem("max_pool_grad", _IMAGES, "max bfloat16", _LARGE_WINDOWS, "bfloat16"),
    *_convolutions(*_IMAGE_NETWORKS, "wavenet", "i3d", "unet"),
    *_convolutions(*_IMAGE_NETWORKS, layout="NXC"),
    *_convolutions("resnet_50", dtype="bfloat16"),
)
