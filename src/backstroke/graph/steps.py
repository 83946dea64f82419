"""What runs each gradient node: one table from ops to functions on arrays.

When a plan is made, an entry sees the node as a `Site`, with shapes, types and known values, and answers with a `Work`:
the arrays that come out and the function that fills them, or with a `View` of its input, which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import pooling, softmax
from ..errors import UnsupportedError
from . import convolve, fold
from .formulas import FORMULAS
from .fuse import Part, sum_part
from .matrices import Product
from .tensors import MICROSOFT, OWN, GradientNode

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A node at a place where all is known. `inputs` are arrays of the right shape, type and strides, but empty."""

    node: GradientNode
    inputs: list[np.ndarray | None]
    values: list[np.ndarray | None]  # contents, of those that are known before anything runs
    like: Shape | None

    def array(self, i: int) -> np.ndarray:
        """Input `i`, without content."""
        found = self.inputs[i]
        assert found is not None, f"{self.node.name} has no input {i}"
        return found

    def value(self, i: int) -> np.ndarray:
        """The content of input `i`, which must be known."""
        found = self.values[i] if i < len(self.values) else None
        if found is None:
            raise UnsupportedError(
                f"{self.node.name}: its input {i} depends on the data; expected a constant or shapes"
            )
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Work:
    """`run(*inputs, *outputs)` fills the outputs. `reads` are the inputs it takes; dense ones are made dense before.

    With `memory`, that many bytes to work with come after the outputs.
    """

    run: Callable[..., object]
    outputs: list[tuple[Shape, np.dtype] | None]
    reads: Sequence[int]
    dense: bool = True
    memory: int | None = None
    part: Part | None = None  # what it is, where it can be part of a fused kernel


@dataclass(frozen=True)
class View:
    """The first input (or `source`), seen otherwise."""

    of: Callable[[np.ndarray], np.ndarray]
    source: int = 0
    dense: bool = False


Entry = Callable[[Site], "Work | View"]


def entry(op: str, domain: str) -> Entry:
    """The entry of an op."""
    found = STEPS.get((domain, op))
    if found is None and op in FORMULAS:
        return _elementwise
    if found is None:
        raise UnsupportedError(f"no step runs {domain}.{op}")
    return found


