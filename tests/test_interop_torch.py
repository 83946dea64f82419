"""`backstroke.torch`: values as the twins have them, gradients as gradcheck finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backstroke as bs
from backstroke import activation, softmax
from backstroke.activation import reference as activation_reference
from backstroke.registry import OPS
from backstroke.softmax import reference as softmax_reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
bst = pytest.importorskip("backstroke.torch")

ONE = [*activation.FORWARD, *softmax.FORWARD]
one_tensor = pytest.mark.parametrize("name", [f.__name__ for f in ONE])
POOLS: list[tuple[str, tuple[int, ...], Any, dict[str, Any]]] = [
    (name, shape, kernel, options)
    for name in ("max_pool", "avg_pool")
    for shape, kernel, options in (
        ((2, 3, 9), 2, {}),
        ((2, 3, 9, 8), (3, 2), {"strides": (2, 1), "pads": ((1, 0), (0, 1))}),
        ((1, 7, 6, 2), 3, {"strides": 2, "auto_pad": "same_upper", "layout": "NXC"}),
        ((1, 2, 5, 4, 6), 2, {"strides": 2, "ceil_mode": True}),
        ((1, 2, 9, 9), 2, {"dilations": 2, "strides": 1}),
    )
]


def tensor(*shape: int, seed: int = 0, **options: Any) -> Any:
    """Distinct numbers, none near another or near 0: no kink lies within gradcheck's step."""
    count = int(np.prod(shape))
    values = np.random.default_rng(seed).permutation(count) * 0.05 - 0.025 * count + 0.0125
    return torch.tensor(values.reshape(shape), dtype=torch.float64, **options)


@one_tensor
def test_gradcheck(name: str) -> None:
    function = getattr(bst, name)
    assert torch.autograd.gradcheck(function, (tensor(5, 7, requires_grad=True),))
    assert torch.autograd.gradcheck(function, (tensor(4, 3, 2, requires_grad=True).transpose(0, 2),))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradcheck_along_an_axis(name: str, axis: int) -> None:
    x = tensor(3, 4, 5, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: getattr(bst, name)(x, axis=axis), (x,))
    theirs = getattr(torch, name)(x, dim=axis)
    torch.testing.assert_close(getattr(bst, name)(x, axis=axis), theirs)


@pytest.mark.parametrize(("name", "shape", "kernel", "options"), POOLS)
def test_gradcheck_of_pooling(name: str, shape: tuple[int, ...], kernel: Any, options: dict[str, Any]) -> None:
    function = getattr(bst, name)
    x = tensor(*shape, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x, kernel, **options), (x,))
    assert np.array_equal(
        function(x, kernel, **options).detach(), getattr(bs.pooling, name)(x.detach().numpy(), kernel, **options)
    )


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 4, 6, 5), (6, 2, 3, 2), {"strides": (2, 1), "pads": ((1, 0), (0, 1)), "group": 2}),
    ((1, 6, 5, 3), (2, 2, 3, 4), {"auto_pad": "same_upper", "layout": "NXC"}),
    ((1, 2, 4, 5, 4), (3, 2, 2, 2, 2), {"dilations": 2}),
]


@pytest.mark.parametrize(("x", "w", "options"), CONVS)
def test_gradcheck_of_convolution(x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]) -> None:
    outputs = w[-1] if options.get("layout") == "NXC" else w[0]
    tensors = [tensor(*shape, seed=seed, requires_grad=True) for seed, shape in enumerate((x, w, (outputs,)))]
    assert torch.autograd.gradcheck(lambda x, w, b: bst.conv(x, w, b, **options), tensors)
    assert torch.autograd.gradcheck(lambda w: bst.conv(tensors[0].detach(), w, **options), tensors[1:2])


