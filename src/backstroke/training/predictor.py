"""The model with its present weights in plain ONNX Runtime: what `save` would give to anybody else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..jit.threads import pool
from .model_file import ModelFile


class Predictor:
    """A session of ONNX Runtime over the model as it would be saved now."""

    def __init__(self, model: ModelFile, weights: Mapping[str, np.ndarray], output: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = pool.threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if model.locations:
            # Weights in files of their own: those that have changed come from memory, the others from their files.
            assert model.path is not None
            changed = {name: w for name, w in weights.items() if model.weights[name].location}
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in changed.values()]
            options.add_external_initializers(list(changed), values)
            folder = str(model.path.parent.resolve())
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        data = b"".join(model.content(weights))
        self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._output = output

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        """The output for a batch."""
        result: np.ndarray = self._session.run([self._output], dict(feeds))[0]
        return result


def stretches(samples: Mapping[str, np.ndarray], size: int) -> Iterator[tuple[slice, dict[str, Any]]]:
    """The samples in order, `size` at a time."""
    count = len(next(iter(samples.values())))
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count))
        yield rows, {name: np.ascontiguousarray(x[rows]) for name, x in samples.items()}
