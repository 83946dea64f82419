"""The reference twins: every gradient under its own name, in float64, by NumPy alone, written to be read.

They are the specification of the kernels and what the tests compare them with. They check little and are slow.
"""

from .activation.reference import leaky_relu_grad, quick_gelu_grad, relu_grad, sigmoid_grad, tanh_grad
from .convolution.reference import conv, conv_grad
from .pooling.reference import (
    avg_pool,
    avg_pool_grad,
    global_avg_pool_grad,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_input,
)
from .softmax.reference import log_softmax_grad, softmax_grad

__all__ = [
    "avg_pool",
    "avg_pool_grad",
    "conv",
    "conv_grad",
    "global_avg_pool_grad",
    "leaky_relu_grad",
    "log_softmax_grad",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_input",
    "quick_gelu_grad",
    "relu_grad",
    "sigmoid_grad",
    "softmax_grad",
    "tanh_grad",
]
