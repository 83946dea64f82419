from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pooling_problems import Problem, problems

from backstroke.geometry import Geometry, ceil_rounding, integers, spatial_axes, tfjs_pool_2d, window_count


def test_it_is_a_value() -> None:
    one = Geometry.of([5, 6], 3, strides=(1, 2), pads=1)
    same = Geometry.of(np.array([5, 6]), [np.int64(3), 3], strides=[1, 2], pads=[(1, 1), [1, 1]], dilations=np.int32(1))
    assert one == same
    assert hash(one) == hash(same)
    assert one.output_size == (5, 3)
    assert all(type(n) is int for field in (same.input_size, same.kernel, same.strides) for n in field)
    with pytest.raises(AttributeError):
        one.kernel = (1, 1)  # type: ignore[misc]


def test_strides_default_to_the_kernel() -> None:
    assert Geometry.of([9, 8], (3, 2)).strides == (3, 2)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pads_have_three_forms(rank: int) -> None:
    def pads(value: object) -> object:
        return Geometry.of([9] * rank, 3, pads=value).pads  # type: ignore[arg-type]

    assert pads(2) == ((2, 2),) * rank
    assert pads(tuple(range(rank))) == tuple((n, n) for n in range(rank))
    assert pads(tuple((n, n + 1) for n in range(rank))) == tuple((n, n + 1) for n in range(rank))


@pytest.mark.parametrize(
    ("size", "extent", "stride", "pads", "counts"),
    [
        # counts in the order floor, ceil, ceil_inside, round, trunc
        (5, 2, 2, (0, 0), (2, 3, 3, 3, 2)),  # 1.5 strides: half goes up
        (7, 2, 3, (0, 0), (2, 3, 3, 3, 2)),  # 5/3
        (6, 2, 3, (0, 0), (2, 3, 2, 2, 2)),  # 4/3, and the third window would start at 6
        (5, 1, 3, (0, 0), (2, 3, 2, 2, 2)),  # the third window would start at 6, behind the input
        (4, 2, 2, (0, 1), (2, 3, 2, 3, 2)),  # the third window would start in the end padding
        (4, 2, 2, (1, 0), (2, 3, 3, 3, 2)),  # the third one starts at 3, the last element
        (2, 4, 1, (0, 0), (-1, -1, -1, -1, -1)),
        (2, 4, 4, (0, 0), (0, 1, 1, 1, 0)),  # 0.5 windows
        (1, 4, 2, (0, 0), (-1, 0, 0, 0, 0)),  # -0.5: trunc and floor part, round goes up to 0
        (0, 4, 3, (0, 0), (-1, 0, 0, 0, 0)),
    ],
)
def test_rounding(size: int, extent: int, stride: int, pads: tuple[int, int], counts: tuple[int, ...]) -> None:
    modes = ("floor", "ceil", "ceil_inside", "round", "trunc")
    assert tuple(window_count(size, extent, stride, pads, mode) for mode in modes) == counts  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "pads"), [("same_upper", (0, 1)), ("same_lower", (1, 0)), ("SAME_Upper", (0, 1))])
def test_same_puts_the_odd_element_where_its_name_says(mode: str, pads: tuple[int, int]) -> None:
    geometry = Geometry.of([4], 3, strides=2, auto_pad=mode)
    assert geometry.pads == (pads,)
    assert geometry.output_size == (2,)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 7), st.integers(1, 4), st.booleans(), st.booleans())
def test_same_gives_the_input_over_the_stride_with_least_padding(
    size: int, kernel: int, stride: int, dilation: int, upper: bool, ceil_mode: bool
) -> None:
    name = "same_upper" if upper else "same_lower"
    rounding = ceil_rounding(ceil_mode)
    geometry = Geometry.of([size], kernel, strides=stride, dilations=dilation, auto_pad=name, rounding=rounding)
    count = math.ceil(Fraction(size, stride))
    total = max(0, (count - 1) * stride + geometry.extents[0] - size)
    begin = total // 2 if upper else total - total // 2
    assert geometry.output_size == (count,)
    assert geometry.pads == ((begin, total - begin),)


def test_valid_honours_the_rounding_as_zero_pads_do() -> None:
    # ONNX' own shape inference and ONNX Runtime do so; the operators' page says the output is the same either way.
    assert Geometry.of([8], 3, strides=2, auto_pad="valid", rounding="ceil_inside").output_size == (4,)
    assert Geometry.of([8], 3, strides=2, auto_pad="valid").output_size == (3,)


