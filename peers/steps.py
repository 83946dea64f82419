"""A training step of a network in a process of its own: forward, cross entropy, backward and AdamW, at batch 32.

`python -m peers.steps backstroke|torch|"torch channels_last"|"onnxruntime training"`, in an environment that has the
system. Ours and ONNX Runtime's training build need different packages of the same name.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .child import serve

SEED = 2026


def data(request: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Images, and labels for them or for each of their points."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal(request["shape"]).astype(np.float32)
    return x, rng.integers(0, request["classes"], request["labels"])


def backstroke(request: dict[str, Any]) -> Callable[[], float]:
    """What `Trainer.fit` does for each batch."""
    import backstroke as bs
    from backstroke.training.data import Batches
    from backstroke.training.trainer import _TARGETS

    bs.set_num_threads(request["threads"])
    x, y = data(request)
    trainer = bs.Trainer(request["model"], loss="cross_entropy", optimizer=bs.AdamW(lr=1e-4))
    batches, rows = Batches({trainer.inputs[0].name: x, _TARGETS: y}, len(x)), np.arange(len(x))
    return lambda: float(trainer._step(batches, rows, len(x), 1e-4).loss / y.size)


def torch(request: dict[str, Any], *, channels_last: bool = False) -> Callable[[], float]:
    """Eager, as people call it."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(request["threads"])
    x, y = map(torch.from_numpy, data(request))
    network = torch.load(request["network"], weights_only=False).train()
    if channels_last:
        network, x = network.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def onnxruntime_training(request: dict[str, Any]) -> Callable[[], float]:
    """Its session for on-device training, from artifacts that it makes of the model."""
    import onnx
    import onnxruntime
    from onnxruntime.training import api, artifacts

    model = onnx.load(request["model"])
    for value in (*model.graph.input, *model.graph.output):  # its gradient of average pooling wants a fixed batch
        value.type.tensor_type.shape.dim[0].dim_value = request["shape"][0]
    folder = Path(tempfile.mkdtemp(prefix="backstroke-steps-"))
    artifacts.generate_artifacts(
        model,
        requires_grad=request["parameters"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )
    for path in folder.glob("*.onnx"):  # with a newer onnx it writes what its own runtime refuses
        made = onnx.load(path)
        made.ir_version = 9
        onnx.save(made, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    x, y = data(request)
    module.train()

    def step() -> float:
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return float(np.asarray(loss))

    return step


SYSTEMS: dict[str, Callable[[dict[str, Any]], Callable[[], float]]] = {
    "backstroke": backstroke,
    "torch": torch,
    "torch channels_last": lambda request: torch(request, channels_last=True),
    "onnxruntime training": onnxruntime_training,
}
_steps: dict[str, Callable[[], float]] = {}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if "shape" in request:
        _steps["made"] = SYSTEMS[sys.argv[1]](request)
        return {"losses": [_steps["made"]() for _ in range(3)]}
    step, seconds = _steps["made"], []
    for i in range(request["count"] + 1):  # the first warms the caches
        start = time.perf_counter()
        step()
        if i:
            seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "memory": _most_memory()}


def _most_memory() -> int:
    """The most bytes of memory that this process has held at once, its libraries and what compiled it included; 0 where
    the system does not say. (`getrusage` would tell of the parent's, too.)"""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    serve(_answer)
