"""JAX on the CPU: the gradients as XLA compiles them. Its threads are the CPUs; it has no setting for them."""

from __future__ import annotations

import importlib
import math
import os
from typing import Any

import numpy as np

from backstroke.geometry import spatial_axes
from backstroke.registry import window_geometry

from . import Calls


class Jax:
    name = "jax"

    def __init__(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self._jax = importlib.import_module("jax")
        self._lax, self._jnp = self._jax.lax, self._jax.numpy

    def version(self) -> str:
        return str(self._jax.__version__)

    def threads(self, count: int) -> None:
        """XLA takes all CPUs."""

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        gradient = self._gradient(problem, arguments)
        if gradient is None or problem.dtype == "float64":  # JAX has float64 only by a setting of the whole process
            return None
        arrays = [self._jnp.asarray(a) for a in arguments if isinstance(a, np.ndarray)]
        compiled = self._jax.jit(gradient)
        return lambda: self._jax.block_until_ready(compiled(*arrays)), None

    def _gradient(self, problem: Any, arguments: list[Any]) -> Any:
        jnp, lax, vjp = self._jnp, self._lax, self._jax.vjp
        axis, options = problem.options.get("axis", -1), problem.options
        formulas: dict[str, Any] = {
            "relu_grad": lambda dy, x: jnp.where(x > 0, dy, 0),
            "leaky_relu_grad": lambda dy, y: jnp.where(y > 0, dy, 0.01 * dy),
            "sigmoid_grad": lambda dy, y: dy * y * (1 - y),
            "tanh_grad": lambda dy, y: dy * (1 - y * y),
            "quick_gelu_grad": lambda dy, x: vjp(lambda x: x * self._jax.nn.sigmoid(1.702 * x), x)[1](dy)[0],
            "softmax_grad": lambda dy, y: y * (dy - (y * dy).sum(axis, keepdims=True)),
            "log_softmax_grad": lambda dy, y: dy - jnp.exp(y) * dy.sum(axis, keepdims=True),
        }
        if problem.op in formulas:
            return formulas[problem.op]
        if problem.op == "conv_grad":
            return self._conv_grad(options, len(problem.shape) - 2)
        if problem.op not in ("avg_pool_grad", "max_pool_grad_from_input"):
            return None
        windows = window_geometry(problem.shape, **options)
        layout = options.get("layout", "NCX")

        def full(values: Any, others: Any) -> tuple[Any, ...]:
            spread = [others] * len(problem.shape)
            for place, value in zip(spatial_axes(problem.shape, layout, "x"), values, strict=True):
                spread[place] = value
            return tuple(spread)

        window, strides, pads = full(windows.kernel, 1), full(windows.strides, 1), full(windows.pads, (0, 0))

        def pooled(x: Any, start: Any, join: Any) -> Any:
            return lax.reduce_window(x, start, join, window, strides, pads, window_dilation=full(windows.dilations, 1))

        if problem.op == "max_pool_grad_from_input":
            return lambda dy, x: vjp(lambda x: pooled(x, -math.inf, lax.max), x)[1](dy)[0]
        zero, ones = 0.0, np.ones(problem.shape, arguments[0].dtype)
        counts = math.prod(windows.kernel) if options.get("count_include_pad") else pooled(ones, zero, lax.add)
        return lambda dy: vjp(lambda x: pooled(x, zero, lax.add) / counts, ones)[1](dy)[0]

    def _conv_grad(self, options: Any, rank: int) -> Any:
        axes = "DHW"[-rank:]
        first = options.get("layout", "NCX") == "NCX"
        names = ("NC" + axes, "OI" + axes, "NC" + axes) if first else ("N" + axes + "C", axes + "IO", "N" + axes + "C")

        def each(name: str, otherwise: int) -> tuple[Any, ...]:
            value = options.get(name, otherwise)
            return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank

        pads = tuple(p if isinstance(p, (tuple, list)) else (p, p) for p in each("pads", 0))

        def conv(x: Any, w: Any) -> Any:
            return self._lax.conv_general_dilated(
                x, w, each("strides", 1), pads, rhs_dilation=each("dilations", 1), dimension_numbers=names,
                feature_group_count=options.get("group", 1),
            )  # fmt: skip

        def gradient(dy: Any, x: Any, w: Any) -> tuple[Any, ...]:
            sums = tuple(a for a in range(rank + 2) if a != (1 if first else rank + 1))
            return (*self._jax.vjp(conv, x, w)[1](dy), dy.sum(sums))

        return gradient
