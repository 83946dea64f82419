"""Convolution in the dialects of ONNX Runtime and oneDNN: their own cases, attributes, formats, and every refusal."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import same_bits
from convolution_problems import Problem, Recorded, problem, problems, recorded
from hypothesis import given, settings

from backstroke.convolution import reference
from backstroke.dialects import onednn, onnxruntime

BFLOAT16 = ml_dtypes.bfloat16
CASES = recorded()
ALL = {"outputs": 3}


def equal(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert np.array_equal(a.astype(np.float64), b)


# ---- ONNX Runtime ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_recorded_cases(case: Recorded, dtype: Any) -> None:
    dy, x, w, _ = case.problem.whole(dtype, most=2)
    assert dy.shape == case.dy
    grads = onnxruntime.run("ConvGrad", [dy, x, w], case.attributes, **ALL)
    assert all(a.dtype == dtype for a in grads)
    equal(grads, reference.conv_grad(dy, x, w, **case.problem.options))


P = problem(2, 4, 6, (7, 6), (3, 2), group=2, pads=((1, 0), (2, 1)), strides=(2, 1), dilations=(1, 2))
ATTRIBUTES = {"pads": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2, "kernel_shape": [3, 2]}
DY, X, W, _ = P.whole(np.float32)


def test_all_attributes() -> None:
    equal(onnxruntime.run("ConvGrad", [DY, X, W], ATTRIBUTES, **ALL), reference.conv_grad(DY, X, W, **P.options))
    without = {name: value for name, value in ATTRIBUTES.items() if name != "kernel_shape"}
    unknown = {**without, "activation": "Relu", "auto_pad": "NOTSET"}
    equal(onnxruntime.run("ConvGrad", [DY, X, W], unknown, **ALL), reference.conv_grad(DY, X, W, **P.options))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_counts(auto_pad: str) -> None:
    """ONNX Runtime passes over it and takes pads of zero."""
    p = problem(2, 3, 4, (7, 6), (3, 2), strides=(2, 1), auto_pad=auto_pad)
    dy, x, w, _ = p.whole(np.float32)
    attributes = {"auto_pad": auto_pad, "strides": [2, 1]}
    equal(onnxruntime.run("ConvGrad", [dy, x, w], attributes, **ALL), reference.conv_grad(dy, x, w, **p.options))


def test_outputs_are_optional() -> None:
    whole = onnxruntime.run("ConvGrad", [DY, X, W], ATTRIBUTES, **ALL)
    for count in (1, 2, 3):
        some = onnxruntime.run("ConvGrad", [DY, X, W], ATTRIBUTES, outputs=count)
        assert len(some) == count
        assert all(map(same_bits, some, whole))
    for names in itertools.product(("", "a"), repeat=3):
        if any(names):
            some = onnxruntime.run("ConvGrad", [DY, X, W], ATTRIBUTES, outputs=names)
            for name, ours, every in zip(names, some, whole, strict=True):
                assert (ours is None) == (not name)
                assert ours is None or same_bits(ours, every)


def test_defaults_are_those_of_onnx() -> None:
    p = problem(1, 2, 3, (4,), (2,))
    dy, x, w, _ = p.whole(np.float32)
    for attributes in ({}, {"pads": [], "strides": [], "dilations": [], "kernel_shape": []}):
        equal(onnxruntime.run("ConvGrad", [dy, x, w], attributes, **ALL), reference.conv_grad(dy, x, w))


def test_no_batch() -> None:
    """ONNX Runtime divides by it and dies."""
    dx, dw, db = onnxruntime.run("ConvGrad", [DY[:0], X[:0], W], ATTRIBUTES, **ALL)
    assert dx.shape == X[:0].shape
    assert not dw.any()
    assert not db.any()


def test_onnx_runtime_results_come_in_the_kind_of_dy() -> None:
    torch = pytest.importorskip("torch")
    grads = onnxruntime.run("ConvGrad", [torch.from_numpy(DY), X, W], ATTRIBUTES, **ALL)
    assert all(isinstance(a, torch.Tensor) for a in grads)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"strides": [0, 1]}, ValueError, "strides"),
        ({"strides": [-1, 1]}, ValueError, "strides"),
        ({"strides": [1]}, ValueError, "strides"),
        ({"strides": [1.5, 1]}, TypeError, "strides"),
        ({"dilations": [0, 1]}, ValueError, "dilations"),
        ({"dilations": [1, 2, 3]}, ValueError, "dilations"),
        ({"pads": [1, 1]}, ValueError, "pads"),
        ({"pads": [1, 2, 0, -1]}, ValueError, "pads"),
        ({"pads": [0, 0, 0, 0], "auto_pad": "SAME_UPPER"}, ValueError, "pads and auto_pad are both given"),
        ({"auto_pad": "VALID"}, ValueError, "pads and auto_pad are both given"),
        ({"auto_pad": "SAME"}, ValueError, "auto_pad"),
        ({"kernel_shape": [3]}, ValueError, "kernel_shape"),
        ({"kernel_shape": [2, 2]}, ValueError, "kernel_shape"),
        ({"group": 1}, ValueError, "w: "),
        ({"group": 0}, ValueError, "group"),
        ({"group": "2"}, TypeError, "group"),
    ],
)
def test_bad_onnx_runtime_attributes(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        onnxruntime.run("ConvGrad", [DY, X, W], {**ATTRIBUTES, **change}, **ALL)


@pytest.mark.parametrize(
    ("inputs", "outputs", "error", "words"),
    [
        ([DY, X], 3, ValueError, "inputs"),
        ([DY, X, None], 3, ValueError, "W"),
        ([DY[..., 1:], X, W], 3, ValueError, "dy: shape"),
        ([DY[:1], X, W], 3, ValueError, "dy: shape"),
        ([DY, X, W[:, :1]], 3, ValueError, "w: shape"),
        ([DY, X, W[0]], 3, ValueError, "kernel_shape|w: shape"),
        ([DY, X.astype(np.float64), W], 3, TypeError, "x: float64"),
        ([DY, X, W.astype(np.int32)], 3, TypeError, "W has type int32"),
        ([DY, X, W], 4, ValueError, "outputs"),
        ([DY, X, W], 0, ValueError, "outputs"),
        ([DY, X, W], ["", ""], ValueError, "outputs"),
        ([DY, X, W], [], ValueError, "outputs"),
        ([DY, X, W], "dX", TypeError, "outputs"),
        ([DY, X, W], True, TypeError, "outputs"),
    ],
)
def test_bad_onnx_runtime_calls(inputs: Any, outputs: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        onnxruntime.run("ConvGrad", inputs, ATTRIBUTES, outputs=outputs)


# ---- oneDNN ---------------------------------------------------------------------------------------------------------

OPS = ("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights")


def attributes_of(p: Problem, weights_format: str) -> dict[str, Any]:
    geometry, layout = p.shapes.geometry, p.options["layout"]
    return {
        "strides": geometry.strides,
        "pads_begin": [begin for begin, _ in geometry.pads],
        "pads_end": [end for _, end in geometry.pads],
        "dilations": geometry.dilations,
        "groups": p.shapes.group,
        "data_format": layout,
        "weights_format": weights_format,
    }


def formatted(w: np.ndarray, p: Problem, weights_format: str) -> np.ndarray:
    """Weights as the problem has them, in that format."""
    if (p.options["layout"] == "NCX") == (weights_format == "OIX"):
        return w
    return np.moveaxis(w, (0, 1), (-1, -2)) if weights_format == "XIO" else np.moveaxis(w, (-1, -2), (0, 1))


@pytest.mark.parametrize("weights_format", ["XIO", "OIX"])
@settings(deadline=None, max_examples=10)
@given(p=problems())
def test_the_three_ops_are_the_twins(p: Problem, weights_format: str) -> None:
    dy, x, w, b = p.whole(np.float32, most=2)
    attributes, weights = attributes_of(p, weights_format), formatted(w, p, weights_format)
    grads = reference.conv_grad(dy, x, w, **p.options)
    for bias in (None, b):
        (y,) = onednn.run("Convolution", [x, weights, bias], attributes)
        equal([y], [reference.conv(x, w, bias, **p.options)])
    (dx,) = onednn.run("ConvolutionBackwardData", [dy, weights], {**attributes, "dst_shape": x.shape})
    (dw,) = onednn.run("ConvolutionBackwardWeights", [x, dy], {**attributes, "weights_shape": weights.shape})
    equal([dx, dw], [grads.dx, formatted(grads.dw, p, weights_format)])
    assert dw.flags.c_contiguous


Q = problem(2, 4, 6, (7, 6), (3, 2), group=2, pads=((1, 0), (2, 1)), strides=(2, 1), dilations=(1, 2), layout="NXC")
QDY, QX, QW, QB = Q.whole(np.float32)
PLAIN = attributes_of(Q, "XIO")
GRADS = reference.conv_grad(QDY, QX, QW, **Q.options)
CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Convolution": ([QX, QW], PLAIN),
    "ConvolutionBackwardData": ([QDY, QW], {**PLAIN, "dst_shape": QX.shape}),
    "ConvolutionBackwardWeights": ([QX, QDY], {**PLAIN, "weights_shape": QW.shape}),
}


def test_formats_that_are_not_given() -> None:
    for op, (inputs, attributes) in CALLS.items():
        left = {name: value for name, value in attributes.items() if name not in ("data_format", "weights_format")}
        assert same_bits(onednn.run(op, inputs, left)[0], onednn.run(op, inputs, attributes)[0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_shape_that_is_an_input_wins(dtype: Any) -> None:
    for wrong in ({}, {"dst_shape": (1, 2, 3)}, {"dst_shape": QX.shape}):
        (dx,) = onednn.run("ConvolutionBackwardData", [QDY, QW, np.array(QX.shape, dtype)], {**PLAIN, **wrong})
        equal([dx], [GRADS.dx])
    for wrong in ({}, {"weights_shape": (9,)}):
        inputs = [QX, QDY, np.array(QW.shape, dtype)]
        (dw,) = onednn.run("ConvolutionBackwardWeights", inputs, {**PLAIN, **wrong})
        equal([dw], [GRADS.dw])
    # 6 rows with the same windows: another shape, another answer.
    (dx,) = onednn.run("ConvolutionBackwardData", [QDY, QW, np.array((2, 6, 6, 4), dtype)], PLAIN)
    assert dx.shape == (2, 6, 6, 4)
    assert (
        onednn.run("ConvolutionBackwardData", [QDY, QW, None], {**PLAIN, "dst_shape": (2, 6, 6, 4)})[0].shape
        == dx.shape
    )


@pytest.mark.parametrize("spelling", ["SAME_UPPER", "same_lower", "VALID", "Valid"])
def test_auto_pad_overrides_the_pads(spelling: str) -> None:
    p = problem(2, 3, 4, (7, 6), (3, 2), strides=(2, 1), auto_pad=spelling, layout="NXC")
    dy, x, w, _ = p.whole(np.float32)
    attributes = {
        "strides": [2, 1],
        "dilations": [1, 1],
        "pads_begin": [9, 9],
        "pads_end": [0, 5],
        "auto_pad": spelling,
    }
    expected = reference.conv_grad(dy, x, w, **p.options)
    for pads in ({}, {"pads_begin": [], "pads_end": []}):
        given = {**attributes, **pads}
        equal(onednn.run("Convolution", [x, w], given), [reference.conv(x, w, **p.options)])
        equal(onednn.run("ConvolutionBackwardData", [dy, w], {**given, "dst_shape": x.shape}), [expected.dx])
        equal(onednn.run("ConvolutionBackwardWeights", [x, dy], {**given, "weights_shape": w.shape}), [expected.dw])


def test_output_padding_says_nothing_where_the_shape_is_known() -> None:
    inputs, attributes = CALLS["ConvolutionBackwardData"]
    equal(onednn.run("ConvolutionBackwardData", inputs, {**attributes, "output_padding": [1, 0]}), [GRADS.dx])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_onednn_16_bits(op: str, dtype: Any) -> None:
    inputs, attributes = CALLS[op]
    small = [a.astype(dtype) for a in inputs]
    (ours,) = onednn.run(op, small, attributes)
    assert ours.dtype == dtype
    assert same_bits(ours, onednn.run(op, inputs, attributes)[0].astype(dtype))


@pytest.mark.parametrize("op", OPS)
def test_onednn_results_come_in_the_kind_of_the_first_input(op: str) -> None:
    torch = pytest.importorskip("torch")
    inputs, attributes = CALLS[op]
    (ours,) = onednn.run(op, [torch.from_numpy(inputs[0]), *inputs[1:]], attributes)
    assert isinstance(ours, torch.Tensor)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"strides": [0, 1]}, ValueError, "strides"),
        ({"strides": [1]}, ValueError, "strides"),
        ({"dilations": [0, 1]}, ValueError, "dilations"),
        ({"dilations": [1]}, ValueError, "dilations"),
        ({"dilations": [9, 9]}, ValueError, "kernel: no window fits|diff_dst has shape"),
        ({"pads_begin": [-1, 0]}, ValueError, "pads_begin"),
        ({"pads_end": [1, 1, 1]}, ValueError, "pads_end"),
        ({"pads_begin": []}, ValueError, "pads_begin"),
        ({"auto_pad": "SAME"}, ValueError, "auto_pad"),
        ({"groups": 3}, ValueError, "weights(_shape)?: shape"),
        ({"groups": 0}, ValueError, "groups"),
        ({"groups": -2}, ValueError, "groups"),
        ({"groups": 2.0}, TypeError, "groups"),
        ({"data_format": "NHWC"}, ValueError, "data_format"),
        ({"data_format": "NCX"}, ValueError, "kernel|weights|diff_dst"),
        ({"weights_format": "IOX"}, ValueError, "weights_format"),
        ({"weights_format": "OIX"}, ValueError, "kernel|weights|diff_dst"),
        ({"kernel": [3, 2]}, ValueError, "no attribute 'kernel'"),
        ({"src_shape": [1]}, ValueError, "no attribute 'src_shape'"),
    ],
)
def test_bad_onednn_attributes(op: str, change: dict[str, Any], error: type[Exception], words: str) -> None:
    inputs, attributes = CALLS[op]
    with pytest.raises(error, match=words):
        onednn.run(op, inputs, {**attributes, **change})


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["strides", "pads_begin", "pads_end", "dilations"])
def test_onednn_attributes_that_must_be_given(op: str, name: str) -> None:
    inputs, attributes = CALLS[op]
    with pytest.raises(ValueError, match=f"attribute {name}"):
        onednn.run(op, inputs, {n: v for n, v in attributes.items() if n != name})


SHAPE = np.array(QX.shape)


@pytest.mark.parametrize(
    ("op", "inputs", "change", "error", "words"),
    [
        ("Convolution", [QX], {}, ValueError, "inputs"),
        ("Convolution", [QX, QW, QB[1:]], {}, ValueError, "bias has shape"),
        ("Convolution", [QX, QW, QB.astype(np.float16)], {}, TypeError, "bias has type float16"),
        ("Convolution", [QX, QW.astype(np.float64)], {}, TypeError, "weights has type float64"),
        ("Convolution", [QX[..., 1:], QW], {}, ValueError, "weights: shape"),
        ("Convolution", [QX, QW[..., 0]], {}, ValueError, "weights has 3 axes"),
        ("Convolution", [QX[0, 0], QW[0, 0]], {}, ValueError, "src: shape"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": None}, ValueError, "dst_shape is missing"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": (2, 9, 9, 4)}, ValueError, "diff_dst has shape"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": (3, 7, 6, 4)}, ValueError, "diff_dst has shape"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": (2, 7, 6, 5)}, ValueError, "weights: shape"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": (2, 7, 4)}, ValueError, "weights has 4 axes"),
        ("ConvolutionBackwardData", [QDY, QW], {"dst_shape": (2, -7, 6, 4)}, ValueError, "dst_shape"),
        ("ConvolutionBackwardData", [QDY, QW, SHAPE[None]], {}, ValueError, "dst_shape"),
        ("ConvolutionBackwardData", [QDY, QW, SHAPE.astype(float)], {}, TypeError, "dst_shape"),
        ("ConvolutionBackwardData", [QDY[..., :5], QW], {}, ValueError, "diff_dst has shape"),
        ("ConvolutionBackwardData", [QDY, QW.astype(np.float16)], {}, TypeError, "weights has type float16"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": None}, ValueError, "weights_shape is missing"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": (3, 2, 4, 6)}, ValueError, "weights_shape: shape"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": (3, 2, 2, 7)}, ValueError, "weights_shape: shape"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": (3, 2, 2, 8)}, ValueError, "diff_dst has shape"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": (0, 2, 2, 6)}, ValueError, "kernel"),
        ("ConvolutionBackwardWeights", [QX, QDY], {"weights_shape": (2, 2, 6)}, ValueError, "weights_shape has 3 axes"),
        ("ConvolutionBackwardWeights", [QX, QDY[1:]], {}, ValueError, "diff_dst has shape"),
    ],
)
def test_bad_onednn_calls(
    op: str, inputs: list[Any], change: dict[str, Any], error: type[Exception], words: str
) -> None:
    attributes = {**CALLS[op][1], **change}
    with pytest.raises(error, match=words):
        onednn.run(op, inputs, {name: value for name, value in attributes.items() if value is not None})


def test_the_tables() -> None:
    rows = {kernel.op: kernel for kernel in onednn.kernels() if kernel.op in OPS}
    assert tuple(rows) == OPS
    assert [len(row.inputs) - row.optional_inputs for row in rows.values()] == [2, 2, 2]
    (conv_grad,) = [kernel for kernel in onnxruntime.kernels() if kernel.op == "ConvGrad"]
    assert str(conv_grad).startswith("com.microsoft::ConvGrad-1(dY, X, W) [kernel_shape: INTS = ()")
    assert conv_grad.outputs == 3
