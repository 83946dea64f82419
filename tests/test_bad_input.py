"""What no function takes: a clear error that names the argument, nothing written, no crash."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from checks import DTYPES, Guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from backstroke.registry import OPS, Op

ALIKE = [op for op in OPS if op.family in ("activation", "softmax")]
every_op = pytest.mark.parametrize("op", ALIKE, ids=lambda op: op.name)
NAMES = {op.name: list(inspect.signature(op.function).parameters)[:2] for op in ALIKE}
A = np.ones((4, 6), np.float32)


class Strange:
    """Not an array."""


BAD_ARRAYS: dict[str, tuple[Any, type[Exception], str]] = {
    "list": ([[1.0]], TypeError, "is a list; expected a NumPy array"),
    "None": (None, TypeError, "is a NoneType"),
    "str": ("abc", TypeError, "is a str"),
    "object": (Strange(), TypeError, "is a Strange"),
    "int32": (A.astype(np.int32), TypeError, "has type int32; expected float32, float64, float16 or bfloat16"),
    "bool": (A > 0, TypeError, "has type bool"),
    "complex": (A.astype(np.complex64), TypeError, "has type complex64"),
    "object array": (A.astype(object), TypeError, "has type object"),
    "big-endian": (A.astype(">f4"), TypeError, "other byte order"),
    "longdouble": (A.astype(np.longdouble), TypeError, "has type"),
    "structured": (np.zeros((4, 6), [("a", "f4")]), TypeError, "has type"),
    "datetime": (np.zeros((4, 6), "M8[s]"), TypeError, "has type datetime64"),
    "string array": (np.full((4, 6), "a"), TypeError, "has type"),
    "masked": (np.ma.masked_array(A, A > 0), TypeError, "is a masked array"),
    "other type": (A.astype(np.float64), TypeError, "expected one type"),
    "other shape": (A[:3], ValueError, "expected one shape"),
    "other rank": (A.reshape(-1), ValueError, "expected one shape"),
    "broadcastable": (A[:1], ValueError, "expected one shape"),
}


@every_op
@pytest.mark.parametrize("case", BAD_ARRAYS)
@pytest.mark.parametrize("position", [0, 1])
def test_bad_arrays(op: Op, case: str, position: int) -> None:
    bad, error, words = BAD_ARRAYS[case]
    out = Guarded(A.shape, np.float32)
    arguments = [A, A]
    arguments[position] = bad
    names = NAMES[op.name]
    with pytest.raises(error, match=words) as caught:
        op.function(*arguments, out=out.array)
    assert any(str(caught.value).startswith(name) for name in names)
    assert out.untouched()
    with pytest.raises(error, match=words):
        op.function(*arguments)


def _read_only() -> np.ndarray:
    a = A.copy()
    a.flags.writeable = False
    return a


BAD_OUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (np.zeros((6, 4), np.float32), ValueError, r"out has shape \(6, 4\); expected \(4, 6\)"),
    "rank": (np.zeros(24, np.float32), ValueError, "out has shape"),
    "type": (np.zeros((4, 6)), TypeError, "out has type float64; expected float32"),
    "big-endian": (np.zeros((4, 6), ">f4"), TypeError, "out has type float32 in the other byte order"),
    "read-only": (_read_only(), ValueError, "out is read-only"),
    "spaced": (np.zeros((4, 12), np.float32)[:, ::2], ValueError, "out is not contiguous"),
    "reversed": (np.zeros((4, 6), np.float32)[::-1], ValueError, "out is not contiguous"),
    "broadcast": (np.broadcast_to(np.float32(0), (4, 6)), ValueError, "out is read-only"),
    "misaligned": (np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6), ValueError, "out is not aligned"),
    "list": ([0.0], TypeError, "out is a list"),
    "scalar": (np.float32(0), TypeError, "out is a NumPy scalar"),
    "object": (Strange(), TypeError, "out is a Strange"),
}


@every_op
@pytest.mark.parametrize("case", BAD_OUTS)
def test_bad_outs(op: Op, case: str) -> None:
    bad, error, words = BAD_OUTS[case]
    before = np.array(bad, copy=True) if isinstance(bad, np.ndarray) else None
    with pytest.raises(error, match=words):
        op.function(A, A, out=bad)
    if before is not None:
        assert np.array_equal(before, bad)


@every_op
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("position", [0, 1])
@settings(deadline=None, max_examples=25)
@given(shift=st.integers(-70, 70), rows=st.integers(1, 6), columns=st.integers(1, 12))
def test_outs_that_overlap(op: Op, dtype: np.dtype, position: int, shift: int, rows: int, columns: int) -> None:
    n = rows * columns
    memory = np.linspace(0.1, 0.9, 3 * 72 + n).astype(dtype)
    overlapped = memory[72 : 72 + n].reshape(rows, columns)
    out = memory[72 + shift : 72 + shift + n].reshape(rows, columns)
    other = overlapped.copy()
    arguments = (overlapped, other) if position == 0 else (other, overlapped)
    before = memory.copy()
    if 0 < abs(shift) < n:
        with pytest.raises(ValueError, match=f"out overlaps {NAMES[op.name][position]}"):
            op.function(*arguments, out=out)
        assert np.array_equal(memory, before)
    else:
        want = op.function(*arguments)
        op.function(*arguments, out=out)
        assert np.array_equal(out, want)


@every_op
@pytest.mark.parametrize("bad", ["1", None, 1j, True, [1], Strange()])
def test_bad_alphas(op: Op, bad: Any) -> None:
    if "alpha" not in (op.function.__kwdefaults__ or {}):
        return
    with pytest.raises(TypeError, match="alpha is a"):
        op.function(A, A, alpha=bad)


@every_op
def test_arrays_like_no_other(op: Op) -> None:
    """Strides that no dense array has, and a broadcast one: read as they are."""
    want = op.function(np.ones((3, 4), np.float32), np.full((3, 4), 0.5, np.float32))
    half = np.broadcast_to(np.float32(0.5), (3, 4))
    assert np.array_equal(op.function(np.broadcast_to(np.float32(1), (3, 4)), half), want)
    overlapping = np.lib.stride_tricks.as_strided(np.ones(6, np.float32), (3, 4), (4, 4))
    assert np.array_equal(op.function(overlapping, half), want)


@every_op
def test_subclasses_and_scalars(op: Op) -> None:
    class Sub(np.ndarray):
        pass

    dy, x = (a.astype(np.float32) for a in op.sample(np.random.default_rng(0), (3, 4), np.float32))
    want = op.function(dy, x)
    assert np.array_equal(op.function(dy.view(Sub), x), want)
    if op.family == "activation":
        assert op.function(np.float32(2), np.float32(0.5)).shape == ()


@every_op
def test_other_libraries_arrays(op: Op) -> None:
    torch = pytest.importorskip("torch")
    dy, x = op.sample(np.random.default_rng(0), (3, 40), np.float32)
    want = op.function(dy, x)
    got = op.function(torch.from_numpy(dy), torch.from_numpy(x))
    assert isinstance(got, torch.Tensor)
    assert np.array_equal(got.numpy(), want)
    out = torch.zeros(3, 40)
    assert op.function(torch.from_numpy(dy), x, out=out) is out
    assert np.array_equal(out.numpy(), want)
    small = [torch.from_numpy(a).to(torch.bfloat16) for a in (dy, x)]
    got = op.function(*small)
    assert got.dtype == torch.bfloat16
    assert got.shape == (3, 40)
    with pytest.raises(TypeError, match=r"cannot be read as an array: .*gradient"):
        op.function(torch.from_numpy(dy).requires_grad_(), x)
