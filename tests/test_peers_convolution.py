"""Convolution against the systems themselves, where those are installed: random cases, then where they go wrong.

The data are small integers, so that sums are exact in any order and answers must be equal. Classes of cases in which a
peer is known to be wrong or to die are left out; one example of each is pinned below, with what we answer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from convolution_problems import Problem, problem

from backstroke.convolution import conv, conv_grad, reference
from backstroke.dialects import onednn as our_onednn
from backstroke.dialects import onnxruntime as our_ort
from peers import onednn, ort
from peers.child import PeerDiedError, PeerError

CASES = 40


@functools.cache
def need(peer: ModuleType) -> None:
    """Skip where the peer is absent."""
    if why := peer.available():
        pytest.skip(why)


def random_problem(seed: int, layout: str = "NCX", *, grouped: bool = True, symmetric: bool = False) -> Problem:
    """Any rank, strides, dilations, pads and groups, among few sizes."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(v) for v in rng.integers(low, high, rank))

    kernel, strides, dilations = draw(1, 4), draw(1, 4), draw(1, 3)
    begin, end = draw(0, 4), draw(0, 4)
    if symmetric:
        end = begin
    size = [
        max(1, n, (k - 1) * d + 1 - b - e)
        for n, k, d, b, e in zip(draw(1, 9), kernel, dilations, begin, end, strict=True)
    ]
    group, inside, outside = ((1, 5, 4), (3, 1, 1), (2, 1, 3), (2, 3, 2), (16, 1, 1))[int(rng.integers(5))]
    if not grouped:
        group = 1
    return problem(
        int(rng.integers(1, 4)), group * inside, group * outside, size, kernel, layout=layout, group=group,
        strides=strides, dilations=dilations, pads=tuple(zip(begin, end, strict=True)), seed=seed,
    )  # fmt: skip


def same(ours: Any, theirs: Any, case: Any) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, case
    assert np.array_equal(ours, theirs), case


