"""Convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensors import MICROSOFT, Op, SizesNeededError, Tensor
from .rule import Gradients, Rule

_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _conv(op: Op) -> Gradients:
    """ConvGrad has an output for each input of the forward op."""
    wanted = [op.wants(i) for i in range(len(op.x))]
    attributes = {name: op.attr[name] for name in _WINDOW if name in op.attr}
    outputs = op.graph.nodes_out(
        "ConvGrad",
        [op.dy, op.x[0], op.x[1]],
        [op.dy.dtype] * len(wanted),
        wanted=wanted,
        domain=MICROSOFT,
        **explicit_pads(op, attributes, op.dims(op.x[1])[2:]),
    )
    return [y if want else None for y, want in zip(outputs, wanted, strict=True)]


def explicit_pads(op: Op, attributes: dict[str, Any], kernel: Sequence[Any]) -> dict[str, Any]:
    """ONNX Runtime's gradients do not resolve auto_pad: where the sizes are known, pads stand in its place."""
    auto = op.number("auto_pad", "NOTSET")
    if auto == "NOTSET":
        attributes.pop("auto_pad", None)
        return attributes
    sizes = op.dims(op.x[0])[2:]
    if auto != "VALID" and not (sizes and kernel and all(isinstance(d, int) for d in (*sizes, *kernel))):
        return attributes
    attributes.pop("auto_pad")
    rank = len(kernel)
    strides, dilations = op.attr.get("strides", [1] * rank), op.attr.get("dilations", [1] * rank)
    begin, end = [0] * rank, [0] * rank
    if auto != "VALID":
        for i, (size, k, s, d) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
            total = max(0, (k - 1) * d + 1 - (size % s or s))
            small, large = total // 2, total - total // 2
            begin[i], end[i] = (small, large) if auto == "SAME_UPPER" else (large, small)
    return {**attributes, "pads": begin + end}


def _conv_transpose(op: Op) -> Gradients:
    """A transposed convolution is what a convolution's gradient is; so its own gradient is that convolution."""
    attributes = _transposed_window(op)
    dx = dw = db = None
    if op.wants(0):
        dx = op.graph.node("Conv", op.dy, op.x[1], **attributes)
    if op.wants(1):
        dw = op.graph.nodes_out(
            "ConvGrad",
            [op.x[0], op.dy, op.x[1]],
            [op.dy.dtype] * 2,
            wanted=[False, True],
            domain=MICROSOFT,
            **attributes,
        )[1]
    if op.has(2) and op.wants(2):
        db = op.graph.reduce_sum(op.dy, [i for i in range(op.rank(op.x[0])) if i != 1], keepdims=False)
    return [dx, dw, db]


def _transposed_window(op: Op) -> dict[str, Any]:
    """The pads of the convolution from y to x: those of the transposed one, as its output shape has resolved them."""
    attributes = {name: op.attr[name] for name in _WINDOW if name in op.attr and name != "auto_pad"}
    auto = op.number("auto_pad", "NOTSET")
    if auto == "NOTSET" and "output_shape" not in op.attr:
        return attributes
    x, y, kernel = (op.dims(t)[2:] for t in (op.x[0], op.y[0], op.x[1]))
    if not x or not all(isinstance(d, int) for d in (*x, *y, *kernel)):
        raise SizesNeededError(f"model: {op.node}: its pads depend on sizes that are not known; give it explicit pads")
    rank = len(kernel)
    strides, dilations = op.attr.get("strides", [1] * rank), op.attr.get("dilations", [1] * rank)
    extra = op.attr.get("output_padding", [0] * rank)
    begin, end = [0] * rank, [0] * rank
    for i, (n, m, k, s, d, e) in enumerate(zip(x, y, kernel, strides, dilations, extra, strict=True)):
        total = max(0, (n - 1) * s + e + (k - 1) * d + 1 - m)
        small, large = total // 2, total - total // 2
        begin[i], end[i] = (small, large) if auto == "SAME_UPPER" else (large, small)
    return {**attributes, "pads": begin + end}


def _gemm(op: Op) -> Gradients:
    """y = alpha a' b' + beta c, where ' transposes if asked to."""
    g, a, b = op.graph, op.x[0], op.x[1]
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)
    flip_a, flip_b = op.number("transA", 0), op.number("transB", 0)

    def product(x: Tensor, y: Tensor, flip_x: int, flip_y: int) -> Tensor:
        return g.node("Gemm", x, y, alpha=alpha, transA=int(flip_x), transB=int(flip_y))

    da = db = dc = None
    if op.wants(0):
        da = product(b, op.dy, flip_b, 1) if flip_a else product(op.dy, b, 0, not flip_b)
    if op.wants(1):
        db = product(op.dy, a, 1, flip_a) if flip_b else product(a, op.dy, not flip_a, 0)
    if op.has(2) and op.wants(2):
        dc = op.unbroadcast(op.dy if beta == 1 else op.dy * beta, 2)
    return [da, db, dc]


def _mat_mul(op: Op) -> Gradients:
    """dA = dY B^T, dB = A^T dY; leading axes broadcast, vectors are matrices with an axis of length 1."""
    g, (a, b), dy = op.graph, op.x, op.dy
    rank_a, rank_b = op.rank(a), op.rank(b)
    inner, outer = (dims[-1] if dims else None for dims in (op.dims(a), op.dims(op.y[0])))
    if rank_a < 2 or rank_b != 2 or not isinstance(inner, int) or not isinstance(outer, int):
        return _general(op, rank_a, rank_b)
    if rank_a == 2:
        da = g.node("Gemm", dy, b, transB=1) if op.wants(0) else None
        return [da, g.node("Gemm", a, dy, transA=1) if op.wants(1) else None]
    flat = g.reshape(dy, [-1, outer])  # a matrix of weights: one product over all rows
    da = g.reshape(g.node("Gemm", flat, b, transB=1), g.shape(a)) if op.wants(0) else None
    return [da, g.node("Gemm", g.reshape(a, [-1, inner]), flat, transA=1) if op.wants(1) else None]


def _general(op: Op, rank_a: int, rank_b: int) -> Gradients:
    g, (first, second), dy = op.graph, op.x, op.dy
    a, b = first, second
    if rank_a == 1:
        a = g.reshape(a, [1, -1])
    if rank_b == 1:
        b = g.reshape(b, [-1, 1])
    if rank_a == 1 or rank_b == 1:
        dy = g.unsqueeze(dy, [axis for axis, rank in ((-2, rank_a), (-1, rank_b)) if rank == 1])
    rank = max(rank_a, rank_b, 2)
    da = db = None
    if op.wants(0):
        da = g.node("MatMul", dy, _flip(op, b, max(rank_b, 2)))
        da = g.reshape(g.sum_to(da, g.shape(a)), g.shape(first)) if rank > 2 or rank_a == 1 else da
    if op.wants(1):
        db = g.node("MatMul", _flip(op, a, max(rank_a, 2)), dy)
        db = g.reshape(g.sum_to(db, g.shape(b)), g.shape(second)) if rank > 2 or rank_b == 1 else db
    return [da, db]


def _flip(op: Op, x: Tensor, rank: int) -> Tensor:
    return op.graph.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


RULES = {
    ("", "Conv"): Rule(_conv),
    ("", "ConvTranspose"): Rule(_conv_transpose),
    ("", "Gemm"): Rule(_gemm),
    ("", "MatMul"): Rule(_mat_mul),
}
