"""ONNX models in, gradients out: the forward pass by stock ONNX Runtime, the backward pass by our kernels.

`grad` differentiates a frozen model; `gradient_model` writes forward and backward as one ONNX model; training is built
on `Differentiable`. Needs the extra `backstroke[train]`.
"""

from .backward import trainable
from .differentiable import Differentiable, grad
from .export import gradient_model
from .model import Model, load

__all__ = ["Differentiable", "Model", "grad", "gradient_model", "load", "trainable"]
