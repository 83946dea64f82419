"""The oneDNN dialect: golden values, attributes as both the documents and the code spell them, every refusal."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backstroke.dialects import onednn
from backstroke.geometry import Geometry
from backstroke.pooling import reference

BFLOAT16 = ml_dtypes.bfloat16
DTYPES = [np.float32, BFLOAT16, np.float16]
WINDOW = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "kernel": [2, 2]}
AVERAGE = {**WINDOW, "exclude_pad": True}
GOLDEN_DY = np.array([-1.0, 3, 10, 4, 16, 8, 12, -5, -3])
EXCLUDED = [-1, 1.5, 1.5, 10, 2, 4, 4, 4, 2, 4, 4, 4, 12, -2.5, -2.5, -3]
INCLUDED = [-0.25, 0.75, 0.75, 2.5, 1, 4, 4, 2, 1, 4, 4, 2, 3, -1.25, -1.25, -0.75]


def shaped(values: Any, *size: int, layout: str = "NXC", dtype: Any = np.float32) -> np.ndarray:
    """One image of one channel."""
    shape = (1, *size, 1) if layout == "NXC" else (1, 1, *size)
    return np.asarray(values, np.float64).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(("exclude", "golden"), [(True, EXCLUDED), (False, INCLUDED)])
def test_golden_values(exclude: bool, golden: list[float], layout: str, dtype: Any) -> None:
    dy = shaped(GOLDEN_DY, 3, 3, layout=layout, dtype=dtype)
    shape = shaped(np.zeros(16), 4, 4, layout=layout).shape
    attributes = {**AVERAGE, "exclude_pad": exclude, "data_format": layout, "src_shape": shape}
    (dx,) = onednn.run("AvgPoolBackward", [dy], attributes)
    assert dx.dtype == dtype
    assert dx.shape == shape
    assert dx.ravel().tolist() == golden


def test_channels_come_last_unless_said() -> None:
    dy = np.float32([[[1, 10]]])  # N, X, C
    attributes = {"strides": [2], "pads_begin": [0], "pads_end": [0], "kernel": [2], "exclude_pad": False}
    (dx,) = onednn.run("AvgPoolBackward", [dy], {**attributes, "src_shape": [1, 2, 2]})
    assert dx.tolist() == [[[0.5, 5], [0.5, 5]]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_input_src_shape_wins(dtype: Any) -> None:
    dy, shape = shaped(GOLDEN_DY, 3, 3), np.array([1, 4, 4, 1], dtype)
    for src_shape in ({}, {"src_shape": [1, 4, 4, 1]}, {"src_shape": [1, 5, 4, 1]}, {"src_shape": [7]}):
        (dx,) = onednn.run("AvgPoolBackward", [dy, shape], {**AVERAGE, **src_shape})
        assert dx.ravel().tolist() == EXCLUDED
    # 5 with the same windows: another shape, another answer.
    (dx,) = onednn.run("AvgPoolBackward", [dy, None], {**AVERAGE, "src_shape": [1, 5, 4, 1]})
    assert dx.shape == (1, 5, 4, 1)


@pytest.mark.parametrize(
    ("spellings", "begin"),
    [
        (("SAME_UPPER", "same_upper"), 0),
        (("SAME_LOWER", "same_lower"), 1),
        (("VALID", "valid"), None),
        (("None", "none"), None),
    ],
)
def test_auto_pad_in_both_spellings(spellings: tuple[str, ...], begin: int | None) -> None:
    # An input of 4 and a window of 3 at stride 2: one element of padding, or one window less.
    explicit = "one" in spellings[0]
    pads = [0] if explicit else [7]  # read only where auto_pad does not decide
    attributes = {"strides": [2], "pads_begin": pads, "pads_end": pads, "kernel": [3], "exclude_pad": False}
    count = 1 if begin is None else 2
    dy = shaped([3, 30][:count], count)
    expected = {0: [1, 1, 11, 10], 1: [1, 11, 10, 10], None: [1, 1, 1, 0]}[begin]
    for auto_pad in spellings:
        given = {**attributes, "auto_pad": auto_pad, "src_shape": [1, 4, 1]}
        assert onednn.run("AvgPoolBackward", [dy], given)[0].ravel().tolist() == expected
        if not explicit:
            empty = {**given, "pads_begin": [], "pads_end": []}
            assert onednn.run("AvgPoolBackward", [dy], empty)[0].ravel().tolist() == expected


def test_the_whole_kernel_divides_also_where_ceil_adds_to_it() -> None:
    src = shaped([2, 4, 6], 3)
    attributes: dict[str, Any] = {"strides": [2], "pads_begin": [0], "pads_end": [0], "kernel": [2]}
    ceil = {**attributes, "rounding_type": "ceil"}
    assert onednn.run("AvgPool", [src], {**ceil, "exclude_pad": False})[0].ravel().tolist() == [3, 3]
    assert onednn.run("AvgPool", [src], {**ceil, "exclude_pad": True})[0].ravel().tolist() == [3, 6]
    assert onednn.run("AvgPool", [src], {**attributes, "exclude_pad": True})[0].ravel().tolist() == [3]
    assert onednn.run("MaxPool", [src], ceil)[0].ravel().tolist() == [4, 6]
    # A ceil window that lies in the padding alone is kept, and has no maximum.
    far = {**ceil, "strides": [3], "kernel": [1], "pads_end": [1]}
    assert onednn.run("MaxPool", [src], far)[0].ravel().tolist() == [2, -math.inf]


@pytest.mark.parametrize(
    ("window", "index", "value"),
    [
        ([7, 7, 7], 0, 7),
        ([math.nan, 1, 2], 2, 2),
        ([-0.0, 0.0, -1], 0, 0),
        ([math.inf, 1, math.inf], 0, math.inf),
        ([math.nan] * 3, None, -math.inf),
        ([-math.inf] * 3, None, -math.inf),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_which_element_is_the_maximum(window: list[float], index: int | None, value: float, dtype: Any) -> None:
    attributes = {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [3]}
    src = shaped(window, 3, dtype=dtype)
    (dst,) = onednn.run("MaxPool", [src], attributes)
    (diff_src,) = onednn.run("MaxPoolBackward", [src, shaped([5], 1, dtype=dtype)], attributes)
    assert dst.dtype == diff_src.dtype == dtype
    assert dst.item() == value
    assert diff_src.ravel().tolist() == [5 if i == index else 0 for i in range(3)]


def test_one_window_may_overhang_the_input_by_less_than_a_stride() -> None:
    attributes = {"strides": [2], "pads_begin": [0], "pads_end": [0], "kernel": [3]}
    src, dy = shaped([1, 2], 2), shaped([6], 1)
    for auto_pad in ("None", "VALID"):
        for exclude, expected in ((True, [3, 3]), (False, [2, 2])):
            given = {**attributes, "auto_pad": auto_pad, "exclude_pad": exclude, "src_shape": src.shape}
            assert onednn.run("AvgPoolBackward", [dy], given)[0].ravel().tolist() == expected
    assert onednn.run("MaxPoolBackward", [src, dy], attributes)[0].ravel().tolist() == [0, 6]
    with pytest.raises(ValueError, match="kernel"):
        onednn.run("MaxPool", [src], {**attributes, "strides": [1]})


def test_dilations() -> None:
    attributes = {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [2]}
    src = shaped([1, 5, 2, 3], 4)
    assert onednn.run("MaxPool", [src], {**attributes, "dilations": [2]})[0].ravel().tolist() == [2, 5]
    (dx,) = onednn.run("MaxPoolBackward", [src, shaped([1, 10], 2)], {**attributes, "dilations": [2]})
    assert dx.ravel().tolist() == [0, 10, 1, 0]
    assert onednn.run("MaxPool", [src], attributes)[0].ravel().tolist() == [5, 5, 3]


@pytest.mark.parametrize("seed", range(40))
def test_all_four_ops_are_the_twins(seed: int) -> None:
    """Random windows in every rank, layout and type, on small integers: exact but for the averages' division."""
    rng = np.random.default_rng(seed)
    rank, layout, dtype = int(rng.integers(1, 4)), ("NXC", "NCX")[seed % 2], DTYPES[seed % 3]
    size, kernel = rng.integers(3, 7, rank), rng.integers(1, 4, rank)
    strides, dilations = rng.integers(1, 4, rank), rng.integers(1, 3, rank)
    begin, end = (rng.integers(0, kernel) for _ in range(2))
    auto_pad, exclude = ("None", "SAME_UPPER", "same_lower", "VALID")[seed % 4], bool(rng.integers(2))

    def geometry(dilations: Any) -> Geometry:
        pads = tuple(zip(begin.tolist(), end.tolist(), strict=True)) if auto_pad == "None" else 0
        return Geometry.of(
            size.tolist(), kernel.tolist(), strides=strides.tolist(), pads=pads, dilations=dilations, auto_pad=auto_pad
        )

    size = np.maximum(size, (kernel - 1) * dilations + 1)
    shape = (2, *size.tolist(), 3) if layout == "NXC" else (2, 3, *size.tolist())
    window = {"strides": strides, "pads_begin": begin, "pads_end": end, "kernel": kernel}
    common = {**window, "auto_pad": auto_pad, "data_format": layout}
    src = rng.integers(-4, 5, shape).astype(dtype)
    wide = src.astype(np.float64)

    plain, stretched = geometry(1), geometry(dilations.tolist())
    y, _ = reference.window_max(wide, stretched, layout)
    (dst,) = onednn.run("MaxPool", [src], {**common, "dilations": dilations})
    assert np.array_equal(dst.astype(np.float64), y)
    dy = rng.integers(-4, 5, y.shape).astype(dtype)
    expected = reference.window_max_grad(dy.astype(np.float64), wide, stretched, layout)
    (dx,) = onednn.run("MaxPoolBackward", [src, dy], {**common, "dilations": dilations})
    assert np.array_equal(dx.astype(np.float64), expected)

    counted: Any = "valid" if exclude else "kernel"
    y = reference.window_mean(wide, plain, counted, layout)
    (dst,) = onednn.run("AvgPool", [src], {**common, "exclude_pad": exclude})
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(dst.astype(np.float64), y, rtol=eps, atol=8 * 27 * 1.2e-7)
    dy = rng.integers(-4, 5, y.shape).astype(dtype)
    expected = reference.window_mean_grad(dy.astype(np.float64), shape, plain, counted, layout)
    (dx,) = onednn.run("AvgPoolBackward", [dy], {**common, "exclude_pad": exclude, "src_shape": shape})
    np.testing.assert_allclose(dx.astype(np.float64), expected, rtol=eps, atol=8 * 27 * 1.2e-7)