@settings(deadline=None)
@given(problems())
def test_taps_interior_and_divisors_are_what_counting_gives(problem: Problem) -> None:
    g = problem.geometry
    counted = {name: g.divisors(name) for name in ("valid", "padded", "kernel")}  # type: ignore[arg-type]
    for axis in range(g.rank):
        size, (begin, end) = g.input_size[axis], g.pads[axis]
        for o in range(g.output_size[axis]):
            all_taps = [o * g.strides[axis] - begin + t * g.dilations[axis] for t in range(g.kernel[axis])]
            valid = [i for i in all_taps if 0 <= i < size]
            padded = [i for i in all_taps if -begin <= i < size + end]
            assert g.start(axis, o) == all_taps[0]
            assert list(g.axis_taps(axis, o)) == valid
            assert (o in g.interior(axis)) == (all_taps[0] >= 0 and all_taps[-1] < size)
            assert counted["valid"][axis][o] == max(1, len(valid))
            assert counted["padded"][axis][o] == max(1, len(padded))
            assert counted["kernel"][axis][o] == g.kernel[axis]
        assert all(len(counted[name][axis]) == g.output_size[axis] for name in counted)
    for o in itertools.product(*map(range, g.output_size)):
        assert list(g.taps(o)) == list(itertools.product(*(g.axis_taps(axis, p) for axis, p in enumerate(o))))


def test_divisor_of_a_window_that_hangs_over() -> None:
    # Windows start at -1, 2, 5; the last has taps 5, 6, 7 on input 0..5 with one element of end padding.
    geometry = Geometry.of([6], 3, strides=3, pads=((1, 1),), rounding="ceil_inside")
    assert [list(geometry.divisors(c)[0]) for c in ("valid", "padded", "kernel")] == [[2, 3, 1], [3, 3, 2], [3, 3, 3]]


def test_divisor_of_a_window_that_sees_nothing_is_one() -> None:
    geometry = Geometry.of([2], 1, strides=1, pads=2)
    assert list(geometry.divisors("valid")[0]) == [1] * 6
    wide = Geometry((5,), (3,), (1,), (3,), (1,), ((0, 0),))  # TensorFlow.js' "ceil": the third window starts at 6
    assert list(wide.divisors("padded")[0]) == [1, 1, 1]


def test_negative_pads_crop() -> None:
    geometry = Geometry((4,), (1,), (2,), (1,), (1,), ((-1, -1),))
    assert list(geometry.axis_taps(0, 0)) == [1, 2]
    assert geometry.interior(0) == range(1)


