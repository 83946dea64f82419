"""Convolutions with ONNX attributes: the seam to the convolution kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..convolution import plans, products, products_grad
from ..convolution.shapes import Shapes, shapes_of


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


class Products:
    """A convolution (no names), or its gradients with these names, ready to run. `work` is how much memory it takes."""

    def __init__(self, shapes: Shapes, dtype: np.dtype, wrt: tuple[str, ...] = ()) -> None:
        self._shapes, self._dtype, self._wrt = shapes, dtype, wrt
        self._empty = 0 in shapes.x or 0 in shapes.w or 0 in shapes.y
        self.work = 0 if self._empty else self._call()[0].work_bytes

    def _call(self) -> tuple[plans.Call, tuple[str, ...]]:
        """It depends on the number of threads, which may change."""
        if self._wrt:
            return plans.gradients(self._shapes, self._dtype, self._wrt)
        return plans.forward(self._shapes, self._dtype, False), ("x", "w")

    def __call__(self, given: dict[str, np.ndarray], outputs: Sequence[np.ndarray], work: np.ndarray) -> None:
        """Run on dense arrays by name, with so much working memory."""
        if self._empty:
            self._nothing(given, outputs)
            return
        call, reads = self._call()
        arrays = [given[name] for name in reads]
        if call.work_bytes != work.size or not call.call(*arrays, work, *outputs):
            call.run(arrays, outputs)

    def _nothing(self, given: dict[str, np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        if self._wrt:
            products_grad(given["dy"], given["x"], given["w"], self._shapes, wrt=self._wrt, out=tuple(outputs))
        else:
            products(given["x"], given["w"], None, self._shapes, out=outputs[0])
