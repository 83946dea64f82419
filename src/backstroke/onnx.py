"""ONNX Runtime's gradient nodes in ONNX' own reference evaluator, computed by Backstroke.

    from onnx.reference import ReferenceEvaluator
    import backstroke.onnx
    session = ReferenceEvaluator(model, new_ops=backstroke.onnx.ops(model))

The classes are made from the table of the ONNX Runtime dialect: what it has, the evaluator runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .dialects import onnxruntime
from .dialects.table import Kernel

try:
    import onnx
    from onnx.reference.op_run import OpRun
except ImportError as error:
    raise ImportError("backstroke.onnx needs ONNX: pip install onnx") from error

_NOTHING = np.zeros(0, np.float32)  # what the evaluator is given for an output without a name
Shape = tuple[Any, ...]  # numbers; a name or None where a size is open


def ops(model: Any = None) -> list[type]:
    """The op classes for `new_ops=`.

    Pooling gradients need the static shape of their output; it is read from `model`, a `ModelProto` or a path, as
    ONNX Runtime reads it. Without a model those ops raise `ValueError` when they run.
    """
    shapes = _shapes(model) if model is not None else {}
    return [_op(kernel, shapes) for kernel in onnxruntime.kernels()]


def _op(kernel: Kernel, shapes: dict[str, Shape]) -> type:
    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        names = list(self.onnx_node.output)
        known = [shapes[name] for name in names if name in shapes]
        try:
            results = onnxruntime.run(
                kernel.op,
                inputs,
                attributes,
                domain=kernel.domain,
                outputs=names,
                output_shapes=known if len(known) == len(names) else None,
            )
        except TypeError as error:  # the evaluator would hide the message behind one of its own
            raise ValueError(str(error)) from error
        return tuple(_NOTHING if result is None else result for result in results)

    described = {"op_domain": kernel.domain, "_run": run, "__doc__": str(kernel), "__module__": __name__}
    return type(kernel.op, (OpRun,), described)


def _shapes(model: Any) -> dict[str, Shape]:
    """The shapes that a model states, by name."""
    graph = (model if isinstance(model, onnx.ModelProto) else onnx.load(model)).graph
    stated: dict[str, Shape] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            stated[info.name] = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)
    return stated


__all__ = ["ops"]