def test_no_batch() -> None:
    dy = np.zeros((0, 3, 3, 2), np.float32)
    assert onednn.run("AvgPoolBackward", [dy], {**AVERAGE, "src_shape": [0, 4, 4, 2]})[0].shape == (0, 4, 4, 2)
    src = np.zeros((0, 4, 4, 2), np.float32)
    assert onednn.run("MaxPoolBackward", [src, dy], WINDOW)[0].shape == src.shape


def test_results_come_in_the_kind_of_the_first_input() -> None:
    torch = pytest.importorskip("torch")
    dy, shape = torch.from_numpy(shaped(GOLDEN_DY, 3, 3)).bfloat16(), torch.tensor([1, 4, 4, 1])
    (dx,) = onednn.run("AvgPoolBackward", [dy, shape], AVERAGE)
    assert dx.dtype == torch.bfloat16
    assert dx.ravel().tolist() == EXCLUDED


# Refusals

DY = shaped(GOLDEN_DY, 3, 3)
GIVEN = {**AVERAGE, "src_shape": [1, 4, 4, 1]}


@pytest.mark.parametrize(
    ("attributes", "error", "match"),
    [
        ({"strides": [0, 0]}, ValueError, "strides"),
        ({"strides": [2, -2]}, ValueError, "strides"),
        ({"strides": [2]}, ValueError, "strides"),
        ({"strides": [2, 2, 2]}, ValueError, "strides"),
        ({"strides": []}, ValueError, "strides"),
        ({"strides": 2}, TypeError, "strides"),
        ({"strides": [2.0, 2.0]}, TypeError, "strides"),
        ({"strides": [2**63, 2**63]}, ValueError, "diff_dst"),
        ({"kernel": [0, 2]}, ValueError, "kernel"),
        ({"kernel": [2]}, ValueError, "kernel"),
        ({"kernel": [2**63, 2]}, ValueError, "kernel"),
        ({"kernel": [7, 7]}, ValueError, "diff_dst"),
        ({"kernel": [8, 8]}, ValueError, "kernel"),
        ({"pads_begin": [-1, 1]}, ValueError, "pads_begin"),
        ({"pads_end": [1, -1]}, ValueError, "pads_end"),
        ({"pads_begin": [1]}, ValueError, "pads_begin"),
        ({"pads_end": []}, ValueError, "pads_end"),
        ({"pads_begin": [1, 1, 1], "auto_pad": "VALID"}, ValueError, "pads_begin"),
        ({"pads_begin": [2, 2], "pads_end": [0, 0]}, ValueError, "exclude_pad"),
        ({"pads_begin": [0, 0], "pads_end": [2, 2]}, ValueError, "exclude_pad"),
        ({"exclude_pad": 1}, TypeError, "exclude_pad"),
        ({"auto_pad": "SAME"}, ValueError, "auto_pad"),
        ({"auto_pad": None}, TypeError, "auto_pad"),
        ({"auto_pad": "VALID"}, ValueError, "diff_dst"),
        ({"data_format": "NHWC"}, ValueError, "data_format"),
        ({"data_format": "nxc"}, ValueError, "data_format"),
        ({"src_shape": [1, 5, 6, 1]}, ValueError, "diff_dst"),
        ({"src_shape": [2, 4, 4, 1]}, ValueError, "diff_dst"),
        ({"src_shape": [1, 4, 4, 2]}, ValueError, "diff_dst"),
        ({"src_shape": [1, 4, 1]}, ValueError, "pads_begin"),
        ({"src_shape": [1, -4, 4, 1]}, ValueError, "src_shape"),
        ({"src_shape": [0] * 12}, ValueError, "src_shape"),
        ({"src_shape": [1, 4, 4.0, 1]}, TypeError, "src_shape"),
        ({"src_shape": [4, 4]}, ValueError, "src_shape"),
        ({"src_shape": [1, 4, 4, 4, 4, 1]}, ValueError, "src_shape"),
        ({"dilations": [1, 1]}, ValueError, "dilations"),
        ({"rounding_type": "floor"}, ValueError, "rounding_type"),
    ],
)
def test_bad_attributes(attributes: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        onednn.run("AvgPoolBackward", [DY], {**GIVEN, **attributes})


@pytest.mark.parametrize("name", ["strides", "pads_begin", "pads_end", "kernel", "exclude_pad"])
def test_missing_attributes(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        onednn.run("AvgPoolBackward", [DY], {n: v for n, v in GIVEN.items() if n != name})


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ([DY], ValueError, "src_shape is missing"),
        ([DY, None], ValueError, "src_shape is missing"),
        ([], ValueError, "inputs"),
        ([DY, np.int32([1, 4, 4, 1]), DY], ValueError, "inputs"),
        ([None, np.int32([1, 4, 4, 1])], ValueError, "diff_dst"),
        ([DY.astype(np.float64), np.int32([1, 4, 4, 1])], TypeError, "diff_dst"),
        ([DY.astype(np.int32), np.int32([1, 4, 4, 1])], TypeError, "diff_dst"),
        ([DY, np.float32([1, 4, 4, 1])], TypeError, "src_shape"),
        ([DY, np.int16([1, 4, 4, 1])], TypeError, "src_shape"),
        ([DY, [1, 4, 4, 1]], TypeError, "src_shape"),
        ([DY, np.int32([[1, 4, 4, 1]])], ValueError, "src_shape"),
        ([DY, np.int32(4)], ValueError, "src_shape"),
        ([DY, np.int64([1, 4, 4, -1])], ValueError, "src_shape"),
        ([DY, np.int64([1, 4, 4])], ValueError, "pads_begin"),
        ([DY[0], np.int64([1, 4, 4, 1])], ValueError, "diff_dst"),
    ],
)
def test_bad_inputs(inputs: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        onednn.run("AvgPoolBackward", inputs, AVERAGE)


@pytest.mark.parametrize("rank", [0, 1, 2, 6])
def test_three_to_five_axes(rank: int) -> None:
    x, n = np.zeros((2,) * rank, np.float32), max(0, rank - 2)
    window = {"strides": [1] * n, "pads_begin": [0] * n, "pads_end": [0] * n, "kernel": [1] * n}
    for op, inputs, attributes in (
        ("AvgPool", [x], {"exclude_pad": True}),
        ("AvgPoolBackward", [x], {"exclude_pad": True, "src_shape": x.shape}),
        ("MaxPool", [x], {}),
        ("MaxPoolBackward", [x, x], {}),
    ):
        with pytest.raises(ValueError, match="3 to 5 axes"):
            onednn.run(op, inputs, {**window, **attributes})


def test_padding_may_hold_a_window_where_it_counts() -> None:
    attributes = {"strides": [1], "pads_begin": [2], "pads_end": [0], "kernel": [2]}
    src, dy = shaped([1, 2], 2), shaped([8, 4, 2], 3)
    given = {**attributes, "exclude_pad": False, "src_shape": [1, 2, 1]}
    assert onednn.run("AvgPoolBackward", [dy], given)[0].ravel().tolist() == [3, 1]
    assert onednn.run("MaxPoolBackward", [src, dy], attributes)[0].ravel().tolist() == [4, 2]
    for op, inputs in (("AvgPool", [src]), ("AvgPoolBackward", [dy])):
        extra = {"src_shape": [1, 2, 1]} if op.endswith("Backward") else {}
        with pytest.raises(ValueError, match="exclude_pad"):
            onednn.run(op, inputs, {**attributes, **extra, "exclude_pad": True})
    # A ceil window wholly beyond the input: nothing to divide by.
    ceil = {"strides": [3], "pads_begin": [0], "pads_end": [1], "kernel": [2], "rounding_type": "ceil"}
    with pytest.raises(ValueError, match="exclude_pad"):
        onednn.run("AvgPool", [shaped([1, 2, 3], 3)], {**ceil, "exclude_pad": True})


def test_bad_maximum_arguments() -> None:
    src, dy = shaped(np.zeros(16), 4, 4), shaped(np.zeros(9), 3, 3)
    for inputs, attributes, error, match in (
        ([src, dy.astype(np.float16)], {}, TypeError, "diff_dst"),
        ([src.astype(np.float64), dy], {}, TypeError, "src"),
        ([src, dy[:, :2]], {}, ValueError, "diff_dst"),
        ([src], {}, ValueError, "inputs"),
        ([src, dy], {"dilations": [1]}, ValueError, "dilations"),
        ([src, dy], {"dilations": []}, ValueError, "dilations"),
        ([src, dy], {"dilations": [0, 1]}, ValueError, "dilations"),
        ([src, dy], {"exclude_pad": True}, ValueError, "exclude_pad"),
        ([src, dy], {"src_shape": [1, 4, 4, 1]}, ValueError, "src_shape"),
        ([src, dy], {"rounding_type": "ceil"}, ValueError, "rounding_type"),
    ):
        with pytest.raises(error, match=match):
            onednn.run("MaxPoolBackward", inputs, {**WINDOW, **attributes})
    with pytest.raises(ValueError, match="rounding_type"):
        onednn.run("MaxPool", [src], {**WINDOW, "rounding_type": "Ceil"})


def test_the_table() -> None:
    assert [k.op for k in onednn.kernels()][:4] == ["AvgPool", "AvgPoolBackward", "MaxPool", "MaxPoolBackward"]
    backward = onednn.kernels()[1]
    assert backward.inputs == ("diff_dst", "src_shape")
    assert backward.optional_inputs == 1
    assert backward.types == ("float32", "bfloat16", "float16")
    assert str(backward).startswith("oneDNN::AvgPoolBackward-1(diff_dst, src_shape) [strides: INTS, ")
    with pytest.raises(ValueError, match="SoftMaxBackward"):
        onednn.run("SoftMaxBackward", [DY, DY])
