"""Backstroke: the backward pass of neural networks on CPUs, from Python.

    import backstroke as bs
    dx = bs.relu_grad(dy, x)

Gradient kernels are Python functions, compiled to machine code for this CPU when they are first used.
"""

from typing import Any

from . import reference
from .activation import leaky_relu_grad, quick_gelu_grad, relu_grad, sigmoid_grad, tanh_grad
from .convolution import ConvGrads, conv, conv_grad, plan
from .errors import UnsupportedError
from .machine import empty_cache, get_num_threads, info, set_memory_limit, set_num_threads
from .pooling import (
    avg_pool,
    avg_pool_grad,
    global_avg_pool_grad,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_input,
)
from .softmax import log_softmax_grad, softmax_grad
from .version import __version__

# Names that are imported when they are first asked for, and the modules in which they lie.
_LAZY = {
    "AdamW": "training.optimizers",
    "SGD": "training.optimizers",
    "Trainer": "training.trainer",
    "grad": "graph",
    "gradient_model": "graph",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value


__all__ = [
    "AdamW",
    "ConvGrads",
    "SGD",
    "Trainer",
    "UnsupportedError",
    "__version__",
    "avg_pool",
    "avg_pool_grad",
    "conv",
    "conv_grad",
    "empty_cache",
    "get_num_threads",
    "global_avg_pool_grad",
    "grad",
    "gradient_model",
    "info",
    "leaky_relu_grad",
    "log_softmax_grad",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_input",
    "plan",
    "quick_gelu_grad",
    "reference",
    "relu_grad",
    "set_memory_limit",
    "set_num_threads",
    "sigmoid_grad",
    "softmax_grad",
    "tanh_grad",
]
