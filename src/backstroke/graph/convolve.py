"""Convolutions with ONNX attributes: the seam to the convolution kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..convolution import products, products_grad, reference
from ..convolution.shapes import Shapes, shapes_of

_KERNELS = importlib.util.find_spec("backstroke.convolution.plans") is not None


def shapes(attributes: dict[str, Any], x: Sequence[int], w: Sequence[int]) -> tuple[Shapes, dict[str, Any]]:
    """The shapes of a convolution with ONNX' attributes, and these as the arguments of `conv`."""
    rank = len(x) - 2
    pads = attributes.get("pads") or [0] * (2 * rank)
    auto = attributes.get("auto_pad", b"NOTSET")
    auto = (auto.decode() if isinstance(auto, bytes) else auto) or "NOTSET"
    options = {
        "strides": tuple(attributes.get("strides") or [1] * rank),
        "pads": tuple(zip(pads[:rank], pads[rank:], strict=True)) if auto == "NOTSET" else 0,
        "dilations": tuple(attributes.get("dilations") or [1] * rank),
        "group": attributes.get("group", 1),
        "auto_pad": "none" if auto == "NOTSET" else auto.lower(),
    }
    return shapes_of(tuple(x), tuple(w), layout="NCX", **options), options


def conv(x: np.ndarray, w: np.ndarray, y: np.ndarray, shapes: Shapes, options: dict[str, Any]) -> None:
    """The convolution of x, into y."""
    if _KERNELS:
        products(x, w, None, shapes, out=y)
    else:
        y[...] = reference.conv(x, w, **options)


def conv_grad(
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    wanted: Sequence[int],
    outputs: Sequence[np.ndarray],
    shapes: Shapes,
    options: dict[str, Any],
) -> None:
    """The gradients with the numbers in `wanted`, of x, w and bias, into `outputs`."""
    if _KERNELS:
        products_grad(dy, x, w, shapes, wrt=tuple("xwb"[i] for i in wanted), out=tuple(outputs))
        return
    grads = reference.conv_grad(dy, x, w, **options)
    for i, output in zip(wanted, outputs, strict=True):
        output[...] = grads[i]
