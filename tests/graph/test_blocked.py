"""Convolutions of the forward pass in ONNX Runtime's blocked layout: the same numbers, and what happens without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from backstroke.graph import Differentiable, blocked
from backstroke.graph.blocked import Blocked, _Kind

GUARD = 64
here = pytest.mark.skipif(not blocked.block_size(), reason="this ONNX Runtime has no blocked convolutions")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes models without blocks."""

    def make(*arguments: Any, **options: Any) -> Differentiable:
        with monkeypatch.context() as patch:
            patch.setattr(blocked, "block_size", lambda: 0)
            made = Differentiable(*arguments, **options)
            made.forward({"x": images(1)})
            return made

    return make


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, 17, 19)).astype(np.float32)


def model() -> onnx.ModelProto:
    """Every kind of convolution, chains of them, biases, activations, tensors that are asked for, shared weights."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []

    def conv(x: str, y: str, shape: tuple[int, ...], *, bias: bool = True, w: str = "", **attributes: Any) -> str:
        weights.setdefault(w or f"{y}.w", (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32))
        if bias:
            weights[f"{y}.b"] = rng.standard_normal(shape[0]).astype(np.float32)
        inputs = [x, w or f"{y}.w", *([f"{y}.b"] if bias else [])]
        nodes.append(helper.make_node("Conv", inputs, [y], y, **attributes))
        return y

    def after(op: str, x: str, y: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, [x], [y], y, **attributes))
        return y

    x = after("Relu", conv("x", "first", (20, 3, 7, 5), pads=[3, 2, 3, 2], strides=[1, 2]), "a")  # few inputs
    x = after("Tanh", conv(x, "second", (24, 20, 3, 3), auto_pad="SAME_UPPER", bias=False), "b")  # half-filled blocks
    x = after("Sigmoid", conv(x, "each", (24, 1, 3, 3), group=24, pads=[1, 1, 1, 1]), "c")
    x = conv(x, "wide", (48, 24, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2])  # read twice
    x = after("MaxPool", x, "pooled", kernel_shape=[2, 2], strides=[2, 2])
    y = after("Relu", conv(x, "twin", (48, 48, 3, 3), w="shared", pads=[1, 1, 1, 1], bias=False), "d")
    y = conv(y, "again", (48, 48, 3, 3), w="shared", pads=[1, 1, 1, 1])
    nodes.append(helper.make_node("Add", [x, y], ["sum"], "sum"))
    conv("sum", "groups", (8, 24, 1, 1), group=2)  # left as it is
    after("ReduceMean", "wide", "half", axes=[1])
    shape = ["n", 3, 17, 19]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(name, 1, None) for name in ("groups", "half", "d")],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def step(net: Differentiable, batch: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    outputs = {name: y.copy() for name, y in net.forward({"x": images(batch)}).items()}
    rng = np.random.default_rng(batch)
    dy = {name: rng.standard_normal(outputs[name].shape).astype(np.float32) for name in ("groups", "half", "d")}
    return outputs, {name: g.copy() for name, g in net.backward(dy).items()}


@here
def test_the_same_numbers_with_blocks_and_without(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model()
    wrt = ["x", *(tensor.name for tensor in proto.graph.initializer)]
    arguments = {"of": ["groups", "half", "d"], "wrt": wrt, "training": True}
    ours, theirs = Differentiable(proto, **arguments), plain(proto, **arguments)
    rng = np.random.default_rng(5)
    for batch in (2, 3, 2):
        for mine, expected in zip(step(ours, batch), step(theirs, batch), strict=True):
            for name, array in expected.items():
                error = np.abs(mine[name] - array).max() / np.abs(array).max()
                assert error < 1e-5, (batch, name)
        for name in ours.parameters:  # and the next pass uses what they are then
            new = ours.parameters[name] + 0.1 * rng.standard_normal(ours.parameters[name].shape).astype(np.float32)
            ours.parameters[name][...] = theirs.parameters[name][...] = new
    assert {"first.w/blocked", "second.w/blocked", "each.w/blocked_each", "shared/blocked"} <= set(ours._blocked.arrays)
    assert "groups.w/blocked" not in ours._blocked.arrays
    assert not theirs._blocked.arrays


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize(
    ("shape", "reordered", "depthwise"),
    [
        ((20, 4, 3, 3), False, False),
        ((24, 20, 3, 2), True, False),
        ((40, 33, 1, 1), True, False),
        ((24, 1, 3, 3), True, True),
        ((1, 1, 1, 1), False, False),
    ],
)
def test_weights_are_put_into_blocks(block: int, shape: tuple[int, ...], reordered: bool, depthwise: bool) -> None:
    o, i, *kernel = shape
    w = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    kind = _Kind(o, i, int(np.prod(kernel)), reordered, depthwise)
    into = Blocked()
    into.add("w", w, kind, block)
    goal = into.arrays["w"]
    room = np.full(goal.size + 2 * GUARD, 7, np.float32)
    inside = room[GUARD:-GUARD]
    inside.fill(0)
    into._table[:, 1] += inside.ctypes.data - goal.ctypes.data
    into.fill(block)

    wide = -(-i // block) * block if reordered and not depthwise else i
    padded = np.zeros((-(-o // block) * block, wide, *kernel), np.float32)
    padded[:o, :i] = w
    if reordered and not depthwise:
        split = padded.reshape(-1, block, wide // block, block, *kernel).transpose(0, 2, 4, 5, 3, 1)
    else:
        split = padded.reshape(-1, block, wide, *kernel).transpose(0, 2, 3, 4, 1)
    assert np.array_equal(inside, split.ravel())
    assert (room[:GUARD] == 7).all()
    assert (room[-GUARD:] == 7).all()


@pytest.mark.parametrize("trouble", ["absent", "wrong"])
def test_without_the_ops_the_graph_stays_plain(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """Another ONNX Runtime, or another CPU, may not have them, or mean something else by them."""
    if trouble == "absent":
        monkeypatch.setattr(blocked, "DOMAIN", "com.microsoft.nowhere")
    else:
        monkeypatch.setattr(blocked, "_block_of_its_own", lambda: 4)
        monkeypatch.setattr(blocked, "_is_right", lambda block: False)
    blocked.block_size.cache_clear()
    try:
        assert blocked.block_size() == 0
        net = Differentiable(model(), of=["groups", "half", "d"], wrt=["first.w", "shared"], training=True)
        outputs, gradients = step(net, 2)
    finally:
        blocked.block_size.cache_clear()
    assert not net._blocked.arrays
    assert all(np.isfinite(array).all() for array in (*outputs.values(), *gradients.values()))


@here
def test_a_convolution_that_gains_nothing_is_left_alone() -> None:
    """A 1x1 convolution of large planes is one product already; reordering would cost more than it."""
    w = np.ones((144, 24, 1, 1), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "y")],
        "one",
        [helper.make_tensor_value_info("x", 1, ["n", 24, 32, 32])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(w, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    net = Differentiable(proto, of="y", wrt="w")
    net.forward({"x": np.ones((1, 24, 32, 32), np.float32)})
    assert not net._blocked.arrays