# torch


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_torch(kind: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    for seed in range(CASES):
        # On grouped bfloat16 torch's dw was seen to hold numbers that nobody computed.
        p = random_problem(seed, layout, symmetric=True, grouped=kind != "bfloat16")
        given = [torch.from_numpy(a).to(getattr(torch, kind)) for a in p.whole(most=2)]
        dy, x, w, b = given
        answers = [conv(x, w, b, **p.options), *conv_grad(dy, x, w, **p.options)]
        rank = x.dim() - 2
        if layout == "NXC":  # copied: on 3-D tensors as they lie, strided and dilated, torch dies
            dy, x = (t.movedim(-1, 1).contiguous() for t in (dy, x))
            w = w.movedim((-1, -2), (0, 1)).contiguous()
        pads = [begin for begin, _ in p.options["pads"]]
        along = p.options["strides"], pads, p.options["dilations"], False, [0] * rank, p.options["group"]
        theirs = [torch.ops.aten.convolution(x, w, b, *along)]
        theirs += torch.ops.aten.convolution_backward(dy, x, w, [len(b)], *along, [True] * 3)
        if layout == "NXC":
            theirs[:2] = [t.movedim(1, -1) for t in theirs[:2]]
            theirs[2] = theirs[2].movedim((0, 1), (-1, -2))
        for a, t in zip(answers, theirs, strict=True):
            same(a.double(), t.double(), (seed, p))


# ONNX Runtime


def node_of(p: Problem) -> dict[str, Any]:
    pads = p.options["pads"]
    attributes = {name: list(p.options[name]) for name in ("strides", "dilations")}
    return {**attributes, "group": p.options["group"], "pads": [b for b, _ in pads] + [e for _, e in pads]}


def test_onnx_runtime() -> None:
    need(ort)
    for seed in range(CASES):
        rank = random_problem(seed).shapes.geometry.rank
        p = random_problem(seed, grouped=rank == 2)  # otherwise it writes out of bounds
        dy, x, w, b = p.whole(np.float32)
        shapes = [x.shape, w.shape, b.shape]
        theirs = ort.run("ConvGrad", [dy, x, w], node_of(p), shapes, domain="com.microsoft")
        for a, t in zip(our_ort.run("ConvGrad", [dy, x, w], node_of(p), outputs=3), theirs, strict=True):
            same(a, t, (seed, p))


def test_onnx_runtime_passes_over_auto_pad() -> None:
    need(ort)
    dy, x, w = (np.ones(shape, np.float32) for shape in ((1, 1, 3), (1, 1, 3), (1, 1, 3)))
    attributes = {"auto_pad": "SAME_UPPER"}
    (dx,) = our_ort.run("ConvGrad", [dy, x, w], attributes)
    assert dx.ravel().tolist() == [2, 3, 2]
    (theirs, _, _) = ort.run("ConvGrad", [dy, x, w], attributes, [x.shape, w.shape, (1,)], domain="com.microsoft")
    assert theirs.ravel().tolist() != [2, 3, 2]


def test_onnx_runtime_divides_by_the_batch() -> None:
    need(ort)
    dy, x, w = (np.ones(shape, np.float32) for shape in ((0, 1, 3), (0, 1, 3), (1, 1, 1)))
    assert [a.tolist() for a in our_ort.run("ConvGrad", [dy, x, w], outputs=3)] == [[], [[[0.0]]], [0.0]]
    with pytest.raises(PeerDiedError):
        ort.run("ConvGrad", [dy, x, w], {}, [x.shape, w.shape, (1,)], domain="com.microsoft")


# oneDNN


def attributes_of(p: Problem, weights_format: str) -> dict[str, Any]:
    geometry = p.shapes.geometry
    return {
        "strides": geometry.strides,
        "pads_begin": [begin for begin, _ in geometry.pads],
        "pads_end": [end for _, end in geometry.pads],
        "dilations": geometry.dilations,
        "groups": p.shapes.group,
        "data_format": p.options["layout"],
        "weights_format": weights_format,
    }


def three_ops(p: Problem, weights_format: str) -> Iterator[tuple[str, list[np.ndarray], dict[str, Any], Any]]:
    """(op, inputs, attributes, shape of the result)."""
    dy, x, w, _ = p.whole(np.float32)
    if (p.options["layout"] == "NCX") != (weights_format == "OIX"):
        w = np.moveaxis(w, (0, 1), (-1, -2)) if weights_format == "XIO" else np.moveaxis(w, (-1, -2), (0, 1))
    attributes = attributes_of(p, weights_format)
    yield "Convolution", [x, w], attributes, dy.shape
    yield "ConvolutionBackwardData", [dy, w], {**attributes, "dst_shape": x.shape}, x.shape
    yield "ConvolutionBackwardWeights", [x, dy], {**attributes, "weights_shape": w.shape}, w.shape


@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_onednn(layout: str, weights_format: str) -> None:
    need(onednn)
    for seed in range(CASES // 2):
        p = random_problem(seed, layout)
        for op, inputs, attributes, shape in three_ops(p, weights_format):
            if op == "ConvolutionBackwardData" and p.shapes.group > 1:  # which it refuses, see below
                continue
            theirs = onednn.run(op, inputs, attributes, shape)
            same(our_onednn.run(op, inputs, attributes)[0], theirs, (seed, op, p))


def test_onednn_refuses_groups_in_the_gradient_of_the_input() -> None:
    need(onednn)
    p = problem(1, 4, 4, (5,), (3,), group=2, strides=1, pads=0, dilations=1)
    _, (op, inputs, attributes, shape), _ = three_ops(p, "OIX")
    with pytest.raises(PeerError):
        onednn.run(op, inputs, attributes, shape)
    dy, x, w, _ = p.whole(np.float32)
    same(our_onednn.run(op, inputs, attributes)[0], reference.conv_grad(dy, x, w, **p.options).dx, op)


def test_onednn_counts_windows_by_a_division_that_truncates() -> None:
    """A window that overhangs the padded input by less than a stride still counts."""
    need(onednn)
    dy, x, w = (np.full(shape, 2, np.float32) for shape in ((1, 1, 1), (1, 1, 2), (1, 1, 3)))
    attributes = {**attributes_of(problem(1, 1, 1, (3,), (3,), strides=2), "OIX")}
    for op, inputs, extra, shape in (
        ("Convolution", [x, w], {}, dy.shape),
        ("ConvolutionBackwardData", [dy, w], {"dst_shape": x.shape}, x.shape),
        ("ConvolutionBackwardWeights", [x, dy], {"weights_shape": w.shape}, w.shape),
    ):
        given = {**attributes, **extra}
        same(our_onednn.run(op, inputs, given)[0], onednn.run(op, inputs, given, shape), op)


@pytest.mark.parametrize(
    "change",
    [
        {"strides": [0]},
        {"pads_begin": [-1]},
        {"pads_begin": [7]},
        {"groups": 3},
        {"dst_shape": [1, 2, 9]},
        {"dst_shape": [1, 4, 5]},
        {"weights_format": "IOX"},
        {"data_format": "NCHW"},
        {"auto_pad": "SAME"},
    ],
    ids=str,
)
def test_onednn_refuses_or_dies_of_what_we_refuse(change: dict[str, Any]) -> None:
    need(onednn)
    p = problem(1, 2, 2, (5,), (3,), strides=1, pads=0, dilations=1)
    _, (op, inputs, attributes, _), _ = three_ops(p, "OIX")
    given = {**attributes, **change}
    with pytest.raises(ValueError):
        our_onednn.run(op, inputs, given)
    with pytest.raises(PeerError):
        onednn.run(op, inputs, given, given["dst_shape"])


def test_onednn_takes_the_shape_as_an_attribute_only() -> None:
    need(onednn)
    p = problem(1, 2, 2, (5,), (3,), strides=1, pads=0, dilations=1)
    _, (op, inputs, attributes, shape), _ = three_ops(p, "OIX")
    with pytest.raises(PeerError):
        onednn.run(op, [*inputs, np.int32(shape)], attributes, shape)
    ours = our_onednn.run(op, [*inputs, np.int32(shape)], attributes)[0]
    same(ours, onednn.run(op, inputs, attributes, shape), op)
