"""The forward pass: stock ONNX Runtime, reading and writing the memory of NumPy arrays (IO binding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ..jit.threads import pool


class Session:
    """One ONNX Runtime session over a model."""

    def __init__(
        self, proto: onnx.ModelProto, apart: Mapping[str, np.ndarray] | None = None, *, optimized: bool = True
    ) -> None:
        """`apart` are weights that are not in the protobuf, which ends at 2 GB."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = pool.threads
        # Its workers must not burn the CPUs that the gradient kernels run on: they spin within a run and not after it.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            if apart:
                values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in apart.values()]
                options.add_external_initializers(list(apart), values)
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions have no common class but this
            raise ValueError(f"model: onnxruntime cannot load it: {error}") from error
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: dict[str, np.ndarray], outputs: Sequence[str]) -> list[Any]:
        """The outputs as new arrays."""
        try:
            return list(self._session.run(list(outputs), feeds))
        except Exception as error:
            raise ValueError(f"onnxruntime: {error}") from error

    def bind(self, outputs: dict[str, np.ndarray]) -> Binding:
        """A binding that writes into these arrays."""
        return Binding(self._session, outputs)


class Binding:
    """Inputs and outputs of a session, in the memory of arrays."""

    def __init__(self, session: Any, outputs: dict[str, np.ndarray]) -> None:
        self._session, self._io = session, session.io_binding()
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs = outputs
        for name, array in outputs.items():
            self._io.bind_output(name, "cpu", 0, _kind(array), array.shape, array.ctypes.data)

    def run(self, feeds: dict[str, np.ndarray]) -> None:
        """Run on these arrays, which must be dense; the outputs are in their arrays then."""
        for name, array in feeds.items():
            if self._inputs.get(name) is not array:
                self._io.bind_input(name, "cpu", 0, _kind(array), array.shape, array.ctypes.data)
                self._inputs[name] = array
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:
            raise ValueError(f"onnxruntime: {error}") from error


def _kind(array: np.ndarray) -> Any:
    return array.dtype.type
