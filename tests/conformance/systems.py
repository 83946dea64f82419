"""The three systems whose dialects we speak: their tables, what we answer and what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstroke.dialects import onednn as our_onednn
from backstroke.dialects import onnxruntime as our_ort
from backstroke.dialects import tfjs as our_tfjs
from backstroke.dialects.table import Kernel
from peers import onednn, ort, tfjs


@dataclass(frozen=True)
class Case:
    """A call in the system's own words: `shapes` are those of the outputs, `bound` how far the answers may be apart."""

    inputs: Any
    attributes: dict[str, Any]
    shapes: list[tuple[int, ...]]
    bound: Callable[[], list[Any]]


@dataclass(frozen=True)
class System:
    """A system: its module in `peers`, its dialect's table, and both ways to answer a case."""

    name: str
    peer: str
    kernels: Callable[[], tuple[Kernel, ...]]
    ours: Callable[[Kernel, Case], list[np.ndarray]]
    theirs: Callable[[Kernel, Case], list[np.ndarray]]


def _our_ort(kernel: Kernel, case: Case) -> list[np.ndarray]:
    shapes = case.shapes if kernel.domain == our_ort.ONNX else None
    count = len(case.shapes)
    found: list[np.ndarray] = our_ort.run(
        kernel.op, case.inputs, case.attributes, domain=kernel.domain, outputs=count, output_shapes=shapes
    )
    return found


def _their_ort(kernel: Kernel, case: Case) -> list[np.ndarray]:
    return ort.run(kernel.op, case.inputs, case.attributes, case.shapes, domain=kernel.domain)


def _their_onednn(kernel: Kernel, case: Case) -> list[np.ndarray]:
    return [onednn.run(kernel.op, case.inputs, case.attributes, case.shapes[0])]


SYSTEMS = (
    System("ONNX Runtime", "ort", our_ort.kernels, _our_ort, _their_ort),
    System(
        "oneDNN", "onednn", our_onednn.kernels, lambda k, c: our_onednn.run(k.op, c.inputs, c.attributes), _their_onednn
    ),
    System(
        "TensorFlow.js",
        "tfjs",
        our_tfjs.kernels,
        lambda k, c: [our_tfjs.run(k.op, c.inputs, c.attributes)],
        lambda k, c: [tfjs.run(k.op, c.inputs, c.attributes)],
    ),
)
