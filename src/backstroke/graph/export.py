"""The gradient graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx


def gradient_model(model: Any, *, of: Sequence[str], wrt: Sequence[str]) -> onnx.ModelProto:
    """Forward and backward nodes of a model in one ONNX model."""
    raise NotImplementedError