@one_tensor
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_type_goes_through(name: str, dtype: str) -> None:
    x = tensor(4, 33).to(getattr(torch, dtype)).requires_grad_()
    y = getattr(bst, name)(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert (y.dtype, x.grad.dtype, y.shape, x.grad.shape) == (x.dtype, x.dtype, x.shape, x.shape)
    assert torch.isfinite(x.grad).all()


@one_tensor
def test_forward_is_the_twin(name: str) -> None:
    forward = next(f for f in ONE if f.__name__ == name)
    twin = getattr(activation_reference, name, None) or getattr(softmax_reference, name)
    rng = np.random.default_rng(0)
    for shape in ((1,), (3, 1000), (40, 33), (2, 3, 70_000)):
        x = (3 * rng.normal(size=shape)).astype(np.float32)
        np.testing.assert_allclose(forward(x), twin(x), rtol=1e-6, atol=1e-6 if name == "log_softmax" else 1e-37)
        out = np.empty_like(x)
        assert forward(x, out=out) is out
        np.testing.assert_allclose(out, forward(np.asfortranarray(x)), rtol=1e-6)


CORNERS = {
    "relu": [np.nan, np.inf, 0, 0, 0],
    "leaky_relu": [np.nan, np.inf, -np.inf, 0, 0],
    "sigmoid": [np.nan, 1, 0, 0.5, 0.5],
    "tanh": [np.nan, 1, -1, 0, 0],
    "quick_gelu": [np.nan, np.inf, np.nan, 0, 0],
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners_of_the_forward(name: str) -> None:
    for dtype in (np.float32, np.float64):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
        np.testing.assert_array_equal(getattr(activation, name)(x), np.array(CORNERS[name], dtype))


def test_corners_of_softmax() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[0, -inf, 0], [-inf] * 3, [inf, 0, 0], [nan, 0, 0], [1e38, -1e38, 0]], np.float32)
    want = [[0.5, 0, 0.5], [nan] * 3, [nan] * 3, [nan] * 3, [1, 0, 0]]
    np.testing.assert_array_equal(softmax.softmax(x), np.float32(want))
    np.testing.assert_array_equal(softmax.softmax(x.T.copy(), axis=0), np.float32(want).T)
    assert np.isnan(softmax.log_softmax(x)[1:4]).all()
    assert softmax.softmax(np.zeros((3, 0), np.float32)).shape == (3, 0)


def test_all_gradients_of_one_tensor_have_a_door() -> None:
    """A new activation or softmax gradient in the registry must come here too."""
    names = {op.name.removesuffix("_grad") for op in OPS if op.family in ("activation", "softmax")}
    assert names <= set(bst.__all__)


def test_a_step_of_descent_is_torch_s() -> None:
    x = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours = bst.log_softmax(bst.avg_pool(bst.relu(bst.max_pool(x, 2)), 2).flatten(1), axis=1)
    f = torch.nn.functional
    theirs = torch.log_softmax(f.avg_pool2d(torch.relu(f.max_pool2d(x, 2)), 2).flatten(1), 1)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    mine, others = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs))
    torch.testing.assert_close(mine, others)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bst.relu(np.ones(3)), TypeError, r"x is a ndarray; expected a torch.Tensor"),
        (lambda: bst.relu(torch.ones(3, dtype=torch.int32)), TypeError, "x has type int32"),
        (lambda: bst.leaky_relu(torch.ones(3), alpha=-1.0), ValueError, "alpha is -1.0"),
        (lambda: bst.max_pool(torch.ones(1, 1, 4), 2, out=1), TypeError, "takes no option 'out'"),
        (lambda: bst.max_pool(torch.ones(1, 1, 4), 2, return_indices=True), TypeError, "takes no option"),
        (lambda: bst.softmax(torch.ones(3), axis=1), ValueError, "axis is 1"),
        (lambda: bst.tanh(torch.ones(3, device="meta")), TypeError, "not in the CPU's memory|cannot be read"),
    ],
)
def test_errors(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_no_second_derivative() -> None:
    x = tensor(3, requires_grad=True)
    (dx,) = torch.autograd.grad(bst.tanh(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dx.sum(), x)
