"""Matrix products as convolutions of one tap, which our kernels compute.

NumPy's product is its BLAS', whose threads go on spinning for milliseconds after a call, on the CPUs that ONNX Runtime
and our kernels then want; its bits depend on their number. A matrix of pixels times a matrix of weights is the same
sum: a convolution and its two gradients are the three ways in which the operands can lie, both as they are, or one of
them turned. What is a batch becomes images, pixels or groups.
"""

from __future__ import annotations

import math

import numpy as np

from .. import arrays
from ..convolution.shapes import shapes_of
from .convolve import Products

Shape = tuple[int, ...]


class Product:
    """`y = alpha a b` for matrices, or arrays of them, that lie as these do; with flips, of a or b transposed.

    `dense` tells that the operands must be made dense first; `run` takes a, b, y and `work` bytes of memory.
    """

    def __init__(
        self, a: np.ndarray, b: np.ndarray, alpha: float = 1.0, flip_a: bool = False, flip_b: bool = False
    ) -> None:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        (m, inner), n = _flipped(a, flip_a).shape[-2:], _flipped(b, flip_b).shape[-1]
        self.shape: Shape = (*lead, m, n)
        self.dense, self.work = False, 0
        self._alpha, self._flips = a.dtype.type(alpha), (flip_a, flip_b)
        self._empty = 0 in (*self.shape, inner)
        self._products: Products | None = None
        many, many_a, many_b = (math.prod(shape) for shape in (lead, a.shape[:-2], b.shape[:-2]))
        if self._empty or a.dtype not in arrays.TYPES or (many_a != many_b and 1 not in (many_a, many_b)):
            return
        self._lies = tuple(map(_by_columns, (a, b)))
        turned_a, turned_b = (lies != flip for lies, flip in zip(self._lies, self._flips, strict=True))
        for_each = (turned_a and many_b < many_a) or (turned_b and many_a < many_b)
        if None in self._lies or (turned_a and turned_b) or for_each:
            self.dense, self._lies, (turned_a, turned_b) = True, (False, False), self._flips
            if turned_a and turned_b:
                return
        if many_b == 1:  # all rows of a are pixels
            layout, group, rows = "NXC", 1, many * m
            if turned_a:
                wrt, self._roles, x, w = "w", ("x", "dy"), (1, inner, m), (1, m, n)
            elif turned_b:
                wrt, self._roles, x, w = "x", ("dy", "w"), (1, rows, n), (1, n, inner)
            else:
                wrt, self._roles, x, w = "", ("x", "w"), (1, rows, inner), (1, inner, n)
        else:  # columns of b are pixels
            layout, (images, group) = "NCX", (many, 1) if many_a == 1 else (1, many)
            if turned_a:
                wrt, self._roles, x, w = "x", ("w", "dy"), (images, group * m, n), (group * inner, m, 1)
            elif turned_b:
                wrt, self._roles, x, w = "w", ("dy", "x"), (1, group * n, inner), (group * m, n, 1)
            else:
                wrt, self._roles, x, w = "", ("w", "x"), (images, group * inner, n), (group * m, inner, 1)
        shapes = shapes_of(x, w, group=group, layout=layout)
        self._shapes = {"x": shapes.x, "w": shapes.w, "dy": shapes.y}
        self._goal = self._shapes[wrt or "dy"]
        self._products = Products(shapes, a.dtype, (wrt,) if wrt else ())
        self.work = self._products.work

    def run(self, a: np.ndarray, b: np.ndarray, y: np.ndarray, work: np.ndarray) -> None:
        """Compute the product."""
        if self._empty:
            y.fill(0)
        elif self._products is None:  # broadcasting in more than one way, or both transposed
            np.matmul(_flipped(a, self._flips[0]), _flipped(b, self._flips[1]), out=y)
        else:
            parts = zip(self._roles, (a, b), self._lies, strict=True)
            given = {role: _flipped(x, lies).reshape(self._shapes[role]) for role, x, lies in parts}
            self._products(given, [y.reshape(self._goal)], work)
        if self._alpha != 1:
            np.multiply(y, self._alpha, out=y)


def _flipped(x: np.ndarray, flip: bool | None) -> np.ndarray:
    return x.swapaxes(-1, -2) if flip else x


def _by_columns(x: np.ndarray) -> bool | None:
    """Whether its matrices lie by columns; None where they lie neither so nor by rows."""
    return False if x.flags.c_contiguous else True if x.swapaxes(-1, -2).flags.c_contiguous else None


__all__ = ["Product"]
