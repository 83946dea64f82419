"""Elementwise nodes of the gradient graph: a formula a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ..activation import kernels as activation


@dataclass(frozen=True)
class Formula:
    """What an elementwise node computes, on arrays."""

    on_arrays: Callable[..., Any]
    boolean: bool = False

    def dtype(self, inputs: Sequence[np.ndarray], attributes: dict[str, Any]) -> np.dtype:
        """The type of the result."""
        if "to" in attributes:
            kind: np.dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
            return kind
        return np.dtype(bool) if self.boolean else inputs[-1].dtype


def _gelu_grad(dy: Any, x: Any) -> Any:
    return dy * (0.5 * (1 + _erf(x * math.sqrt(0.5))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


_erf_of_numbers = np.vectorize(math.erf, otypes=[np.float64])


def _erf(x: Any) -> Any:
    return _erf_of_numbers(x).astype(x.dtype) if np.size(x) else x


def _sum(*terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


FORMULAS: dict[str, Formula] = {
    "Add": Formula(lambda a, b: a + b),
    "And": Formula(lambda a, b: a & b, boolean=True),
    "Cast": Formula(lambda x, to: x),
    "Div": Formula(lambda a, b: a // b if a.dtype.kind == "i" else a / b),
    "Equal": Formula(lambda a, b: a == b, boolean=True),
    "Erf": Formula(_erf),
    "Exp": Formula(np.exp),
    "GeluGrad": Formula(_gelu_grad),
    "Greater": Formula(lambda a, b: a > b, boolean=True),
    "LeakyReluGrad": Formula(activation.leaky_relu_grad),
    "Less": Formula(lambda a, b: a < b, boolean=True),
    "Log": Formula(np.log),
    "Mul": Formula(lambda a, b: a * b),
    "Neg": Formula(lambda x: -x),
    "Not": Formula(lambda x: ~x, boolean=True),
    "Pow": Formula(np.power),
    "QuickGeluGrad": Formula(activation.quick_gelu_grad),
    "ReluGrad": Formula(activation.relu_grad),
    "Sigmoid": Formula(lambda x: 1 / (1 + np.exp(-x))),
    "SigmoidGrad": Formula(activation.sigmoid_grad),
    "Sign": Formula(np.sign),
    "Sqrt": Formula(np.sqrt),
    "Sub": Formula(lambda a, b: a - b),
    "Sum": Formula(_sum),
    "Tanh": Formula(np.tanh),
    "TanhGrad": Formula(activation.tanh_grad),
    "Where": Formula(np.where),
}
