"""ONNX models in, gradients out: the forward pass by stock ONNX Runtime, the backward pass by our kernels.

`grad` differentiates a frozen model; `gradient_model` writes forward and backward as one ONNX model; training is built
on `Differentiable`. Needs the extra `backstroke[train]`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backward import trainable
    from .differentiable import Differentiable, grad
    from .export import gradient_model
    from .model import Model, load

# The command line looks in here, and must not wait for ONNX to be imported.
_LAZY = {
    "Differentiable": "differentiable",
    "Model": "model",
    "grad": "differentiable",
    "gradient_model": "export",
    "load": "model",
    "trainable": "backward",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value


__all__ = ["Differentiable", "Model", "grad", "gradient_model", "load", "trainable"]
