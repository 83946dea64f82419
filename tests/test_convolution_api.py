"""What conv and conv_grad take and refuse: layouts, types, wrt, out, empty arrays, other libraries, bad input."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import BFLOAT16, DTYPES, Guarded, same_bits
from convolution_problems import Problem, problem

import backstroke as bs
from backstroke.convolution import ConvGrads, conv, conv_grad, plan, reference
from backstroke.jit import target

P = problem(2, 4, 6, (5, 6), (3, 2), group=2, pads=((1, 0), (2, 1)), strides=(1, 2), dilations=(2, 1))
NAMES = ("x", "w", "b")
DTYPE_IDS = [d.name for d in DTYPES]


def arrays_of(p: Problem = P, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    """dy, x, w, b of small integers: sums are exact in every type."""
    return p.whole(dtype, most=2)


def as_grads(grads: Any) -> list[np.ndarray]:
    return [a for a in grads if a is not None]


def guards(p: Problem = P, dtype: Any = np.float32) -> dict[str, Guarded]:
    return {name: Guarded(shape, dtype) for name, shape in zip(NAMES, (p.x, p.w, p.shapes.b), strict=True)}


# ---- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_exact_on_integers(rank: int, layout: str, dtype: np.dtype) -> None:
    p = problem(2, 4, 6, (5, 4, 3)[:rank], (3, 2, 2)[:rank], group=2, pads=1, strides=2, layout=layout)
    dy, x, w, b = arrays_of(p, dtype)
    y, grads = conv(x, w, b, **p.options), conv_grad(dy, x, w, **p.options)
    assert isinstance(grads, ConvGrads)
    expected = reference.conv_grad(dy, x, w, **p.options)
    for ours, theirs in [(y, reference.conv(x, w, b, **p.options)), *zip(grads, expected, strict=True)]:
        assert ours.dtype == dtype
        assert ours.flags.c_contiguous
        assert np.array_equal(ours.astype(np.float64), theirs)


@pytest.mark.parametrize(
    "wrt", [names for count in (1, 2, 3) for names in itertools.permutations(NAMES, count)], ids="".join
)
def test_wrt_and_out(wrt: tuple[str, ...]) -> None:
    dy, x, w, _ = arrays_of()
    whole = dict(zip(NAMES, conv_grad(dy, x, w, **P.options), strict=True))
    outs = guards()
    given = tuple(outs[name].array for name in wrt)
    for out in (None, given, *([given[0]] if len(wrt) == 1 else [(*given[:-1], None)])):
        grads = conv_grad(dy, x, w, wrt=wrt, out=out, **P.options)
        for name, gradient in zip(NAMES, grads, strict=True):
            assert (gradient is None) == (name not in wrt)
            assert gradient is None or same_bits(gradient, whole[name])
            assert out is not given or gradient is None or gradient is outs[name].array
    assert all(out.intact() for out in outs.values())
    assert all(outs[name].untouched() for name in NAMES if name not in wrt)
    assert conv_grad(dy, x, w, wrt=list(wrt), **P.options)._fields == ("dx", "dw", "db")


def test_wrt_may_be_one_name() -> None:
    dy, x, w, _ = arrays_of()
    grads = conv_grad(dy, x, w, wrt="w", **P.options)
    assert grads.dx is None
    assert grads.db is None
    assert same_bits(grads.dw, conv_grad(dy, x, w, **P.options).dw)


def test_out_of_conv() -> None:
    _, x, w, b = arrays_of()
    out = Guarded(P.shapes.y, np.float32)
    assert conv(x, w, b, out=out.array, **P.options) is out.array
    assert same_bits(out.array, conv(x, w, b, **P.options))
    assert out.intact()


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_any_strides(dtype: np.dtype) -> None:
    """Reversed, spaced, transposed, misaligned and broadcast arrays are read as they are."""
    p = problem(2, 4, 4, (6, 6), (3, 3), pads=1)
    dy, x, w, b = arrays_of(p, dtype)
    want, grads = conv(x, w, b, **p.options), conv_grad(dy, x, w, **p.options)

    def odd(a: np.ndarray) -> np.ndarray:
        memory = np.zeros(2 * a.nbytes + 1, np.uint8)[1:].view(dtype).reshape(*a.shape[:-1], 2 * a.shape[-1])
        memory[..., ::-2] = a
        return memory[..., ::-2]

    def channels_last(a: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)

    for change in (odd, channels_last, np.asfortranarray):
        assert same_bits(conv(change(x), change(w), odd(b), **p.options), want)
        for ours, theirs in zip(conv_grad(*map(change, (dy, x, w)), **p.options), grads, strict=True):
            assert same_bits(ours, theirs)
    ones = np.broadcast_to(np.ones((), dtype), x.shape)
    for ours, theirs in zip(
        conv_grad(ones, ones, w, **p.options), conv_grad(ones.copy(), ones.copy(), w, **p.options), strict=True
    ):
        assert same_bits(ours, theirs)


def test_inputs_are_left_alone() -> None:
    given = arrays_of()
    before = [a.copy() for a in given]
    for a in given:
        a.flags.writeable = False
    conv(*given[1:], **P.options)
    conv_grad(*given[:3], **P.options)
    assert all(map(same_bits, given, before))


def test_one_array_for_several_arguments() -> None:
    a = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    expected = reference.conv_grad(a, a, a)
    for ours, theirs in zip(conv_grad(a, a, a), expected, strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_torch_in_and_out(kind: str) -> None:
    torch = pytest.importorskip("torch")
    dy, x, w, b = (torch.from_numpy(a).to(getattr(torch, kind)) for a in arrays_of())
    dtype = BFLOAT16 if kind == "bfloat16" else np.dtype(kind)
    want = conv_grad(*arrays_of(dtype=dtype)[:3], **P.options)
    for memory in (torch.contiguous_format, torch.channels_last):
        y = conv(x.contiguous(memory_format=memory), w, b, **P.options)
        grads = conv_grad(dy, x.contiguous(memory_format=memory), w, wrt=("b", "x", "w"), **P.options)
        assert all(isinstance(a, torch.Tensor) and a.dtype == x.dtype for a in (y, *grads))
        for ours, theirs in zip(grads, want, strict=True):
            assert np.array_equal(ours.double().numpy(), theirs.astype(np.float64))
    out = torch.zeros(P.x, dtype=x.dtype)
    assert conv_grad(dy, x, w, wrt="x", out=out, **P.options).dx is out
    assert torch.equal(out, grads.dx)
    assert isinstance(conv_grad(arrays_of(dtype=dtype)[0], x, w, wrt="x", **P.options).dx, np.ndarray)


# ---- corners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "size", "group"),
    [
        (0, 4, 6, (5, 6), 2),
        (2, 0, 6, (5, 6), 2),
        (2, 4, 0, (5, 6), 2),
        (2, 0, 0, (5, 6), 1),
        (0, 0, 0, (5, 6), 3),
        (2, 4, 6, (0, 6), 2),
        (2, 4, 6, (0, 0), 1),
    ],
)
def test_empty_arrays(batch: int, channels: int, outputs: int, size: tuple[int, ...], group: int, layout: str) -> None:
    p = problem(batch, channels, outputs, size, (3, 2), group=group, pads=((2, 1), (1, 3)), layout=layout)
    dy, x, w, b = arrays_of(p)
    places = guards(p)
    given = tuple(places[name].array for name in NAMES)
    for grads in (conv_grad(dy, x, w, **p.options), conv_grad(dy, x, w, out=given, **p.options)):
        for ours, theirs in zip(grads, reference.conv_grad(dy, x, w, **p.options), strict=True):
            assert ours.shape == theirs.shape
            assert np.array_equal(ours, theirs)
    assert all(place.intact() for place in places.values())
    for bias in (None, b):
        y = conv(x, w, bias, **p.options)
        assert y.shape == p.shapes.y
        assert np.array_equal(y, reference.conv(x, w, bias, **p.options))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(
    "p",
    [
        problem(2, 3, 4, (2, 3), (5, 6), pads=((2, 1), (0, 3))),  # a kernel larger than the input
        problem(2, 3, 4, (4,), (2,), pads=((5, 7),)),  # pads larger than the kernel: windows that see nothing
        problem(1, 2, 2, (3, 3), (1, 1), pads=4, strides=3),  # most windows see nothing
        problem(1, 2, 2, (7, 7), (1, 1), strides=4),  # most of x is seen by none
        problem(1, 2, 2, (2,), (2,), dilations=50, pads=((49, 50),)),  # taps further apart than x is long
        problem(1, 2, 3, (1, 1, 1), (3, 3, 3), auto_pad="same_upper"),
        problem(1, 2, 3, (5,), (2,), auto_pad="SAME_LOWER", strides=2),
        problem(1, 2, 3, (5,), (5,), auto_pad="Valid", strides=9),
    ],
    ids=str,
)
def test_odd_geometries(p: Problem, layout: str) -> None:
    n, c, *size = p.x
    p = problem(n, c, p.w[0], size, p.w[2:], **{**p.options, "layout": layout})
    dy, x, w, b = arrays_of(p)
    assert np.array_equal(conv(x, w, b, **p.options), reference.conv(x, w, b, **p.options))
    for ours, theirs in zip(conv_grad(dy, x, w, **p.options), reference.conv_grad(dy, x, w, **p.options), strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_sums(bad: float) -> None:
    """Where all windows lie inside and side by side: exactly those sums that the number is in."""
    p = problem(1, 2, 2, (4, 4), (2, 2), strides=2)
    for position, name in enumerate(("dy", "x", "w")):
        given = [np.ones(shape, np.float32) for shape in (p.shapes.y, p.x, p.w)]
        given[position].flat[0] = bad
        dy, x, w = given
        answers = [*conv_grad(dy, x, w, **p.options), conv(x, w, **p.options)]
        wanted = [*reference.conv_grad(dy, x, w, **p.options), reference.conv(x, w, **p.options)]
        for ours, theirs in zip(answers, wanted, strict=True):
            assert np.array_equal(ours, theirs, equal_nan=True), name


# ---- refused --------------------------------------------------------------------------------------------------------

DY, X, W, B = arrays_of()
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"strides": 0}, ValueError, "strides"),
    ({"strides": -1}, ValueError, "strides"),
    ({"strides": (1, 0)}, ValueError, "strides"),
    ({"strides": (1,)}, ValueError, "strides"),
    ({"strides": 1.0}, TypeError, "strides"),
    ({"strides": True}, TypeError, "strides"),
    ({"strides": None}, TypeError, "strides"),
    ({"strides": 2**63}, ValueError, "64 bits"),
    ({"strides": 2**70}, ValueError, "64 bits"),
    ({"dilations": 0}, ValueError, "dilations"),
    ({"dilations": -2}, ValueError, "dilations"),
    ({"dilations": (1, 1, 1)}, ValueError, "dilations"),
    ({"dilations": "1"}, TypeError, "dilations"),
    ({"dilations": 2**40}, ValueError, "w: no window fits"),
    ({"dilations": 2**62, "pads": 2**63}, ValueError, "64 bits"),
    ({"pads": -1}, ValueError, "pads"),
    ({"pads": ((1, -1), (0, 0))}, ValueError, "pads"),
    ({"pads": (1, 1, 1, 1)}, ValueError, "pads"),
    ({"pads": ((1, 1),)}, ValueError, "pads"),
    ({"pads": 0.5}, TypeError, "pads"),
    ({"pads": 2**62}, ValueError, "64 bits"),
    ({"pads": 0, "dilations": (3, 1)}, ValueError, "w: no window fits on spatial axis 0"),
    ({"auto_pad": "same"}, ValueError, "auto_pad"),
    ({"auto_pad": None}, TypeError, "auto_pad"),
    ({"auto_pad": "same_upper"}, ValueError, r"pads: .* given with auto_pad='same_upper'"),
    ({"auto_pad": "valid"}, ValueError, r"pads: .* given with auto_pad='valid'"),
    ({"group": 0}, ValueError, "group"),
    ({"group": -2}, ValueError, "group"),
    ({"group": 1.0}, TypeError, "group"),
    ({"group": True}, TypeError, "group"),
    ({"group": (2,)}, TypeError, "group"),
    ({"group": 1}, ValueError, r"w: shape \(6, 2, 3, 2\) given, 2 input channels in each of 1 groups"),
    ({"group": 3}, ValueError, "w: "),
    ({"group": 2**64}, ValueError, "w: "),
    ({"layout": "NHWC"}, ValueError, "layout"),
    ({"layout": 3}, TypeError, "layout"),
    ({"layout": "NXC"}, ValueError, "w: "),
]


@pytest.mark.parametrize(
    ("options", "error", "words"), BAD_OPTIONS, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_bad_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    outs, y = guards(), Guarded(P.shapes.y, np.float32)
    options = {**P.options, **options}
    with pytest.raises(error, match=words):
        conv_grad(DY, X, W, out=tuple(outs[name].array for name in NAMES), **options)
    with pytest.raises(error, match=words):
        conv(X, W, B, out=y.array, **options)
    with pytest.raises(error, match=words):
        plan("conv_grad", X.shape, W.shape, **options)
    assert y.untouched()
    assert all(out.untouched() for out in outs.values())


BAD_ARRAYS: dict[str, tuple[Any, type[Exception]]] = {
    "list": (np.ndarray.tolist, TypeError),
    "None": (lambda a: None, TypeError),
    "int32": (lambda a: a.astype(np.int32), TypeError),
    "bool": (lambda a: a > 0, TypeError),
    "complex": (lambda a: a.astype(np.complex64), TypeError),
    "object": (lambda a: a.astype(object), TypeError),
    "other byte order": (lambda a: a.astype(">f4"), TypeError),
    "masked": (lambda a: np.ma.masked_array(a, a > 0), TypeError),
    "other type": (lambda a: a.astype(np.float64), TypeError),
    "16 bits": (lambda a: a.astype(ml_dtypes.bfloat16), TypeError),
    "no axes": (lambda a: np.float32(1), ValueError),
    "two axes": (lambda a: a[0, 0], ValueError),
    "three axes": (lambda a: a[0], ValueError),
    "five axes": (lambda a: a[None], ValueError),
    "six axes": (lambda a: a[None, None], ValueError),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_bad_arrays(position: int, case: str) -> None:
    spoil, error = BAD_ARRAYS[case]
    outs = guards()
    given: list[Any] = [DY, X, W]
    given[position] = spoil(given[position])
    with pytest.raises(error, match=r"^(dy|x|w)[: ]"):
        conv_grad(*given, out=tuple(outs[name].array for name in NAMES), **P.options)
    assert all(out.untouched() for out in outs.values())
    if position:
        with pytest.raises(error, match=r"^(x|w|b)[: ]"):
            conv(*given[1:], B, **P.options)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 6, 3, 5), r"dy: shape \(2, 6, 3, 5\) given, expected \(2, 6, 2, 4\)"),
        ((2, 6, 2, 3), "dy: shape"),
        ((1, 6, 2, 4), "dy: shape"),
        ((2, 4, 2, 4), "dy: shape"),
        ((2, 2, 4, 6), "dy: shape"),
        ((0, 6, 2, 4), "dy: shape"),
    ],
)
def test_dy_has_the_shape_that_the_geometry_gives(shape: tuple[int, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        conv_grad(np.ones(shape, np.float32), X, W, **P.options)


@pytest.mark.parametrize(
    "w",
    [
        np.ones((6, 2, 0, 2), np.float32),
        np.ones((6, 2, 3, 0), np.float32),
        np.ones((6, 3, 3, 2), np.float32),
        np.ones((5, 2, 3, 2), np.float32),
        np.ones((6, 0, 3, 2), np.float32),
        np.ones((6, 2, 3, 20), np.float32),
    ],
    ids=lambda w: str(w.shape),
)
def test_bad_weights(w: np.ndarray) -> None:
    for call in (lambda: conv(X, w, **P.options), lambda: conv_grad(DY, X, w, **P.options)):
        with pytest.raises(ValueError, match=r"^w: "):
            call()


@pytest.mark.parametrize(
    ("b", "error"),
    [
        (np.ones(5, np.float32), ValueError),
        (np.ones((6, 1), np.float32), ValueError),
        (np.float32(1), ValueError),
        (np.ones(6), TypeError),
        ([1.0] * 6, TypeError),
    ],
    ids=["short", "two axes", "no axes", "float64", "list"],
)
def test_bad_bias(b: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^b[: ]"):
        conv(X, W, b, **P.options)


@pytest.mark.parametrize(
    ("wrt", "error"),
    [
        ((), ValueError),
        ("", ValueError),
        ("xw", ValueError),
        (("x", "x"), ValueError),
        (("x", "y"), ValueError),
        (("dx",), ValueError),
        (("x", None), TypeError),
        ((1,), TypeError),
        (None, TypeError),
        ({"x"}, TypeError),
        (0, TypeError),
    ],
)
def test_bad_wrt(wrt: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^wrt: "):
        conv_grad(DY, X, W, wrt=wrt, **P.options)


def _read_only(shape: tuple[int, ...]) -> np.ndarray:
    a = np.zeros(shape, np.float32)
    a.flags.writeable = False
    return a


BAD_OUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (np.zeros((2, 4, 6, 5), np.float32), ValueError, "has shape"),
    "type": (np.zeros(P.x), TypeError, "has type"),
    "read-only": (_read_only(P.x), ValueError, "is read-only"),
    "spaced": (np.zeros((2, 4, 5, 12), np.float32)[..., ::2], ValueError, "is not contiguous"),
    "turned": (np.zeros(P.x[::-1], np.float32).T, ValueError, "is not contiguous"),
    "misaligned": (np.zeros(961, np.uint8)[1:].view(np.float32).reshape(P.x), ValueError, "is not aligned"),
    "list": ([0.0], TypeError, "is a list"),
}


@pytest.mark.parametrize("case", BAD_OUTS)
def test_bad_outs(case: str) -> None:
    bad, error, words = BAD_OUTS[case]
    dw = Guarded(P.w, np.float32)
    with pytest.raises(error, match=f"^out {words}"):
        conv_grad(DY, X, W, wrt="x", out=bad, **P.options)
    with pytest.raises(error, match=rf"^out\[1\] {words}"):
        conv_grad(DY, X, W, wrt=("w", "x"), out=(dw.array, bad), **P.options)
    assert dw.untouched()
    p = problem(2, 6, 4, (5, 6), (1, 1))  # its y has the shape of P's x
    with pytest.raises(error, match=f"^out {words}"):
        conv(np.ones(p.x, np.float32), np.ones(p.w, np.float32), out=bad, **p.options)


@pytest.mark.parametrize(
    ("wrt", "out", "error"),
    [
        (("x", "w"), np.zeros(P.x, np.float32), TypeError),
        (("x", "w"), [np.zeros(P.x, np.float32), np.zeros(P.w, np.float32)], TypeError),
        (("x", "w"), (np.zeros(P.x, np.float32),), ValueError),
        (("x",), (), ValueError),
        (("x",), (np.zeros(P.x, np.float32), None), ValueError),
    ],
)
def test_out_fits_wrt(wrt: Any, out: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^out: "):
        conv_grad(DY, X, W, wrt=wrt, out=out, **P.options)


def test_outs_overlap_nothing() -> None:
    p = problem(2, 3, 3, (4,), (1,))
    dy, x, w, b = arrays_of(p)
    for name, a, wrt in (("dy", dy, "x"), ("x", x, "x"), ("w", w, "w")):
        with pytest.raises(ValueError, match=f"^out overlaps {name}"):
            conv_grad(dy, x, w, wrt=wrt, out=a, **p.options)
    with pytest.raises(ValueError, match=r"^out overlaps x"):
        conv(x, w, b, out=x, **p.options)
    memory = np.zeros(2 * x.size, np.float32)
    part, other = memory[: x.size].reshape(x.shape), memory[x.size - 1 :][: x.size].reshape(x.shape)
    part[...] = x
    with pytest.raises(ValueError, match=r"^out overlaps x"):
        conv(part, w, b, out=other, **p.options)
    square = problem(1, 3, 3, (3,), (3,), pads=1)
    dx = np.zeros((1, 3, 3), np.float32)
    with pytest.raises(ValueError, match=r"^out\[1\] overlaps out\[0\]"):
        conv_grad(*arrays_of(square)[:3], wrt=("x", "b"), out=(dx, dx.reshape(-1)[:3]), **square.options)


def test_results_too_large_for_any_memory() -> None:
    x, w = np.ones((1, 1, 1), np.float32), np.ones((1, 1, 1), np.float32)
    with pytest.raises((ValueError, MemoryError)):
        conv(x, w, pads=2**61)
    with pytest.raises(ValueError, match="too large"):
        conv(x.reshape(1, 1, 1, 1), w.reshape(1, 1, 1, 1), pads=2**40)


def test_strides_that_would_never_be_compiled() -> None:
    """Where windows meet, the gradient of x is one sweep for each place within a stride; w and b need none."""
    x, w = np.ones((1, 1, 41, 41), np.float32), np.ones((1, 1, 41, 41), np.float32)
    dy = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(bs.UnsupportedError, match=r"strides: .*1600 interleaved convolutions"):
        conv_grad(dy, x, w, strides=40)
    assert (conv_grad(dy, x, w, strides=40, wrt="w").dw == 1).all()
    with pytest.raises(bs.UnsupportedError, match="strides"):
        plan("conv_grad", (1, 1, 2**31), (1, 1, 3), strides=2**20, dilations=2**20)


def test_large_strides_over_windows_that_lie_apart() -> None:
    x, w = np.ones((1, 1, 40, 40), np.float32), np.full((1, 1, 1, 1), 3, np.float32)
    dx = conv_grad(np.ones((1, 1, 1, 1), np.float32), x, w, strides=40).dx
    assert dx[0, 0, 0, 0] == dx.sum() == 3
    assert "dx=" in repr(plan("conv_grad", (1, 1, 2**31), (1, 1, 3), strides=2**31))


def test_plan_says_what_is_chosen() -> None:
    text = repr(plan("conv_grad", (8, 64, 56, 56), (64, 64, 3, 3), pads=1))
    assert "dx" in text
    assert "dw" in text
    assert repr(plan("conv", (8, 64, 56, 56), (64, 64, 3, 3), pads=1, dtype=ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("relu", P.x, P.w), {}, ValueError, "op: "),
        (("conv", (2, 4.0, 5, 6), P.w), {}, TypeError, "x_shape: "),
        (("conv", P.x, (6, -2, 3, 2)), {}, ValueError, "w_shape: "),
        (("conv", (0, *P.x[1:]), P.w), {}, ValueError, "empty"),
        (("conv", P.x, P.w), {"dtype": "int32"}, TypeError, "dtype: "),
        (("conv", P.x, P.w), {"dtype": "no such"}, TypeError, "dtype: "),
        (("conv", P.x, P.w), {"dtype": None}, TypeError, "dtype: "),
    ],
)
def test_bad_plans(arguments: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plan(*arguments, **{**P.options, **options})


@pytest.mark.parametrize("name", target.runnable())
def test_subnormal_bfloat16(name: str) -> None:
    """Zeros to the instruction that multiplies pairs, numbers where there is none, and where it is not used."""
    tiny = np.full((1, 6, 4, 5), 1e-39, BFLOAT16)
    with target.using(name) as chosen:
        found = {inputs: bs.conv(tiny[:, :inputs], np.full((3, inputs, 1, 1), 2, BFLOAT16)) for inputs in (5, 6)}
    for inputs, y in found.items():
        exact = (tiny[0, 0, 0, 0].astype(np.float64) * 2 * inputs).astype(BFLOAT16)
        assert (y == (0 if chosen.has_pairs and inputs % 2 == 0 else exact)).all()
