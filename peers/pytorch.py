"""PyTorch's eager operators, called as directly as Python can."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from backstroke.registry import window_geometry

from . import Calls


class Torch:
    """PyTorch's eager operators, called as directly as Python can."""

    name = "torch"

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")

    def version(self) -> str:
        return str(self._torch.__version__)

    def threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def calls(self, problem: Any, arguments: list[Any], out: Any) -> Calls | None:
        if problem.op == "conv_grad":
            return self._conv_grad(problem, arguments), None
        if problem.op in ("avg_pool_grad", "max_pool_grad"):
            return self._pool_grad(problem, arguments, out)
        if problem.entry.family not in ("activation", "softmax"):
            return None
        torch, aten = self._torch, self._torch.ops.aten
        dy, x, dx = (self._tensor(a) for a in (*arguments, out))
        axis = problem.options.get("axis", -1)
        softmax, log_softmax = aten._softmax_backward_data, aten._log_softmax_backward_data
        along = (dy, x, axis, dy.dtype)
        table: dict[str, tuple[Any, tuple[Any, ...], Any, str]] = {
            "relu_grad": (aten.threshold_backward, (dy, x, 0), aten.threshold_backward.grad_input, "grad_input"),
            "leaky_relu_grad": (
                aten.leaky_relu_backward, (dy, x, 0.01, True), aten.leaky_relu_backward.grad_input, "grad_input",
            ),
            "sigmoid_grad": (aten.sigmoid_backward, (dy, x), aten.sigmoid_backward.grad_input, "grad_input"),
            "tanh_grad": (aten.tanh_backward, (dy, x), aten.tanh_backward.grad_input, "grad_input"),
            "softmax_grad": (softmax, along, softmax.out, "grad_input"),
            "log_softmax_grad": (log_softmax, along, log_softmax.out, "out"),
        }  # fmt: skip
        if problem.op == "quick_gelu_grad":  # torch has no such operator: people write the formula

            def formula() -> object:
                s = torch.sigmoid(1.702 * x)
                return dy * s * (1 + 1.702 * x * (1 - s))

            return formula, None
        if problem.op not in table:
            return None
        operator, operands, given, name = table[problem.op]
        return lambda: operator(*operands), lambda: given(*operands, **{name: dx})

    def _pool_grad(self, problem: Any, arguments: list[Any], out: np.ndarray) -> Calls:
        """1-D goes as 2-D, which is what PyTorch makes of it; NXC is channels_last, and so is the answer."""
        first, windows = (
            problem.options.get("layout", "NCX") == "NCX",
            window_geometry(problem.shape, **problem.options),
        )
        flat = windows.rank == 1

        def tensor(a: np.ndarray) -> Any:
            t = self._tensor(a)
            t = t.unsqueeze(2 if first else 1) if flat else t
            return t if first else t.permute(0, t.ndim - 1, *range(1, t.ndim - 1))

        def each(values: tuple[int, ...], otherwise: int) -> list[int]:
            return [otherwise, *values] if flat else list(values)

        dy, dx = tensor(arguments[0]), tensor(out)
        along = each(windows.kernel, 1), each(windows.strides, 1), each(tuple(begin for begin, _ in windows.pads), 0)
        x, ceil, rank = dx.clone(), bool(problem.options.get("ceil_mode", False)), max(2, windows.rank)
        operands: tuple[Any, ...]
        if problem.op == "avg_pool_grad":
            operator = getattr(self._torch.ops.aten, f"avg_pool{rank}d_backward")
            operands = (dy, x, *along, ceil, bool(problem.options.get("count_include_pad", False)), None)
        else:
            operator = getattr(self._torch.ops.aten, f"max_pool{rank}d_with_indices_backward")
            # Ours are flat over the tensor, PyTorch's over the plane.
            plane, channels = math.prod(windows.input_size), 1 if first else out.shape[-1]
            places = tensor(arguments[1] // channels % plane)
            operands = (dy, x, *along, each(windows.dilations, 1), ceil, places)

        return lambda: operator(*operands), lambda: operator.grad_input(*operands, grad_input=dx)

    def _conv_grad(self, problem: Any, arguments: list[Any]) -> Any:
        options, rank = problem.options, len(problem.shape) - 2
        first = options.get("layout", "NCX") == "NCX"

        def each(name: str, otherwise: int) -> list[int]:
            value = options.get(name, otherwise)
            return list(value) if isinstance(value, (tuple, list)) else [value] * rank

        dy, x, w = map(self._tensor, arguments)
        if not first:
            dy, x = (t.permute(0, rank + 1, *range(1, rank + 1)) for t in (dy, x))
            formats = {2: self._torch.channels_last, 3: self._torch.channels_last_3d}
            w = w.permute(rank + 1, rank, *range(rank))
            if rank in formats:  # as who holds channels last there holds weights
                w = w.contiguous(memory_format=formats[rank])
        along = each("strides", 1), each("pads", 0), each("dilations", 1), False, [0] * rank, options.get("group", 1)
        backward, sizes = self._torch.ops.aten.convolution_backward, [w.shape[0]]

        def call() -> tuple[Any, ...]:
            dx, dw, db = backward(dy, x, w, sizes, *along, [True, True, True])
            if first:
                return dx, dw, db
            return dx.permute(0, *range(2, rank + 2), 1), dw.permute(*range(2, rank + 2), 1, 0), db

        return call

    def _tensor(self, a: np.ndarray) -> Any:
        if a.dtype.name != "bfloat16":
            return self._torch.from_numpy(a)
        return self._torch.from_numpy(a.view(np.int16)).view(self._torch.bfloat16)
