"""Backstroke itself, and the formulas as one would write them with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import backstroke as bs
from backstroke.dialects import tfjs as dialect

from . import Calls, tfjs

TFJS = "in TensorFlow.js' words"  # the group of problems that are called through its dialect


class Ours:
    """Backstroke."""

    name = "backstroke"

    def version(self) -> str:
        return bs.__version__

    def threads(self, count: int) -> None:
        bs.set_num_threads(count)

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        if problem.group == TFJS and (spoken := tfjs.in_its_words(problem, arguments)):

            def call() -> object:  # what it does: sums in double, rounded once; it takes no output
                return dialect.run("MaxPoolGrad", *spoken)

            return call, call
        function, options = problem.entry.function, problem.keywords
        return lambda: function(*arguments, **options), lambda: function(*arguments, **options, out=out)


class NumPy:
    """The formula as one would write it with NumPy."""

    name = "numpy"

    def version(self) -> str:
        return np.__version__

    def threads(self, count: int) -> None:
        """NumPy's elementwise operations use one thread."""

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        if problem.entry.family not in ("activation", "softmax"):
            return None
        dy, x = arguments
        axis = problem.options.get("axis", -1)
        formulas: dict[str, Callable[[], object]] = {
            "relu_grad": lambda: np.where(x > 0, dy, 0),
            "leaky_relu_grad": lambda: np.where(x > 0, dy, np.float32(0.01) * dy),
            "sigmoid_grad": lambda: dy * x * (1 - x),
            "tanh_grad": lambda: dy * (1 - x * x),
            "softmax_grad": lambda: x * (dy - (x * dy).sum(axis, keepdims=True)),
            "log_softmax_grad": lambda: dy - np.exp(x) * dy.sum(axis, keepdims=True),
        }
        if problem.op not in formulas or problem.dtype == "bfloat16":
            return None
        return formulas[problem.op], None
