"""Seconds for a training step of whole networks. Every system sits in a process of its own, and they take turns: one
computes while the others sleep.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.child import Child, PeerError

BATCH = 32
SYSTEMS = ("backstroke", "torch", "torch channels_last", "onnxruntime training")
ROOT = Path(__file__).resolve().parent.parent
_PAUSE = 0.1  # in which other processes' threads stop spinning
_MAKING = 300.0  # seconds in which a system must have made its first steps: ours may have to compile
_ROUND = 0.3  # seconds of steps that a turn should have


@dataclass(frozen=True)
class TrainingProblem:
    """A network and the shape of one input."""

    network: str
    shape: tuple[int, ...]
    classes: int = 10
    per_point: bool = False  # a label for each point of the image, not for each image
    group: str = "training"
    op: str = "training step"
    label: str = ""
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """As `Problem` has it."""
        return f"{self.group}: {self}"

    def __str__(self) -> str:
        return f"training step {self.network} {'x'.join(map(str, (BATCH, *self.shape)))}"


PROBLEMS = (
    TrainingProblem("LeNet", (1, 28, 28)),
    TrainingProblem("ResNet-18", (3, 64, 64)),
    TrainingProblem("MobileNetV2", (3, 96, 96)),
    TrainingProblem("UNet small", (1, 64, 64), classes=2, per_point=True),
)


def our_python() -> str:
    """The environment with today's ONNX Runtime, which runs our forward passes: that of `make demo`."""
    chosen = os.environ.get("BACKSTROKE_PYTHON") or str(ROOT / ".venv" / "bin" / "python")
    return chosen if Path(chosen).exists() else sys.executable


def measured(problem: TrainingProblem, threads: int, rounds: int) -> dict[str, Any]:
    """For each system the median seconds of a step and the most bytes its process has held; why others have none."""
    with tempfile.TemporaryDirectory(prefix="backstroke-bench-") as folder:
        request = {**_export(problem, Path(folder)), "threads": threads}
        children, absent = {}, {}
        try:
            for name in SYSTEMS:
                python = our_python() if name == "backstroke" else sys.executable
                children[name] = Child([python, "-m", "peers.steps", name])
                try:
                    children[name].call(request, _MAKING)
                except PeerError as error:
                    absent[name] = str(error).strip().splitlines()[-1][:200]
                    children.pop(name).close()
            times: dict[str, list[float]] = {name: [] for name in children}
            counts, memory = {}, {}
            for _ in range(rounds):
                for name, child in children.items():
                    time.sleep(_PAUSE)
                    if name not in counts:
                        (once,) = child.call({"count": 1})["seconds"]
                        counts[name] = min(50, max(1, int(_ROUND / once)))
                    answer = child.call({"count": counts[name]})
                    times[name] += answer["seconds"]
                    if answer["memory"]:
                        memory[name] = answer["memory"]
        finally:
            for child in children.values():
                child.close()
    seconds = {name: statistics.median(each) for name, each in times.items()}
    return {"problem": str(problem), "seconds": seconds, "memory": memory, "absent": absent}


def _export(problem: TrainingProblem, folder: Path) -> dict[str, Any]:
    """The network as torch's own file and as ONNX, and what the processes must know."""
    import torch

    from tests.graph import networks

    makers = {
        "LeNet": networks.lenet,
        "ResNet-18": networks.resnet18,
        "MobileNetV2": networks.mobilenet_v2,
        "UNet small": lambda: networks.UNet(16),
    }
    torch.manual_seed(0)
    network = makers[problem.network]().train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for parameter in network.parameters():  # no two alike, or the export makes one of them
        parameter.data += 1e-3 * torch.randn_like(parameter)
    torch.save(network, folder / "network.pt")
    model = networks.export(network, torch.randn(2, *problem.shape))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return {
        "network": str(folder / "network.pt"),
        "model": str(folder / "model.onnx"),
        "shape": [BATCH, *problem.shape],
        "labels": [BATCH, *problem.shape[1:]] if problem.per_point else [BATCH],
        "classes": problem.classes,
        "parameters": [name for name, _ in network.named_parameters()],
    }
