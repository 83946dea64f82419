"""Backstroke inside PyTorch: functions on CPU tensors whose forward and backward passes are ours.

    import backstroke.torch as bst
    y = bst.softmax(x, axis=1)          # and y.backward(...) as usual

Tensors of float32, float64, float16 and bfloat16 go in and come out, without a copy. The gradients are those of
`backstroke`; they cannot be differentiated again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from . import activation, convolution, pooling
from . import softmax as _softmax

try:
    import torch
    from torch.autograd.function import once_differentiable
except ImportError as error:
    raise ImportError("backstroke.torch needs PyTorch: pip install torch") from error


def _from_one(forward: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """The differentiable function of one tensor that `forward` is and `gradient` is the gradient of.

    The gradient's second argument says what is kept for it: `x`, the input, or `y`, the output.
    """
    keeps_input = list(inspect.signature(gradient).parameters)[1] == "x"

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, options: dict[str, Any]) -> Any:
            y = forward(x.detach(), **options)
            ctx.options = options
            ctx.save_for_backward(x if keeps_input else y)
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, dy: Any) -> tuple[Any, None]:
            (kept,) = ctx.saved_tensors
            return gradient(dy.detach(), kept.detach(), **ctx.options), None

    @functools.wraps(forward)
    def function(x: Any, **options: Any) -> Any:
        return Differentiable.apply(_tensor("x", x), options)

    return function


def _tensor(name: str, x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")
    return x


relu = _from_one(activation.relu, activation.relu_grad)
sigmoid = _from_one(activation.sigmoid, activation.sigmoid_grad)
tanh = _from_one(activation.tanh, activation.tanh_grad)
quick_gelu = _from_one(activation.quick_gelu, activation.quick_gelu_grad)
softmax = _from_one(_softmax.softmax, _softmax.softmax_grad)
log_softmax = _from_one(_softmax.log_softmax, _softmax.log_softmax_grad)
_leaky_relu = _from_one(activation.leaky_relu, activation.leaky_relu_grad)


def leaky_relu(x: Any, *, alpha: float = 0.01) -> Any:
    """`x where x > 0, else alpha * x`, for alpha >= 0: the gradient is taken from the output, whose sign must tell."""
    if alpha < 0:
        raise ValueError(f"alpha is {alpha}; expected 0 or more, for the gradient is taken from the output")
    return _leaky_relu(x, alpha=alpha)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, kernel: Any, options: dict[str, Any]) -> Any:
        ctx.kernel, ctx.options = kernel, options
        ctx.save_for_backward(x)
        return pooling.max_pool(x.detach(), kernel, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        (x,) = ctx.saved_tensors
        return pooling.max_pool_grad_from_input(dy.detach(), x.detach(), ctx.kernel, **ctx.options), None, None


class _AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, kernel: Any, options: dict[str, Any]) -> Any:
        ctx.kernel, ctx.options, ctx.input_shape = kernel, options, tuple(x.shape)
        return pooling.avg_pool(x.detach(), kernel, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, None]:
        return pooling.avg_pool_grad(dy.detach(), ctx.input_shape, ctx.kernel, **ctx.options), None, None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any, options: dict[str, Any]) -> Any:
        ctx.options = options
        ctx.save_for_backward(x, w)
        return convolution.conv(x.detach(), w.detach(), None if b is None else b.detach(), **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> tuple[Any, Any, Any, None]:
        x, w = ctx.saved_tensors
        wrt = [name for name, needed in zip("xwb", ctx.needs_input_grad, strict=False) if needed]
        return (*convolution.conv_grad(dy.detach(), x.detach(), w.detach(), wrt=wrt, **ctx.options), None)


def conv(x: Any, w: Any, b: Any = None, **options: Any) -> Any:
    """Convolution: `backstroke.conv`, with its options but for `out`. Only gradients asked for are computed."""
    if b is not None:
        _tensor("b", b)
    return _Conv.apply(_tensor("x", x), _tensor("w", w), b, _allowed(options, convolution.conv))


def max_pool(x: Any, kernel: int | Sequence[int], **options: Any) -> Any:
    """The maximum of each window: `backstroke.max_pool`, with its options but for `return_indices` and `out`."""
    return _MaxPool.apply(_tensor("x", x), kernel, _allowed(options, pooling.max_pool, "return_indices"))


def avg_pool(x: Any, kernel: int | Sequence[int], **options: Any) -> Any:
    """The average of each window: `backstroke.avg_pool`, with its options but for `out`."""
    return _AvgPool.apply(_tensor("x", x), kernel, _allowed(options, pooling.avg_pool))


def _allowed(options: dict[str, Any], function: Callable[..., Any], *without: str) -> dict[str, Any]:
    known = [n for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known or name in ("out", *without):
            raise TypeError(f"{function.__name__} takes no option {name!r} here")
    return options


__all__ = [
    "avg_pool",
    "conv",
    "leaky_relu",
    "log_softmax",
    "max_pool",
    "quick_gelu",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]
