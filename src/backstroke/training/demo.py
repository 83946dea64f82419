"""The main job: a small convolutional ONNX model learns the handwritten digits that scikit-learn has."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HELD_OUT = 360  # of 1797 digits
AT_LEAST = 0.98


def digits_model(seed: int = 0) -> Any:
    """An onnx.ModelProto: two convolutions and two dense layers, 8 x 8 grey images to ten logits, untrained."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 0
        value = rng.normal(size=shape) * np.sqrt(2 / fan_in) if fan_in else np.zeros(shape)
        weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    nodes, x = [], "image"
    for i, (before, after) in enumerate(((1, 32), (32, 64)), 1):
        arguments = [x, weight(f"conv{i}.weight", after, before, 3, 3), weight(f"conv{i}.bias", after)]
        nodes.append(helper.make_node("Conv", arguments, [f"conv{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"], f"relu{i}"))
        x = f"pool{i}"
        nodes.append(helper.make_node("MaxPool", [f"relu{i}"], [x], x, kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("Flatten", [x], ["flat"], "flatten"))
    dense = ["flat", weight("dense.weight", 64, 256), weight("dense.bias", 64)]
    nodes.append(helper.make_node("Gemm", dense, ["dense"], "dense", transB=1))
    nodes.append(helper.make_node("Relu", ["dense"], ["features"], "relu3"))
    head = ["features", weight("head.weight", 10, 64), weight("head.bias", 10)]
    nodes.append(helper.make_node("Gemm", head, ["logits"], "head", transB=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    return helper.make_model(
        graph, producer_name="backstroke", ir_version=9, opset_imports=[helper.make_opsetid("", 17)]
    )


def digits(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, xv, yv): scikit-learn's digits, shuffled; the last `HELD_OUT` are held out."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    x = (images[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels[order].astype(np.int64)
    return x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]


def moved(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The images, and each of them moved by a pixel up, down, left and right."""
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    starts = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return np.concatenate([wide[:, :, row : row + 8, column : column + 8] for row, column in starts]), np.tile(y, 5)


def run(folder: Path, *, epochs: int = 6, progress: bool | None = None) -> dict[str, Any]:
    """Train, save to `folder`, and ask plain ONNX Runtime; -> what was found."""
    import onnx
    import onnxruntime

    from . import curves
    from .optimizers import AdamW
    from .trainer import Trainer

    x, y, xv, yv = digits()
    source, tuned, picture = (folder / name for name in ("digits.onnx", "tuned.onnx", "curve.png"))
    onnx.save(digits_model(), source)
    trainer = Trainer(source, loss="cross_entropy", optimizer=AdamW(lr=3e-3, weight_decay=0.1), schedule="cosine")
    before, began = trainer.evaluate(xv, yv), time.perf_counter()
    trainer.fit(*moved(x, y), epochs=epochs, batch_size=64, validation=(xv, yv), progress=progress, out=tuned)
    seconds = time.perf_counter() - began
    onnx.checker.check_model(str(tuned), full_check=True)
    session = onnxruntime.InferenceSession(str(tuned), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": xv})
    curves.picture(trainer, picture)
    return {
        "before": before["accuracy"],
        "accuracy": float((logits.argmax(1) == yv).mean()),
        "held_out": len(yv),
        "largest_difference": float(np.abs(logits - trainer.predict(xv)).max()),
        "seconds": seconds,
        "files": [str(path) for path in (source, tuned, picture)],
        "curve": curves.text(trainer.losses, title="training loss, by step (logarithmic)"),
    }


def report(found: dict[str, Any]) -> bool:
    """Print what was found; whether it is good enough."""
    good: bool = found["accuracy"] >= AT_LEAST and found["largest_difference"] < 1e-4
    print(found["curve"])
    print(f"\ntrained in {found['seconds']:.1f} s on handwritten digits; of {found['held_out']} held out, right were")
    print(f"  before   {100 * found['before']:6.2f} %")
    print(f"  after    {100 * found['accuracy']:6.2f} %   said by plain onnxruntime of {found['files'][1]}")
    print(f"its logits and the trainer's differ by at most {found['largest_difference']:.1g}")
    print("files: " + ", ".join(found["files"]))
    if not good:
        print(f"NOT GOOD ENOUGH: expected at least {100 * AT_LEAST:.0f} %", file=sys.stderr)
    return good
