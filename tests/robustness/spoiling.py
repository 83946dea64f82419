"""What random calls are made of: strange values, arrays that are spoilt, and for how long it goes on.

ROBUSTNESS_SECONDS (10; CI 60; once 1200) is the time for all tests of this kind together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from backstroke.registry import OPS

# There are as many tests as ops, one for each dialect, and five for the rest.
SECONDS = float(os.environ.get("ROBUSTNESS_SECONDS", "10")) / (len(OPS) + 8)
ALLOWED = (TypeError, ValueError, NotImplementedError, MemoryError)
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
NUMBERS = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2, 3, 5, 7, 2**31, 2**40, 2**62, 2**63, 2**64, 10**30])
STRANGE: st.SearchStrategy[Any] = st.one_of(
    NUMBERS,
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from(
        ["NCX", "NXC", "same_upper", "SAME_LOWER", "valid", "none", "x", "xw", b"x", 1j, object(), [], (), {}]
    ),
    st.lists(NUMBERS, max_size=5),
    st.tuples(NUMBERS, NUMBERS),
    st.lists(st.tuples(st.integers(-2, 9), st.integers(-2, 9)), max_size=3),
)


@st.composite
def spoilt_arrays(draw: st.DrawFn, a: np.ndarray) -> Any:
    """An array that is not what was meant: another shape, type, layout, alignment, or contents."""
    kind = draw(
        st.sampled_from(["cut", "type", "strided", "misaligned", "swapped", "broadcast", "turned", "ugly", "other"])
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "cut" and a.ndim:
        axis = draw(st.integers(0, a.ndim - 1))
        return a.take(range(draw(st.integers(0, a.shape[axis]))), axis)
    if kind == "type":
        new = draw(st.sampled_from([*DTYPES, np.int32, np.int64, np.bool_, np.complex64, object, "M8[s]", "S2"]))
        return np.zeros(a.shape, new)
    if kind == "strided" and a.ndim:
        return np.repeat(a, 2, axis=-1)[..., ::2]
    if kind == "misaligned":
        raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
        raw[...] = a
        return raw
    if kind == "swapped":
        return a.astype(a.dtype.newbyteorder(">")) if a.dtype.kind != "V" and a.dtype.name != "bfloat16" else a
    if kind == "broadcast":
        return np.broadcast_to(a.ravel()[:1].reshape((1,) * a.ndim) if a.size else np.zeros((), a.dtype), a.shape)
    if kind == "turned":
        return a.T if draw(st.booleans()) else a[::-1] if a.ndim else a
    if kind == "ugly":
        if a.dtype.kind == "i":
            return rng.choice(np.array([-(2**63), -1, 0, a.size, 2**31, 2**62, 2**63 - 1]), a.shape)
        with np.errstate(over="ignore"):
            return rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 1e300]), a.shape).astype(a.dtype)
    return draw(STRANGE)


@contextmanager
def bounded_memory(room: int = 4 << 30) -> Iterator[None]:
    """Within it the process gets no more than `room` bytes beyond what it has: what asks for more is a MemoryError.

    Otherwise a shape of eight gigabytes, which is a shape like others, ends a small machine's tests.
    """
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def named(error: Exception) -> None:
    """An error says what is wrong."""
    assert len(str(error)) > 10 or isinstance(error, MemoryError), repr(error)


def for_a_while(strategy: st.SearchStrategy[Any], test: Any, seconds: float) -> int:
    """Hypothesis again and again, from one seed after another, until the time is over; -> how many examples."""
    end, round_, count = time.monotonic() + seconds, 0, 0

    def one(call: Any) -> None:
        nonlocal count
        count += 1
        test(call)

    quiet = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    with bounded_memory():
        while not round_ or time.monotonic() < end:
            seed(round_)(quiet(given(strategy)(one)))()
            round_ += 1
    return count
