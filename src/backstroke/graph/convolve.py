"""Convolutions with ONNX attributes: the seam to the convolution kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import reference
from ..geometry import Geometry


def options(attributes: dict[str, Any], x: Sequence[int], w: Sequence[int]) -> dict[str, Any]:
    """ONNX' attributes as the arguments of `conv` and `conv_grad`."""
    rank = len(x) - 2
    pads = attributes.get("pads") or [0] * (2 * rank)
    auto = attributes.get("auto_pad", b"NOTSET")
    auto = (auto.decode() if isinstance(auto, bytes) else auto) or "NOTSET"
    return {
        "strides": tuple(attributes.get("strides") or [1] * rank),
        "pads": tuple(zip(pads[:rank], pads[rank:], strict=True)) if auto == "NOTSET" else 0,
        "dilations": tuple(attributes.get("dilations") or [1] * rank),
        "group": attributes.get("group", 1),
        "auto_pad": "none" if auto == "NOTSET" else auto.lower(),
    }


def output_shape(x: Sequence[int], w: Sequence[int], options: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a convolution."""
    window = {name: value for name, value in options.items() if name != "group"}
    return (x[0], w[0], *Geometry.of(tuple(x[2:]), tuple(w[2:]), **window).output_size)


def conv(x: np.ndarray, w: np.ndarray, y: np.ndarray, options: dict[str, Any]) -> None:
    """The convolution of x, into y."""
    y[...] = reference.conv(x, w, **options)


def conv_grad(
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    wanted: Sequence[int],
    outputs: Sequence[np.ndarray],
    options: dict[str, Any],
) -> None:
    """The gradients with the numbers in `wanted`, of x, w and bias, into `outputs`."""
    grads = reference.conv_grad(dy, x, w, **options)
    for i, output in zip(wanted, outputs, strict=True):
        output[...] = grads[i]