def _elementwise(s: Site) -> Work:
    formula, attributes = FORMULAS[s.node.op], s.node.attributes
    arrays = [a for a in s.inputs if a is not None]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))

    def run(*operands: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            np.copyto(operands[-1], formula.on_arrays(*operands[:-1], **attributes), casting="unsafe")

    dtype = formula.dtype(arrays, attributes)
    part = None
    if dtype.kind in "fb" and (s.node.op == "Cast" or all(a.dtype.kind in "fb" for a in arrays)):
        takes = [
            name if value is None or value.size != 1 else float(value.reshape(()))
            for name, value in zip(s.node.inputs, s.values, strict=True)
        ]
        part = Part(s.node.op, attributes, takes, shape, s.node.outputs[0], dtype)
    return Work(run, [(shape, dtype)], range(len(s.inputs)), dense=False, part=part)


# ---- the same elements, seen otherwise -------------------------------------------------------------------------------


def _reshape(s: Site) -> View:
    shape = fold.resolve(s.array(0).shape, s.value(1))
    return View(lambda x: x.reshape(shape), dense=True)


def _unsqueeze(s: Site) -> View:
    axes = s.attribute("axes")
    where = tuple(int(n) for n in (s.value(1).reshape(-1) if axes is None else axes))
    return View(lambda x: np.expand_dims(x, where))


def _transpose(s: Site) -> View:
    order = tuple(s.attribute("perm"))
    return View(lambda x: x.transpose(order))


def _expand(s: Site) -> View:
    shape = np.broadcast_shapes(s.array(0).shape, tuple(int(n) for n in s.value(1)))
    return View(lambda x: np.broadcast_to(x, shape))


def _slice(s: Site) -> View:
    where = fold.slices(s.array(0).shape, [s.value(i) for i in range(1, len(s.inputs))])
    return View(lambda x: x[where])


# ---- elements moved ------------------------------------------------------------------------------------------------


def _concat(s: Site) -> Work:
    axis = s.attribute("axis")
    shape = list(s.array(0).shape)
    shape[axis] = sum(s.array(i).shape[axis] for i in range(len(s.inputs)))

    def run(*arrays: np.ndarray) -> None:
        np.concatenate(arrays[:-1], axis=axis, out=arrays[-1])

    return Work(run, [(tuple(shape), s.array(0).dtype)], range(len(s.inputs)), dense=False)


def _pad(s: Site) -> Work | View:
    x, pads = s.array(0), [int(n) for n in s.value(1).reshape(-1)]
    axes = [int(n) % x.ndim for n in s.value(3).reshape(-1)] if len(s.inputs) > 3 else list(range(x.ndim))
    shape = list(x.shape)
    into, outof = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        shape[axis] += before + after
        into[axis] = slice(max(before, 0), shape[axis] - max(after, 0))
        outof[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    source, target = tuple(outof), tuple(into)
    if max(pads, default=0) <= 0:
        return View(lambda x: x[source])

    def run(x: np.ndarray, y: np.ndarray) -> None:
        y.fill(0)
        y[target] = x[source]

    return Work(run, [(tuple(shape), x.dtype)], (0,), dense=False)


def _slice_grad(s: Site) -> Work:
    shape = tuple(int(n) for n in s.value(1))
    where = fold.slices(shape, [s.value(i) for i in range(2, len(s.inputs))])

    def run(dy: np.ndarray, dx: np.ndarray) -> None:
        dx.fill(0)
        dx[where] = dy

    return Work(run, [(shape, s.array(0).dtype)], (0,), dense=False)


def _gather_grad(s: Site) -> Work:
    shape, axis = tuple(int(n) for n in s.value(0)), s.attribute("axis", 0)
    axis %= len(shape)

    def run(indices: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
        dx.fill(0)
        place = (slice(None),) * axis + (indices,)
        if indices.size == 1:
            dx[place] = dy
        else:
            np.add.at(dx, place, dy)

    return Work(run, [(shape, s.array(2).dtype)], (1, 2), dense=False)


def _gather_elements_grad(s: Site) -> Work:
    shape, axis = tuple(int(n) for n in s.value(1)), s.attribute("axis", 0)
    axis %= len(shape)

    def run(dy: np.ndarray, indices: np.ndarray, dx: np.ndarray) -> None:
        dx.fill(0)
        places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
        places[axis] = np.where(indices < 0, indices + shape[axis], indices)
        np.add.at(dx, tuple(places), dy)

    return Work(run, [(shape, s.array(0).dtype)], (0, 2), dense=False)


# ---- sums and products ---------------------------------------------------------------------------------------------


def _sum(s: Site, shape: Shape, axes: tuple[int, ...], dtype: np.dtype) -> Work:
    def run(x: np.ndarray, y: np.ndarray) -> None:
        np.sum(x, axis=axes, out=y.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]), keepdims=True)

    part = sum_part(s.node.inputs[0], s.array(0).shape, axes, s.node.outputs[0], dtype) if dtype.kind == "f" else None
    return Work(run, [(shape, dtype)], (0,), dense=False, part=part)


def _sum_to(s: Site) -> Work | View:
    x, shape = s.array(0), tuple(int(n) for n in s.value(1))
    padded = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, padded, strict=True)) if n != m or i < x.ndim - len(shape))
    if all(x.shape[axis] == 1 for axis in axes):
        return View(lambda x: x.reshape(shape), dense=True)
    return _sum(s, shape, axes, x.dtype)


def _reduce_sum(s: Site) -> Work | View:
    x = s.array(0)
    given = s.attribute("axes") if len(s.inputs) < 2 else s.value(1).reshape(-1)
    axes = tuple(sorted(int(axis) % x.ndim for axis in given))
    keep = bool(s.attribute("keepdims", 1))
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
    if all(x.shape[axis] == 1 for axis in axes):
        return View(lambda x: x.reshape(shape), dense=True)
    return _sum(s, shape, axes, x.dtype)


def _mat_mul(s: Site) -> Work:
    return _product(s, Product(s.array(0), s.array(1)))


def _gemm(s: Site) -> Work:
    flips = (bool(s.attribute(name, 0)) for name in ("transA", "transB"))
    return _product(s, Product(s.array(0), s.array(1), s.attribute("alpha", 1.0), *flips))


def _product(s: Site, product: Product) -> Work:
    return Work(product.run, [(product.shape, s.array(0).dtype)], (0, 1), dense=product.dense, memory=product.work)


# ---- our own families ------------------------------------------------------------------------------------------------


def _conv_grad(s: Site) -> Work:
    x, w = s.array(1), s.array(2)
    shapes, _ = convolve.shapes(s.node.attributes, x.shape, w.shape)
    sizes = (shapes.x, shapes.w, shapes.b)
    wanted = tuple(i for i, name in enumerate(s.node.outputs) if name)
    products = convolve.Products(shapes, x.dtype, tuple("xwb"[i] for i in wanted))

    def run(dy: np.ndarray, x: np.ndarray, w: np.ndarray, *outputs: np.ndarray) -> None:
        products({"dy": dy, "x": x, "w": w}, outputs[:-1], outputs[-1])

    outputs = [(sizes[i], x.dtype) if i in wanted else None for i in range(len(s.node.outputs))]
    return Work(run, outputs, (0, 1, 2), memory=products.work)


