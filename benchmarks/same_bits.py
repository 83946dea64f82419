"""Whose bits depend on the number of threads: `python -m benchmarks.same_bits`.

PyTorch's gradients and ours with one thread and with two, on the same float32 data: how many numbers differ, and by how
many units in the last place of the largest result at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import backstroke as bs

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = {
    "8x64x56x56, 64 of 3x3": ((8, 64, 56, 56), (64, 64, 3, 3), {"pads": 1}),
    "8x256x14x14, 256 of 3x3": ((8, 256, 14, 14), (256, 256, 3, 3), {"pads": 1}),
    "8x512x7x7, 512 of 3x3": ((8, 512, 7, 7), (512, 512, 3, 3), {"pads": 1}),
    "8x256x56x56, 64 of 1x1": ((8, 256, 56, 56), (64, 256, 1, 1), {}),
    "8x3x224x224, 64 of 7x7, stride 2": ((8, 3, 224, 224), (64, 3, 7, 7), {"strides": 2, "pads": 3}),
    "8x128x56x56, depthwise 3x3": ((8, 128, 56, 56), (128, 1, 3, 3), {"pads": 1, "group": 128}),
    "1x64x16000, 64 of 2": ((1, 64, 16000), (64, 64, 2), {}),
    "1x32x16x28x28, 32 of 3x3x3": ((1, 32, 16, 28, 28), (32, 32, 3, 3, 3), {"pads": 1}),
}
SOFTMAXES: dict[str, tuple[tuple[int, ...], int]] = {
    "4096x1000": ((4096, 1000), 1),
    "64x50257": ((64, 50257), 1),
    "1x50257": ((1, 50257), 1),
    "32x256x28x28, axis 1": ((32, 256, 28, 28), 1),
    "2x40000x3, axis 1": ((2, 40000, 3), 1),
    "1000x1000, axis 0": ((1000, 1000), 0),
}
Answers = Callable[[], list[np.ndarray]]


def problems() -> Iterator[tuple[str, tuple[str, ...], Answers, Answers]]:
    """(problem, names of the results, torch's, ours)."""
    import torch

    rng = np.random.default_rng(0)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    for name, (x_shape, w_shape, options) in CONVOLUTIONS.items():
        x, w = normal(x_shape), normal(w_shape)
        dy = normal(bs.conv(x, w, **options).shape)
        rank = x.ndim - 2
        along: list[Any] = [[options.get(key, default)] * rank for key, default in (("strides", 1), ("pads", 0))]
        along += [[1] * rank, False, [0] * rank, options.get("group", 1)]
        tensors = [torch.from_numpy(a) for a in (dy, x, w)]

        def theirs(tensors: Any = tensors, along: Any = along, bias: int = w_shape[0]) -> list[np.ndarray]:
            found = torch.ops.aten.convolution_backward(*tensors, [bias], *along, [True] * 3)
            return [t.numpy() for t in found]

        def ours(dy: Any = dy, x: Any = x, w: Any = w, options: Any = options) -> list[np.ndarray]:
            return list(bs.conv_grad(dy, x, w, **options))

        yield f"convolution {name}", ("dx", "dw", "db"), theirs, ours
    for name, (shape, axis) in SOFTMAXES.items():
        dy, share = normal(shape), np.abs(normal(shape)) / shape[axis]
        for op in ("softmax", "log_softmax"):
            y = np.log(share) if op == "log_softmax" else share
            pair = [torch.from_numpy(a) for a in (dy, y)]

            def theirs(op: str = op, pair: Any = pair, axis: int = axis) -> list[np.ndarray]:
                call = getattr(torch.ops.aten, f"_{op}_backward_data")
                return [call(*pair, axis, torch.float32).numpy()]

            def ours(op: str = op, dy: Any = dy, y: Any = y, axis: int = axis) -> list[np.ndarray]:
                return [getattr(bs, f"{op}_grad")(dy, y, axis=axis)]

            yield f"{op} {name}", ("dx",), theirs, ours


def difference(one: np.ndarray, two: np.ndarray) -> str:
    """How far two results are apart, in words."""
    differ = one.view(np.uint32) != two.view(np.uint32)
    if not differ.any():
        return "same"
    unit = np.spacing(np.abs(one).max())
    return f"{differ.mean():.0%} differ, by {float(np.abs(one - two).max() / unit):.2g}"


def main() -> None:
    import torch

    before = bs.get_num_threads()
    print("| problem | torch | ours |\n|---|---|---|")
    for name, results, theirs, ours in problems():
        told = []
        for run, threads in ((theirs, torch.set_num_threads), (ours, bs.set_num_threads)):
            found = []
            for count in (1, 2):
                threads(count)
                found.append(run())
            each = {n: difference(*pair) for n, pair in zip(results, zip(*found, strict=True), strict=True)}
            told.append("; ".join(f"{n} {what}" for n, what in each.items()))
        print(f"| {name} | {' | '.join(told)} |", flush=True)
    bs.set_num_threads(before)


if __name__ == "__main__":
    main()
