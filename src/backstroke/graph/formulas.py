"""Elementwise nodes of the gradient graph: a formula a line, on arrays and (see fused.py) on traced values alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ..activation import kernels as activation
from ..jit.functions import erf, exp, like, log, power, sqrt, tanh, where


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
    return dy * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


def _sign(x: Any) -> Any:
    return where(x > 0, like(x, 1.0), where(x < 0, like(x, -1.0), x))


def _sum(*terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


FORMULAS: dict[str, Formula] = {
    "Add": Formula(lambda a, b: a + b),
    "And": Formula(lambda a, b: a & b, boolean=True),
    "Cast": Formula(lambda x, to: x),
    "Div": Formula(lambda a, b: a // b if getattr(a, "dtype", np.dtype(float)).kind == "i" else a / b),
    "Equal": Formula(lambda a, b: a == b, boolean=True),
    "Erf": Formula(erf),
    "Exp": Formula(exp),
    "GeluGrad": Formula(_gelu_grad),
    "Greater": Formula(lambda a, b: a > b, boolean=True),
    "LeakyReluGrad": Formula(activation.leaky_relu_grad),
    "Less": Formula(lambda a, b: a < b, boolean=True),
    "Log": Formula(log),
    "Mul": Formula(lambda a, b: a * b),
    "Neg": Formula(lambda x: -x),
    "Not": Formula(lambda x: x ^ True, boolean=True),
    "Pow": Formula(power),
    "QuickGeluGrad": Formula(activation.quick_gelu_grad),
    "ReluGrad": Formula(activation.relu_grad),
    "Sigmoid": Formula(activation.sigmoid),
    "SigmoidGrad": Formula(activation.sigmoid_grad),
    "Sign": Formula(_sign),
    "Sqrt": Formula(sqrt),
    "Sub": Formula(lambda a, b: a - b),
    "Sum": Formula(_sum),
    "Tanh": Formula(tanh),
    "TanhGrad": Formula(activation.tanh_grad),
    "Where": Formula(where),
}
