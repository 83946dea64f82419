"""The other systems, behind one face: `calls(problem, arguments, out)` gives what to time, or None without such an op.

Each is optional. A peer that is not installed says so in the report and is left out.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import backstroke as bs

from .problems import Problem
from .timing import Call

Calls = tuple[Call, Call | None]  # as called (a fresh output), and with the output given where that can be


class Peer(Protocol):
    """A system that is timed."""

    name: str

    def version(self) -> str: ...
    def threads(self, count: int) -> None: ...
    def calls(self, problem: Problem, arguments: list[Any], out: Any) -> Calls | None: ...


class Ours:
    """Backstroke."""

    name = "backstroke"

    def version(self) -> str:
        return bs.__version__

    def threads(self, count: int) -> None:
        bs.set_num_threads(count)

    def calls(self, problem: Problem, arguments: list[Any], out: Any) -> Calls | None:
        function, options = problem.entry.function, problem.keywords
        return lambda: function(*arguments, **options), lambda: function(*arguments, **options, out=out)


class NumPy:
    """The formula as one would write it with NumPy."""

    name = "numpy"

    def version(self) -> str:
        return np.__version__

    def threads(self, count: int) -> None:
        """NumPy's elementwise operations use one thread."""

    def calls(self, problem: Problem, arguments: list[Any], out: Any) -> Calls | None:
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


class Torch:
    """PyTorch's eager operators, called as directly as Python can."""

    name = "torch"

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")

    def version(self) -> str:
        return str(self._torch.__version__)

    def threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def calls(self, problem: Problem, arguments: list[Any], out: Any) -> Calls | None:
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

    def _tensor(self, a: np.ndarray) -> Any:
        if a.dtype.name != "bfloat16":
            return self._torch.from_numpy(a)
        return self._torch.from_numpy(a.view(np.int16)).view(self._torch.bfloat16)


class OnnxRuntime:
    """onnxruntime-training-cpu: a model of one node, inputs and outputs bound."""

    name = "onnxruntime"
    _OPS = {  # noqa: RUF012 - a constant
        "relu_grad": "ReluGrad", "leaky_relu_grad": "LeakyReluGrad", "sigmoid_grad": "SigmoidGrad",
        "tanh_grad": "TanhGrad", "quick_gelu_grad": "QuickGeluGrad", "softmax_grad": "SoftmaxGrad_13",
        "log_softmax_grad": "LogSoftmaxGrad_13",
    }  # fmt: skip

    def __init__(self) -> None:
        self._runtime = importlib.import_module("onnxruntime")
        self._onnx = importlib.import_module("onnx")
        importlib.metadata.version("onnxruntime-training-cpu")
        self._threads = 1

    def version(self) -> str:
        return str(self._runtime.__version__)

    def threads(self, count: int) -> None:
        self._threads = count

    def calls(self, problem: Problem, arguments: list[Any], out: Any) -> Calls | None:
        if problem.op not in self._OPS or problem.dtype != "float32":
            return None
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        names = ["dY", "X"]
        node = helper.make_node(self._OPS[problem.op], names, ["dX"], domain="com.microsoft", **problem.options)
        values = [helper.make_tensor_value_info(name, kind, problem.shape) for name in [*names, "dX"]]
        graph = helper.make_graph([node], "one", values[:2], values[2:])
        sets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=9)
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        session = self._runtime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        feeds = dict(zip(names, arguments, strict=True))
        binding = session.io_binding()
        for name, a in feeds.items():
            binding.bind_input(name, "cpu", 0, np.float32, a.shape, a.ctypes.data)
        binding.bind_output("dX", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        return lambda: session.run(None, feeds), lambda: session.run_with_iobinding(binding)


def installed() -> tuple[list[Peer], dict[str, str]]:
    """The peers that are here, ours first, and why the others are not."""
    peers: list[Peer] = [Ours(), NumPy()]
    absent = {}
    for kind in (Torch, OnnxRuntime):
        try:
            peers.append(kind())
        except ImportError as error:
            absent[kind.name] = str(error)
    return peers, absent
