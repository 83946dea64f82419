"""Every rule against float64 finite differences by random direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from backstroke.graph.check import check_gradients
from backstroke.graph.rules import RULES
from tests.graph.models import Array, distinct, model, node, normal, positive

# float32 sums of a few hundred terms, relative to the norm of the gradient; most come out at 1e-7.
BOUND = 1e-5


@dataclass
class Case:
    """One node: inputs by name (the gradient of the float ones is checked), constants, attributes."""

    op: str
    inputs: dict[str, Array]
    constants: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 17
    domain: str = ""
    order: tuple[str, ...] = ()
    wrt: tuple[str, ...] | None = None
    label: str = ""

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, x.shape)) or "0d" for x in self.inputs.values())
        words = "-".join(f"{k}={v}".replace(" ", "") for k, v in self.attributes.items())
        return f"{self.op}{'' if self.opset == 17 else self.opset}-{shapes}-{self.label or words}"[:100]


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def one(op: str, x: Array | None = None, **options: Any) -> Case:
    kinds = {key: options.pop(key) for key in ("opset", "domain", "constants", "outputs", "label") if key in options}
    return Case(op, {"x": normal(2, 3, 4) if x is None else x}, attributes=options, **kinds)


def two(op: str, a: Array, b: Array, **options: Any) -> Case:
    kinds = {key: options.pop(key) for key in ("opset", "wrt", "label") if key in options}
    return Case(op, {"a": a, "b": b}, attributes=options, **kinds)


UNARY = [
    *(one(op) for op in ("Abs", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Neg")),
    *(one(op) for op in ("Relu", "Selu", "Sigmoid", "Softplus", "Tanh")),
    *(one(op, positive(2, 3, 4)) for op in ("Log", "Sqrt", "Reciprocal")),
    one("Elu", alpha=0.5),
    one("LeakyRelu", alpha=-0.5),
    one("LeakyRelu", alpha=0.0),
    one("HardSigmoid", alpha=0.5, beta=0.4),
    one("Gelu", opset=20),
    one("Gelu", opset=20, approximate="tanh"),
    one("Gelu", domain="com.microsoft"),
    one("QuickGelu", domain="com.microsoft", alpha=1.3),
    one("HardSwish", 2 * normal(5, 7)),
]
BINARY = [
    two(op, normal(2, 3, 4), b)
    for op in ("Add", "Sub", "Mul", "Div")
    for b in (positive(2, 3, 4), positive(3, 1), positive(1), positive(5, 1, 3, 4))
]
POW = [
    Case("Pow", {"x": normal(3, 4)}, {"e": np.asarray(2, np.float32)}, label="square"),
    Case("Pow", {"x": normal(3, 4)}, {"e": np.asarray(3, np.float32)}, label="cube"),
    Case("Pow", {"x": normal(3, 4)}, {"e": np.asarray(1, np.float32)}, label="one"),
    Case("Pow", {"x": normal(3, 4)}, {"e": ints(2)}, label="integer"),
    Case("Pow", {"x": normal(3, 4)}, {"e": ints(2, 3, 0, 1)}, label="integers"),
    two("Pow", positive(3, 4), normal(3, 4)),
    two("Pow", positive(3, 4), normal(1)),
]
VARIADIC = [
    Case(op, {"a": distinct(2, 3, 4), "b": distinct(3, 4) + 0.03, "c": distinct(2, 1, 4) + 0.06})
    for op in ("Sum", "Mean", "Min", "Max")
] + [Case(op, {"a": distinct(2, 3)}) for op in ("Sum", "Mean", "Min", "Max")]
CHOICES = [
    Case("Where", {"a": normal(3, 4), "b": normal(4)}, {"c": normal(3, 4) > 0}, order=("c", "a", "b")),
    Case("Clip", {"x": normal(3, 4)}, {"low": np.float32(-0.4), "high": np.float32(0.6)}),
    Case("Clip", {"x": normal(3, 4)}, {"high": np.float32(0.6)}, order=("x", "", "high"), opset=11),
    Case("PRelu", {"x": normal(2, 3, 4), "slope": normal(3, 1)}),
    Case("Dropout", {"x": normal(3, 4)}),
]
CONV = [
    Case("Conv", {"x": normal(2, 3, 9), "w": normal(4, 3, 3), "b": normal(4)}, attributes={"pads": [1, 1]}),
    Case("Conv", {"x": normal(2, 4, 7, 6), "w": normal(6, 2, 3, 2)}, attributes={"group": 2, "strides": [2, 1]}),
    Case("Conv", {"x": normal(2, 3, 7, 6), "w": normal(3, 1, 3, 3)}, attributes={"group": 3, "dilations": [2, 1]}),
    Case("Conv", {"x": normal(2, 3, 7, 8), "w": normal(4, 3, 3, 3)}, attributes={"auto_pad": "SAME_UPPER"}),
    Case(
        "Conv",
        {"x": normal(2, 3, 7, 8), "w": normal(4, 3, 3, 2)},
        attributes={"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    ),
    Case("Conv", {"x": normal(2, 3, 7, 8), "w": normal(4, 3, 3, 2)}, attributes={"auto_pad": "VALID"}),
    Case("Conv", {"x": normal(1, 2, 5, 4, 6), "w": normal(3, 2, 3, 2, 3), "b": normal(3)}),
    Case("ConvTranspose", {"x": normal(2, 3, 5), "w": normal(3, 4, 3), "b": normal(4)}, attributes={"strides": [2]}),
    Case("ConvTranspose", {"x": normal(2, 3, 4, 5), "w": normal(3, 2, 2, 2)}, attributes={"strides": [2, 2]}),
    Case(
        "ConvTranspose",
        {"x": normal(2, 4, 4, 5), "w": normal(4, 3, 3, 3), "b": normal(6)},
        attributes={"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2], "output_padding": [1, 0]},
    ),
    Case(
        "ConvTranspose",
        {"x": normal(2, 2, 4, 4), "w": normal(2, 3, 3, 3)},
        attributes={"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
]
PRODUCTS = [
    two("MatMul", normal(3, 4), normal(4, 5)),
    two("MatMul", normal(2, 3, 4), normal(4, 5)),
    two("MatMul", normal(2, 6, 3, 4), normal(2, 6, 4, 5)),
    two("MatMul", normal(2, 3, 4), normal(5, 1, 4, 6)),
    two("MatMul", normal(4), normal(4, 5)),
    two("MatMul", normal(2, 3, 4), normal(4)),
    two("MatMul", normal(4), normal(2, 4, 5)),
    two("MatMul", normal(4), normal(4)),
    two("Gemm", normal(3, 4), normal(4, 5)),
    Case(
        "Gemm",
        {"a": normal(4, 3), "b": normal(5, 4), "c": normal(5)},
        attributes={"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    Case("Gemm", {"a": normal(3, 4), "b": normal(5, 4), "c": normal(3, 1)}, attributes={"transB": 1}, opset=11),
    Case("Gemm", {"a": normal(4, 3), "b": normal(4, 5), "c": normal(1)}, attributes={"transA": 1, "alpha": 3.0}),
]
POOLS = [
    one("MaxPool", distinct(2, 3, 8, 9), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    one("MaxPool", distinct(2, 3, 8), kernel_shape=[3]),
    one("MaxPool", distinct(1, 2, 6, 6, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    one("MaxPool", distinct(2, 2, 9, 9), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, dilations=[2, 1]),
    one("MaxPool", distinct(2, 2, 5, 5), kernel_shape=[2, 2], auto_pad="SAME_UPPER", opset=11),
    one("MaxPool", distinct(2, 2, 5, 5), kernel_shape=[2, 2], storage_order=1),
    one("AveragePool", normal(2, 3, 8, 9), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    one("AveragePool", normal(2, 3, 8), kernel_shape=[3], pads=[1, 1], count_include_pad=1),
    one("AveragePool", normal(2, 3, 5, 4, 6), kernel_shape=[2, 3, 2], strides=[1, 1, 2]),
    one("AveragePool", normal(2, 3, 7, 7), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    one("GlobalAveragePool", normal(2, 3, 5, 4)),
    one("GlobalMaxPool", distinct(2, 3, 5, 4)),
    *(one(op, normal(2, 3, 4), axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, -1)),
    *(one(op, normal(2, 3, 4), opset=11, axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, 2)),
    one("Softmax", opset=11),
    one("Softmax"),
]
_CHANNELS = {"s": normal(3), "b": normal(3)}
NORMS = [
    Case("BatchNormalization", {"x": normal(4, 3, 5), **_CHANNELS, "m": normal(3), "v": positive(3)}),
    Case("BatchNormalization", {"x": normal(4, 3), **_CHANNELS, "m": normal(3), "v": positive(3)}, opset=11),
    Case("LayerNormalization", {"x": normal(2, 3, 8), "s": normal(8), "b": normal(8)}),
    Case("LayerNormalization", {"x": normal(2, 3, 4, 5), "s": normal(4, 5)}, attributes={"axis": 2, "epsilon": 1e-3}),
    Case("InstanceNormalization", {"x": normal(2, 3, 5, 4), **_CHANNELS}),
]
REDUCTIONS = [
    *(
        one(op, normal(2, 3, 4), opset=11, axes=[0, 2], keepdims=k)
        for op in ("ReduceMean", "ReduceSum")
        for k in (0, 1)
    ),
    *(one(op, normal(2, 3, 4), opset=11) for op in ("ReduceMean", "ReduceSum")),
    *(one(op, normal(2, 3, 4), opset=11, axes=[-1], keepdims=0) for op in ("ReduceL2", "ReduceLogSumExp")),
    *(one(op, distinct(2, 3, 4), opset=11, axes=[1], keepdims=0) for op in ("ReduceMax", "ReduceMin")),
    one("ReduceSumSquare", normal(2, 3), opset=11, axes=[1]),
    *(
        one(op, normal(2, 3, 4), opset=18, constants={"axes": ints(1)}, keepdims=0)
        for op in ("ReduceMean", "ReduceSum", "ReduceL2")
    ),
    one("ReduceMean", normal(2, 3, 4), opset=18, constants={"axes": ints()}, noop_with_empty_axes=1),
    one("ReduceSum", normal(2, 3, 4), opset=18, keepdims=0),
    one("ReduceMax", distinct(2, 3, 4), opset=18, constants={"axes": ints(0, 2)}),
]
SHAPES = [
    one("Flatten", normal(2, 3, 4), axis=2),
    one("Reshape", normal(2, 3, 4), constants={"s": ints(0, -1)}),
    one("Squeeze", normal(2, 1, 4), opset=11, axes=[1]),
    one("Squeeze", normal(2, 1, 4), constants={"a": ints(1)}),
    one("Unsqueeze", normal(2, 4), opset=11, axes=[0, 3]),
    one("Unsqueeze", normal(2, 4), constants={"a": ints(1, -1)}),
    one("Transpose", normal(2, 3, 4), perm=[2, 0, 1]),
    one("Transpose", normal(2, 3, 4)),
    Case("Concat", {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 4)}, attributes={"axis": -1}),
    Case("Concat", {"a": normal(2, 3), "b": normal(4, 3)}, attributes={"axis": 0}),
    one("Split", normal(6, 4), opset=11, outputs=3, axis=0),
    one("Split", normal(2, 7), constants={"s": ints(3, 4)}, outputs=2, axis=1),
    one("Split", normal(2, 7), opset=18, outputs=2, axis=1, num_outputs=2),
    one("Slice", normal(5, 6), constants={"s": ints(1), "e": ints(4)}),
    one("Slice", normal(5, 6), constants={"s": ints(-2, 4), "e": ints(9, 0), "a": ints(1, 0), "t": ints(1, -2)}),
    one("Gather", normal(5, 4), constants={"i": np.asarray([[0, 3], [3, -1]])}),
    one("Gather", normal(5, 4), constants={"i": np.asarray(1)}, axis=1),
    one("GatherElements", normal(3, 4), constants={"i": np.asarray([[0, -1, 1], [1, 1, 0], [2, 3, 2]])}, axis=1),
    one("Pad", normal(3, 4), constants={"p": ints(1, 0, 2, 3)}),
    one("Pad", normal(3, 4), constants={"p": ints(-1, 0, 2, -2), "v": np.float32(2)}),
    one("Pad", normal(3, 4, 5), constants={"p": ints(0, 2, 1, 0, 1, 3)}, mode="reflect"),
    one("Pad", normal(3, 4, 5), constants={"p": ints(0, 2, 1, 0, 1, 3)}, mode="edge"),
    one("Expand", normal(3, 1), constants={"s": ints(2, 1, 4)}),
]
CORNERS, PLAIN, TORCH = "align_corners", "asymmetric", "pytorch_half_pixel"


def resize(x: Array, scales: list[float] | None, sizes: list[int] | None = None, **attributes: Any) -> Case:
    told = {"scales": np.asarray(scales, np.float32)} if scales else {"sizes": ints(*(sizes or []))}
    order = ("x", "", "scales") if scales else ("x", "", "", "sizes")
    return Case("Resize", {"x": x}, told, attributes, order=order, opset=attributes.pop("opset", 13))


RESIZES = [
    resize(
        normal(2, 3, 4, 5), [1, 1, 2, 2], mode="nearest", coordinate_transformation_mode=PLAIN, nearest_mode="floor"
    ),
    resize(normal(2, 3, 4, 5), [1, 1, 1.5, 0.6], mode="nearest"),
    resize(normal(2, 3, 4, 5), [1, 1, 2, 3], mode="linear"),
    resize(normal(2, 3, 4, 5), [1, 1, 1.7, 0.5], mode="linear", coordinate_transformation_mode=PLAIN),
    resize(
        normal(2, 3, 4, 5), None, [7, 9], axes=[2, 3], opset=18, mode="linear", coordinate_transformation_mode=CORNERS
    ),
    resize(
        normal(2, 3, 4, 5),
        None,
        [3, 1],
        axes=[2, 3],
        opset=18,
        mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    resize(normal(2, 3, 6), [1, 1, 2.5], mode="linear"),
    resize(normal(1, 2, 3, 4, 3), [1, 1, 2, 1, 2], mode="nearest", nearest_mode="ceil"),
]
CASES = [
    *(UNARY + BINARY + POW + VARIADIC + CHOICES + CONV + PRODUCTS + POOLS + NORMS + REDUCTIONS + SHAPES + RESIZES),
]


def run(case: Case, change: Callable[[dict[str, Array]], dict[str, Array]] = lambda feeds: feeds) -> None:
    outputs = [f"y{i}" for i in range(case.outputs)]
    order = case.order or (*case.inputs, *case.constants)
    nodes = [node(case.op, order, outputs, domain=case.domain, **case.attributes)]
    tested = model(nodes, case.inputs, case.constants, outputs, opset=case.opset, microsoft=True)
    for checked in check_gradients(tested, change(case.inputs), wrt=case.wrt):
        assert checked.error < BOUND, checked


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case) -> None:
    run(case)


def test_every_rule_is_tested() -> None:
    tested = {(case.domain, case.op) for case in CASES} | {("", "Cast"), ("com.microsoft", "LayerNormalization")}
    assert tested >= set(RULES)
