"""Any call at all of every public function: it answers or raises a named error, and writes nothing it should not.

Typical arguments are taken from the registry and some of them are spoilt. A crash ends the test run, which nobody will
overlook.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from checks import GUARD, same_bits
from hypothesis import strategies as st
from spoiling import ALLOWED, DTYPES, SECONDS, STRANGE, for_a_while, named, spoilt_arrays

import backstroke as bs
from backstroke.dialects import onednn, onnxruntime, tfjs
from backstroke.registry import OPS, Op, results


def _guarded(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """An array in the middle of memory whose every byte is known, and that memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD, 0xA5, np.uint8)
    return memory[GUARD : GUARD + size].view(dtype).reshape(shape), memory


@st.composite
def calls(draw: st.DrawFn, op: Op) -> tuple[list[Any], dict[str, Any], list[np.ndarray]]:
    """Arguments, keywords, and the memory around every `out`."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    arguments, keywords = op.example(np.random.default_rng(draw(st.integers(0, 9))), op.small, dtype)
    memories: list[np.ndarray] = []
    if draw(st.booleans()):
        shapes = [(a.shape, a.dtype) for a in results(_known(op, dtype))]
        pairs = [_guarded(*each) for each in shapes]
        memories = [memory for _, memory in pairs]
        outs: Any = tuple(out for out, _ in pairs)
        keywords["out"] = outs if len(outs) > 1 else outs[0]
        if draw(st.integers(0, 3)) == 0:
            spoil = draw(st.sampled_from(outs))
            keywords["out"] = draw(st.one_of(spoilt_arrays(spoil), STRANGE))
        if draw(st.integers(0, 5)) == 0:  # over an input
            given_arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            keywords["out"] = draw(st.sampled_from(given_arrays))
    options = [
        n for n, p in inspect.signature(op.function).parameters.items() if p.kind is p.KEYWORD_ONLY and n != "out"
    ]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(arguments) + 2 * len(options) - 1))
        if place >= len(arguments):
            keywords[options[(place - len(arguments)) // 2]] = draw(STRANGE)
        elif isinstance(arguments[place], np.ndarray):
            arguments[place] = draw(spoilt_arrays(arguments[place]))
        else:
            arguments[place] = draw(STRANGE)
    return arguments, keywords, memories


_answers: dict[tuple[str, np.dtype], Any] = {}


def _known(op: Op, dtype: np.dtype) -> Any:
    if (op.name, dtype) not in _answers:
        arguments, keywords = op.example(np.random.default_rng(0), op.small, dtype)
        _answers[op.name, dtype] = op.function(*arguments, **keywords)
    return _answers[op.name, dtype]


def check(op: Op, call: tuple[list[Any], dict[str, Any], list[np.ndarray]]) -> None:
    arguments, keywords, memories = call
    outs = keywords.get("out")
    mine = [o for o in (outs if isinstance(outs, tuple) else (outs,)) if isinstance(o, np.ndarray)]
    inputs = [a for a in arguments if isinstance(a, np.ndarray) and not any(np.may_share_memory(a, o) for o in mine)]
    before, unwritten = [a.copy() for a in inputs], [o.copy() for o in mine]
    try:
        op.function(*arguments, **keywords)
    except ALLOWED as error:
        named(error)
        for o, old in zip(mine, unwritten, strict=True):
            assert o.tobytes() == old.tobytes(), "out was written, and then an error raised"
        assert all((m == 0xA5).all() for m in memories), "memory was written, and then an error raised"
    for m in memories:
        assert (m[:GUARD] == 0xA5).all(), "bytes before out were written"
        assert (m[-GUARD:] == 0xA5).all(), "bytes behind out were written"
    for a, old in zip(inputs, before, strict=True):
        assert a.tobytes() == old.tobytes(), "an input was written"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_any_call(op: Op) -> None:
    count = for_a_while(calls(op), lambda call: check(op, call), SECONDS)
    assert count >= 60


DIALECTS: Any = {"onnxruntime": onnxruntime, "onednn": onednn, "tfjs": tfjs}


@pytest.mark.parametrize("name", DIALECTS)
def test_any_call_of_a_dialect(name: str) -> None:
    """Nodes with any inputs and any attributes."""
    dialect = DIALECTS[name]

    @st.composite
    def nodes(draw: st.DrawFn) -> Any:
        kernel = draw(st.sampled_from(dialect.kernels()))
        array = st.lists(st.integers(0, 4), max_size=5).map(lambda shape: np.ones(shape, np.float32))
        indices = st.lists(st.integers(0, 4), max_size=5).map(lambda shape: np.zeros(shape, np.int64))
        inputs = [draw(st.one_of(array, array, indices, STRANGE)) for _ in kernel.inputs]
        attributes = {a.name: draw(STRANGE) for a in kernel.attributes if draw(st.booleans())}
        return kernel, inputs, attributes, draw(st.lists(st.lists(st.integers(-1, 9), max_size=5), max_size=2))

    def run(node: Any) -> None:
        kernel, inputs, attributes, shapes = node
        before = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
        try:
            if dialect is onnxruntime:
                dialect.run(kernel.op, inputs, attributes, domain=kernel.domain, output_shapes=shapes)
            elif dialect is tfjs:
                dialect.run(kernel.op, dict(zip(kernel.inputs, inputs, strict=True)), attributes)
            else:
                dialect.run(kernel.op, inputs, attributes)
        except ALLOWED as error:
            named(error)
        for x, old in zip(inputs, before, strict=True):
            assert not isinstance(x, np.ndarray) or same_bits(x.astype(np.float64), old.astype(np.float64))

    assert for_a_while(nodes(), run, SECONDS) >= 60


def test_any_plan() -> None:
    """`plan` of any shapes and options."""
    shapes = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 8, 17, 2**31, 2**62]), max_size=5)
    options = [n for n, p in inspect.signature(bs.plan).parameters.items() if p.kind is p.KEYWORD_ONLY]
    windows = st.dictionaries(st.sampled_from(options), st.one_of(st.integers(0, 3), STRANGE), max_size=3)
    whole = st.tuples(st.just((2, 4, 9, 9)), st.just((6, 4, 3, 3)))
    given = st.tuples(st.sampled_from(["conv", "conv_grad"]), st.one_of(whole, st.tuples(shapes, shapes)), windows)

    def run(call: Any) -> None:
        op, (x, w), keywords = call
        try:
            assert "dx=" in repr(bs.plan(op, x, w, **keywords))
        except ALLOWED as error:
            named(error)

    for_a_while(given, run, SECONDS)


def test_the_machine_s_functions() -> None:
    before, limit = bs.get_num_threads(), bs.info()["memory"]["limit_bytes"]
    try:
        for function in (bs.set_num_threads, bs.set_memory_limit):

            def run(value: Any, function: Any = function) -> None:
                try:
                    function(value)
                except ALLOWED as error:
                    named(error)
                assert bs.relu_grad(np.ones(100_000, np.float32), np.ones(100_000, np.float32)).all()

            few = STRANGE.filter(
                lambda v: not (isinstance(v, int) and v > 64)
            )  # a thousand threads are allowed, and slow
            for_a_while(few, run, 0)
    finally:
        bs.set_num_threads(before)
        bs.set_memory_limit(limit)