@pytest.mark.parametrize("large", [2**31, 2**32 + 1, 2**63, 2**64 + 3, 10**30])
def test_large_numbers_are_exact(large: int) -> None:
    geometry = Geometry.of([large, 4], 3, strides=2, pads=1)
    assert geometry.output_size == ((large + 2 - 3) // 2 + 1, 2)
    last = geometry.output_size[0] - 1
    assert [i for i in range(2 * last - 1, 2 * last + 2) if i < large] == list(geometry.axis_taps(0, last))
    assert Geometry.of([5], 1, dilations=large).output_size == (5,)
    assert Geometry.of([5], 1, strides=large).output_size == (1,)
    assert Geometry.of([5], large, pads=large, strides=1).output_size == (large + 6,)
    with pytest.raises(ValueError, match=r"kernel.*axis 1"):
        Geometry.of([large, 4], (1, large))


def test_require_int64_and_divisors_refuse_what_machine_code_cannot_hold() -> None:
    Geometry.of([2**62, 5], 3, strides=2).require_int64()
    for geometry in (Geometry.of([2**63], 2), Geometry.of([5], 1, strides=2**63), Geometry.of([5], 1, pads=2**62)):
        with pytest.raises(ValueError, match=r"axis 0.*64 bits"):
            geometry.require_int64()
        with pytest.raises(ValueError, match="64 bits"):
            geometry.divisors("valid")


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"kernel": 0}, ValueError, "kernel"),
        ({"kernel": -3}, ValueError, "kernel"),
        ({"kernel": True}, TypeError, "kernel"),
        ({"kernel": 2.0}, TypeError, "kernel"),
        ({"kernel": "3"}, TypeError, "kernel"),
        ({"kernel": None}, TypeError, "kernel"),
        ({"kernel": (3,)}, ValueError, "kernel"),
        ({"kernel": (3, 3, 3)}, ValueError, "kernel"),
        ({"kernel": ()}, ValueError, "kernel"),
        ({"kernel": np.array([1.5, 2.0])}, TypeError, "kernel"),
        ({"kernel": 10}, ValueError, "kernel"),
        ({"strides": 0}, ValueError, "strides"),
        ({"strides": (1, -1)}, ValueError, "strides"),
        ({"strides": (1, 0.5)}, TypeError, "strides"),
        ({"strides": (1, np.True_)}, TypeError, "strides"),
        ({"dilations": 0}, ValueError, "dilations"),
        ({"dilations": (1, 1, 1)}, ValueError, "dilations"),
        ({"pads": -1}, ValueError, "pads"),
        ({"pads": 0.0}, TypeError, "pads"),
        ({"pads": (1, 1, 1, 1)}, ValueError, "pads"),
        ({"pads": ((1, 1),)}, ValueError, "pads"),
        ({"pads": ((1, 1), (1,))}, ValueError, "pads"),
        ({"pads": ((1, 1), 1)}, TypeError, "pads"),
        ({"pads": ((1, 1), (1, -1))}, ValueError, "pads"),
        ({"auto_pad": "same"}, ValueError, "auto_pad"),
        ({"auto_pad": None}, TypeError, "auto_pad"),
        ({"auto_pad": "valid", "pads": 1}, ValueError, "pads.*auto_pad"),
        ({"auto_pad": "same_lower", "pads": ((0, 0), (0, 1))}, ValueError, "pads.*auto_pad"),
        ({"rounding": "up"}, ValueError, "rounding"),
        ({"input_size": ()}, ValueError, "input_size"),
        ({"input_size": (1, 2, 3, 4), "kernel": 1}, ValueError, "input_size"),
        ({"input_size": (4, -1)}, ValueError, "input_size"),
        ({"input_size": (4, 4.0)}, TypeError, "input_size"),
        ({"input_size": (0, 4), "kernel": 1}, ValueError, "axis 0"),
        ({"input_size": (4, 0), "auto_pad": "same_upper"}, ValueError, "axis 1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        Geometry.of(**({"input_size": (6, 6), "kernel": 3} | arguments))  # type: ignore[arg-type]
    assert "expected" in str(caught.value) or "no window fits" in str(caught.value)


def test_ceil_mode_must_be_a_bool() -> None:
    assert (ceil_rounding(False), ceil_rounding(True)) == ("floor", "ceil_inside")
    with pytest.raises(TypeError, match="ceil_mode"):
        ceil_rounding(1)  # type: ignore[arg-type]


def test_an_input_of_length_zero_may_be_all_padding() -> None:
    geometry = Geometry.of([0], 2, strides=1, pads=1)
    assert geometry.output_size == (1,)
    assert list(geometry.axis_taps(0, 0)) == []


def test_require_output() -> None:
    geometry = Geometry.of([5, 5], 3, strides=2)
    geometry.require_output("dy", [2, 2])
    with pytest.raises(ValueError, match=r"dy: spatial size \(2, 3\) given, expected \(2, 2\)"):
        geometry.require_output("dy", (2, 3))


def test_spatial_axes() -> None:
    assert list(spatial_axes((1, 2, 3, 4), "NCX", "x")) == [2, 3]
    assert list(spatial_axes((1, 2, 3), "NXC", "x")) == [1]
    for shape, layout, error in (((1, 2), "NCX", ValueError), ((1,) * 6, "NXC", ValueError), ((1,) * 4, 0, TypeError)):
        with pytest.raises(error):
            spatial_axes(shape, layout, "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layout: 'NHWC' given"):
        spatial_axes((1,) * 4, "NHWC", "x")


def test_integers_of_any_number() -> None:
    assert integers("shape", np.array([2, 3]), None, 0) == (2, 3)
    with pytest.raises(ValueError, match="shape"):
        integers("shape", [2, -3], None, 0)


def test_tfjs_number_pad_counts_with_the_height() -> None:
    narrow, _ = tfjs_pool_2d((5, 5), [3, 1], 1, 0)
    assert narrow.output_size == (3, 3)
    assert tfjs_pool_2d((5, 5), [3, 1], 1, "valid")[0].output_size == (3, 5)
    assert tfjs_pool_2d((5, 5), [3, 1], 1, [[9, 9], [0, 0], [0, 0], [9, 9]])[0].output_size == (3, 5)
    wide, slices = tfjs_pool_2d((5, 5), [1, 3], 1, 0)
    assert wide.output_size == (5, 5)
    assert list(wide.axis_taps(1, 4)) == [4]
    assert slices == (slice(0, 5, 1), slice(0, 5, 1))


def test_tfjs_fractions_step_over_windows_that_see_nothing() -> None:
    geometry, slices = tfjs_pool_2d((8, 8), 2, 1.5, "valid")  # origins 0, 1.5, 3, 4.5, 6
    assert slices == (slice(0, 5, 2),) * 2
    assert (geometry.strides, geometry.output_size) == ((3, 3), (3, 3))
    geometry, slices = tfjs_pool_2d((8, 8), 2, 1.5, 0.5)  # origins -0.5, 1, 2.5, 4, 5.5
    assert slices == (slice(1, 5, 2),) * 2
    assert [geometry.start(0, o) for o in range(2)] == [1, 4]
    assert tfjs_pool_2d((8, 8), 2, 1, 0.5)[0].output_size == (0, 0)
    assert tfjs_pool_2d((8, 8), 0, 1, "valid")[0].output_size == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        (2, 1, "full"),
        (2, 1, None),
        (2, 1, True),
        (2, 1, 0, "up"),
        (2, 1, math.nan),
        (2, 1, math.inf),
        (2, 1, [0, 1, 1, 0]),
        (2, 1, [[1, 1], [1, 1]]),
        (2, 0, "valid"),
        (2, -1, "same"),
        (2, 0.1, "same"),
        (2.5, 1, "valid"),
        ([2], 1, "valid"),
        ("2", 1, "valid"),
        (8, 1, "valid"),
    ],
)
def test_tfjs_refuses(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError):
        tfjs_pool_2d((6, 6), *arguments)  # type: ignore[arg-type]