def _conv(s: Site) -> Work:
    x, w = s.array(0), s.array(1)
    shapes, _ = convolve.shapes(s.node.attributes, x.shape, w.shape)
    products = convolve.Products(shapes, x.dtype)

    def run(x: np.ndarray, w: np.ndarray, y: np.ndarray, work: np.ndarray) -> None:
        products({"x": x, "w": w}, [y], work)

    return Work(run, [(shapes.y, x.dtype)], (0, 1), memory=products.work)


def _window(s: Site) -> dict[str, Any]:
    rank = len(s.attribute("kernel_shape"))
    pads = s.attribute("pads") or [0] * (2 * rank)
    auto = s.attribute("auto_pad", "NOTSET")
    return {
        "kernel": tuple(s.attribute("kernel_shape")),
        "strides": tuple(s.attribute("strides") or [1] * rank),
        "pads": tuple(zip(pads[:rank], pads[rank:], strict=True)) if auto in ("NOTSET", "") else 0,
        "dilations": tuple(s.attribute("dilations") or [1] * rank),
        "auto_pad": {"NOTSET": "none", "": "none"}.get(auto, auto.lower()),
        "ceil_mode": bool(s.attribute("ceil_mode", 0)),
    }


def _max_pool_grad(s: Site) -> Work:
    assert s.like is not None
    shape = s.like

    def run(dy: np.ndarray, indices: np.ndarray, dx: np.ndarray) -> None:
        pooling.max_pool_grad(dy, indices, shape, out=dx)

    return Work(run, [(shape, s.array(0).dtype)], (0, 1))


def _max_pool_grad_from_input(s: Site) -> Work:
    x, window = s.array(1), _window(s)

    def run(dy: np.ndarray, x: np.ndarray, dx: np.ndarray) -> None:
        pooling.max_pool_grad_from_input(dy, x, out=dx, **window)

    return Work(run, [(x.shape, x.dtype)], (0, 1))


def _average_pool_grad(s: Site) -> Work:
    assert s.like is not None
    shape, window = s.like, _window(s)
    counted = bool(s.attribute("count_include_pad", 0))

    def run(dy: np.ndarray, dx: np.ndarray) -> None:
        pooling.avg_pool_grad(dy, shape, count_include_pad=counted, out=dx, **window)

    return Work(run, [(shape, s.array(0).dtype)], (0,))


def _softmax_grad(s: Site) -> Work:
    y = s.array(1)
    function = softmax.log_softmax_grad if s.node.op.startswith("Log") else softmax.softmax_grad
    if s.node.op.endswith("_13"):
        axis, shape = s.attribute("axis", -1), y.shape
    else:  # as a matrix
        axis, at = 1, s.attribute("axis", 1) % max(y.ndim, 1)
        shape = (math.prod(y.shape[:at]), math.prod(y.shape[at:]))

    def run(dy: np.ndarray, y: np.ndarray, dx: np.ndarray) -> None:
        function(dy.reshape(shape), y.reshape(shape), axis=axis, out=dx.reshape(shape))

    return Work(run, [(y.shape, y.dtype)], (0, 1))


STEPS: dict[tuple[str, str], Entry] = {
    ("", "Concat"): _concat,
    ("", "Conv"): _conv,
    ("", "Expand"): _expand,
    ("", "Gemm"): _gemm,
    ("", "Identity"): lambda s: View(lambda x: x),
    ("", "MatMul"): _mat_mul,
    ("", "Pad"): _pad,
    ("", "ReduceSum"): _reduce_sum,
    ("", "Reshape"): _reshape,
    ("", "Slice"): _slice,
    ("", "Transpose"): _transpose,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "AveragePoolGrad"): _average_pool_grad,
    ("", "MaxPoolGrad"): _max_pool_grad,
    (MICROSOFT, "ConvGrad"): _conv_grad,
    (MICROSOFT, "GatherGrad"): _gather_grad,
    (MICROSOFT, "GatherElementsGrad"): _gather_elements_grad,
    (MICROSOFT, "LogSoftmaxGrad"): _softmax_grad,
    (MICROSOFT, "LogSoftmaxGrad_13"): _softmax_grad,
    (MICROSOFT, "SliceGrad"): _slice_grad,
    (MICROSOFT, "SoftmaxGrad"): _softmax_grad,
    (MICROSOFT, "SoftmaxGrad_13"): _softmax_grad,
    (OWN, "MaxPoolGradFromInput"): _max_pool_grad_from_input,
    (OWN, "SumTo"): _sum_to,
}
