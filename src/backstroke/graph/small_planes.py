"""Convolutions to small planes, as ONNX Runtime computes them best: as one product over all images.

ONNX Runtime's convolution makes a product for each image, as wide as the output's plane. Where that is a few points, as
in the last stage of a ResNet on small images, most of a vector is empty, and the weights are read anew for each image.
Gathered into one matrix, the same product takes a quarter of the time. (With weights that never change it has a way of
its own; those of a training come in as inputs.) All is standard ONNX, and only the forward pass sees it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .model import FLOATS, Model, Node

_MOST_POINTS, _LEAST_TERMS = 8, 128


def rewritten(proto: onnx.ModelProto, model: Model, live: Collection[str]) -> onnx.ModelProto:
    """The same model; convolutions to small planes, with weights in `live`, are products. `proto` is used up."""
    protos = {node.output[0]: node for node in proto.graph.node}
    made = {}
    for node in model.nodes:
        if node.op == "Conv" and not node.domain and node.inputs[1] in live and node.outputs[0] in protos:
            taps = _taps(node, model)
            if taps is not None:
                made[node.outputs[0]] = _Product(node, model, taps)
    if made:
        nodes = [n for old in proto.graph.node for n in (made[old.output[0]].nodes if old.output[0] in made else [old])]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        for product in made.values():
            proto.graph.initializer.extend(product.constants)
    return proto


def _taps(node: Node, model: Model) -> np.ndarray | None:
    """Which point of x (or one more, which is 0) each tap of each output sees; None where it is left as it is."""
    x, w, y = (model.shapes.get(name, ()) for name in (*node.inputs[:2], node.outputs[0]))
    sizes, kernel, out = x[2:], w[2:], y[2:]
    if not out or not all(isinstance(n, int) for n in (*sizes, *out, *w)) or len(sizes) != len(kernel):
        return None
    if node.attributes.get("group", 1) != 1 or node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        return None
    if math.prod(out) > _MOST_POINTS or math.prod(w[1:]) < _LEAST_TERMS or 0 in (*sizes, *w):
        return None
    if model.types.get(node.inputs[0]) not in FLOATS[:2]:
        return None
    ones = [1] * len(out)
    strides, dilations = (node.attributes.get(name, ones) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * len(out))
    if any((m - 1) * s + (k - 1) * d + 1 > n + a + b for m, s, k, d, n, a, b in zip(
        out, strides, kernel, dilations, sizes, pads[: len(out)], pads[len(out) :], strict=True
    )):  # fmt: skip
        return None

    def seen(point: Sequence[int], tap: Sequence[int]) -> int:
        at = [o * s + t * d - p for o, s, t, d, p in zip(point, strides, tap, dilations, pads, strict=False)]
        inside = all(0 <= i < n for i, n in zip(at, sizes, strict=True))
        return int(np.ravel_multi_index(at, sizes)) if inside else math.prod(sizes)

    taps = list(itertools.product(*map(range, kernel)))
    return np.asarray([[seen(point, tap) for tap in taps] for point in itertools.product(*map(range, out))], np.int64)


class _Product:
    """The nodes in the place of one convolution."""

    def __init__(self, node: Node, model: Model, taps: np.ndarray) -> None:
        self._name, self.nodes, self.constants = node.name, [], []  # type: ignore[var-annotated]
        x, w, *bias = node.inputs
        channels, outputs = model.shapes[x][1], model.shapes[w][0]
        points, terms = taps.shape[0], channels * taps.shape[1]
        last = int(np.prod(model.shapes[x][2:]))
        flat = self._put("Reshape", x, self._constant("flat", [0, channels, last]))
        by_point = self._put("Transpose", flat, perm=[2, 0, 1])
        padded = self._put("Pad", by_point, self._constant("one_more", [0, 0, 0, 1, 0, 0]))
        gathered = self._put("Gather", padded, self._constant("taps", taps), axis=0)
        by_row = self._put("Transpose", gathered, perm=[0, 2, 3, 1])
        rows = self._put("Reshape", by_row, self._constant("rows", [-1, terms]))
        matrix = self._put("Reshape", w, self._constant("matrix", [outputs, terms]))
        product = self._put("Gemm", rows, matrix, *(name for name in bias if name), transB=1)
        apart = self._put("Reshape", product, self._constant("apart", [points, -1, outputs]))
        turned = self._put("Transpose", apart, perm=[1, 2, 0])
        shape = self._constant("shape", [-1, outputs, *model.shapes[node.outputs[0]][2:]])
        self.nodes.append(helper.make_node("Reshape", [turned, shape], [node.outputs[0]], node.name))

    def _constant(self, name: str, values: Any) -> str:
        full = f"{self._name}/product/{name}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.int64), full))
        return full

    def _put(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._name}/product/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], output, **attributes))
        return output


__all__ = ["rewritten"]
