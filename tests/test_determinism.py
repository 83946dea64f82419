"""The promise of the README: the same inputs on the same target give the same bits, for any number of threads.

Every op of the registry, every type, 1 to 8 threads; the convolutions with each of their algorithms too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from checks import same_bits

import backstroke as bs
from backstroke import known
from backstroke.convolution import choices
from backstroke.jit.threads import pool
from backstroke.registry import OPS, Example, Op, results

THREADS = range(1, 9)
CASES = [(op, "") for op in OPS]
CASES += [(op, algorithm) for op in OPS if op.family == "convolution" for algorithm in choices.ALGORITHMS]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = bs.get_num_threads()
    yield
    bs.set_num_threads(before)


def enough(op: Op) -> list[Example]:
    """Problems that are cut into many pieces: the small one many times, and one that is long where it is short."""
    first, *rest = op.small.shape
    options = dict(op.small.options)
    wide = [n * 3 if axis else n for axis, n in enumerate(rest)] if op.family != "activation" else [rest[0] * 40]
    return [Example((first * 24, *rest), options), Example((first, *wide), options)]


@pytest.mark.parametrize(("op", "algorithm"), CASES, ids=lambda v: getattr(v, "name", v))
def test_same_bits(op: Op, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTROKE_CONV_ALGORITHM", algorithm)
    for example, dtype in itertools.product(enough(op), op.dtypes):
        arguments, keywords = op.example(np.random.default_rng(3), example, dtype)
        first: list[np.ndarray] = []
        for count in THREADS:
            bs.set_num_threads(count)
            assert pool.threads == count
            for _ in range(2):
                found = results(op.function(*arguments, **keywords))
                first = first or found
                assert all(map(same_bits, found, first)), (op.name, str(example), dtype, count)


def test_the_problems_are_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would prove little: they are cut into eight pieces at least, as far as Python sees it."""
    pieces: list[int] = []
    run = pool.run
    monkeypatch.setattr(pool, "run", lambda kernel, words, count: pieces.append(count) or run(kernel, words, count))
    most: dict[str, int] = {}
    for op, at in ((op, at) for op in OPS for at in range(2)):
        pieces.clear()
        known.forget()  # what is prepared runs without Python
        arguments, keywords = op.example(np.random.default_rng(3), enough(op)[at], np.float32)
        odd = [a[..., ::-1] if isinstance(a, np.ndarray) else a for a in arguments]  # no launcher takes them
        op.function(*odd, **keywords)
        if pieces:
            most[op.name] = max(most.get(op.name, 0), *pieces)
    assert len(most) >= len(OPS) - 2
    assert min(most.values()) >= 8, most
