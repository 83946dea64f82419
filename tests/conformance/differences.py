"""Where a system is wrong by its own contract or by the derivative: one example each, with both answers.

`docs/differences.md` is made from this table (`python tests/conformance/differences.py`), and the tests ask both
sides again: the day a system answers otherwise, its test fails and the entry can go.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "differences.md"
INF, NAN = math.inf, math.nan
REFUSES, DIES, RAISES = "refuses the call", "the process ends", "`ValueError`"


@dataclass(frozen=True)
class Difference:
    """A call, what we answer (or RAISES), what they answer (or REFUSES, or DIES), and what decides.

    Where `forward` is given it decides: `ours` is the derivative of sum(dy * forward(x)) at x, by finite differences.
    """

    system: str
    op: str
    what: str
    inputs: Any
    attributes: dict[str, Any]
    shape: tuple[int, ...]
    ours: list[float] | str
    theirs: list[float] | str
    why: str = "the derivative"
    forward: Callable[[np.ndarray], np.ndarray] | None = None
    at: list[float] = field(default_factory=list)  # x, where the inputs do not say it
    domain: str = ""

    @property
    def name(self) -> str:
        return f"{self.system}-{self.op}-{self.what}"

    def derivative(self) -> list[float]:
        """By central differences of the float64 forward; exact to nine digits for these."""
        assert self.forward is not None
        x = np.array(self.at or [0.0] * math.prod(self.shape), np.float64).reshape(self.shape)
        dy = np.asarray(self.inputs["dy"] if isinstance(self.inputs, dict) else self.inputs[0], np.float64)
        step, found = 2.0**-10, []
        for place in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[place] += step
            down[place] -= step
            found.append(float((dy * (self.forward(up) - self.forward(down))).sum() / (2 * step)))
        return found


def _array(values: list[float], *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype).reshape(shape or (-1,))


def _wave(*values: float) -> np.ndarray:
    return _array(list(values), 1, 1, -1)


def _mean(kernel: Any, layout: str = "NCX", **options: Any) -> Callable[[np.ndarray], np.ndarray]:
    def forward(x: np.ndarray) -> np.ndarray:
        from backstroke import reference

        y: np.ndarray = reference.avg_pool(x, kernel, **{"strides": 1, "layout": layout, **options})
        return y

    return forward


def _max(kernel: Any, **options: Any) -> Callable[[np.ndarray], np.ndarray]:
    def forward(x: np.ndarray) -> np.ndarray:
        from backstroke import reference

        y: np.ndarray = reference.max_pool(x, kernel, **{"strides": 1, "layout": "NXC", **options})
        return y

    return forward


def _conv(w: np.ndarray, **options: Any) -> Callable[[np.ndarray], np.ndarray]:
    def forward(x: np.ndarray) -> np.ndarray:
        from backstroke import reference

        y: np.ndarray = reference.conv(x, w, **options)
        return y

    return forward


MS = "com.microsoft"
_ONED: dict[str, Any] = {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [2], "data_format": "NCX"}
_CONV: dict[str, Any] = {n: v for n, v in _ONED.items() if n != "kernel"} | {"dilations": [1], "weights_format": "OIX"}
_VALID = {"strides": 1, "pad": "valid"}
_SEVEN = _array([7], 1, 1, 1, 1, 1)


def _tfjs(dy: np.ndarray, x: np.ndarray, *, output: bool = True) -> dict[str, np.ndarray]:
    return {"dy": dy, "input": x} | ({"output": dy} if output else {})


DIFFERENCES = (
    Difference(
        "ONNX Runtime", "AveragePoolGrad", "overlapping windows in 3-D overwrite one another",
        [_array([8, 16], 1, 1, 2, 1, 1)], {"kernel_shape": [2, 1, 1], "strides": [1, 1, 1]}, (1, 1, 3, 1, 1),
        [4, 12, 8], [4, 8, 8], forward=_mean((2, 1, 1)),
    ),
    Difference(
        "ONNX Runtime", "AveragePoolGrad", "auto_pad is passed over",
        [_wave(6, 6, 6)], {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}, (1, 1, 3),
        [5, 8, 5], [2, 5, 11], forward=_mean(3, auto_pad="same_upper"),
    ),
    Difference(
        "ONNX Runtime", "AveragePoolGrad", "dilations are passed over",
        [_wave(6, 4)], {"kernel_shape": [2], "dilations": [2]}, (1, 1, 4),
        [3, 2, 3, 2], [3, 5, 2, 0], forward=_mean(2, dilations=2),
    ),
    Difference(
        "ONNX Runtime", "MaxPoolGrad", "storage_order=1 is passed over",
        [_array([5], 1, 1, 1, 1), _array([1], 1, 1, 1, 1, dtype=np.int64)],
        {"kernel_shape": [2, 3], "storage_order": 1}, (1, 1, 2, 3),
        [0, 0, 0, 5, 0, 0], [0, 5, 0, 0, 0, 0], why="ONNX' MaxPool: index 1 counts down the first column",
    ),
    Difference(
        "ONNX Runtime", "TanhGrad", "1 - y * y is rounded twice", [_array([1]), _array([1 - 2.0**-24])], {}, (1,),
        [2.0**-23 - 2.0**-48], [2.0**-23], domain=MS, why="1 - y^2 = 2^-23 - 2^-48, which float32 can hold",
    ),
    Difference(
        "ONNX Runtime", "LogSoftmaxGrad_13", "exp(-infinity) is not 0",
        [_array([1e38, 0, 0, 0]), _array([0, -INF, -INF, -INF])], {}, (4,), [0, 0, 0, 0], [0, *[-0.2938265] * 3],
        domain=MS, why="dy - exp(y) sum(dy) with exp(-infinity) = 0",
    ),
    Difference(
        "ONNX Runtime", "ConvGrad", "auto_pad is passed over",
        [_wave(1, 1, 1), _wave(1, 1, 1), _wave(1, 1, 1)], {"auto_pad": "SAME_UPPER"}, (1, 1, 3),
        [2, 3, 2], [1, 2, 3], domain=MS, forward=_conv(_wave(1, 1, 1), auto_pad="same_upper"),
    ),
    Difference(
        "ONNX Runtime", "ConvGrad", "a batch of 0", [_array([], 0, 1, 3), _array([], 0, 1, 3), _wave(1)], {}, (0, 1, 3),
        [], DIES, domain=MS, why="no input may end the process: gradients of nothing, which is right",
    ),
    Difference(
        "oneDNN", "ConvolutionBackwardData", "groups are refused", [_array([5, 7], 1, 2, 1), _array([2, 3], 2, 1, 1)],
        _CONV | {"groups": 2, "dst_shape": [1, 2, 1]}, (1, 2, 1), [10, 21], REFUSES,
        forward=_conv(_array([2, 3], 2, 1, 1), group=2),
    ),
    Difference(
        "oneDNN", "ConvolutionBackwardData", "dst_shape is taken as an attribute only",
        [_wave(5, 6), _wave(2), _array([1, 1, 2], dtype=np.int32)], _CONV | {"dst_shape": [1, 1, 2]}, (1, 1, 2),
        [10, 12], REFUSES, why="its schema has the input, and says that the input wins", forward=_conv(_wave(2)),
    ),
    Difference(
        "oneDNN", "ConvolutionBackwardWeights", "weights_shape is taken as an attribute only",
        [_wave(5, 6), _wave(2, 3), _array([1, 1, 1], dtype=np.int32)], _CONV | {"weights_shape": [1, 1, 1]}, (1, 1, 1),
        [28], REFUSES, why="its schema has the input, and says that the input wins",
    ),
    Difference(
        "oneDNN", "Convolution", "a stride of 0", [_wave(5, 6), _wave(2)], _CONV | {"strides": [0]}, (1, 1, 2),
        RAISES, DIES, why="no input may end the process: a ValueError",
    ),
    Difference(
        "oneDNN", "MaxPool", "a window without a maximum gives the lowest float", [_wave(NAN, NAN)],
        _ONED | {"dilations": [1]}, (1, 1, 1), [-INF], [float(np.finfo(np.float32).min)],
        why="the largest of no numbers is -infinity",
    ),
    Difference(
        "oneDNN", "MaxPoolBackward", "its gradient goes to its first element", [_wave(NAN, NAN), _wave(5)],
        _ONED | {"dilations": [1]}, (1, 1, 2), [0, 0], [5, 0], why="nothing that was not the maximum has a share in it",
    ),
    Difference(
        "oneDNN", "MaxPoolBackward", "dilations cannot be left out", [_wave(1, 2, 3), _wave(5, 6)], _ONED, (1, 1, 3),
        [0, 5, 6], REFUSES, why="its schema has a default: 1",
    ),
    Difference(
        "oneDNN", "AvgPoolBackward", "src_shape is taken as an attribute only",
        [_wave(5, 6), _array([1, 1, 3], dtype=np.int32)], _ONED | {"exclude_pad": True, "src_shape": [1, 1, 3]},
        (1, 1, 3), [2.5, 5.5, 3], REFUSES, why="its schema has the input, and says that the input wins",
        forward=_mean(2),
    ),
    Difference(
        "oneDNN", "AvgPoolBackward", "a stride of 0", [_wave(5, 6)],
        _ONED | {"exclude_pad": True, "src_shape": [1, 1, 3], "strides": [0]}, (1, 1, 3), RAISES, DIES,
        why="no input may end the process: a ValueError",
    ),
    Difference(
        "TensorFlow.js", "AvgPoolGrad", "it divides by the whole window",
        _tfjs(np.ones((1, 2, 2, 1), np.float32), np.ones((1, 2, 2, 1), np.float32), output=False),
        {"filterSize": 2, "strides": 1, "pad": "same"}, (1, 2, 2, 1),
        [0.25, 0.75, 0.75, 2.25], [0.25, 0.5, 0.5, 1], forward=_mean(2, "NXC", auto_pad="same_upper"),
    ),
    Difference(
        "TensorFlow.js", "AvgPool3DGrad", "it divides by the whole window",
        _tfjs(np.ones((1, 1, 2, 2, 1), np.float32), np.ones((1, 1, 2, 2, 1), np.float32), output=False),
        {"filterSize": [1, 2, 2], "strides": 1, "pad": "same"}, (1, 1, 2, 2, 1),
        [0.25, 0.75, 0.75, 2.25], [0.25, 0.5, 0.5, 1], forward=_mean((1, 2, 2), "NXC", auto_pad="same_upper"),
    ),
    Difference(
        "TensorFlow.js", "MaxPool3DGrad", "the last of equal maxima wins",
        _tfjs(_SEVEN, _array([5, 5, 5], 1, 1, 1, 3, 1)), {"filterSize": [1, 1, 3], **_VALID}, (1, 1, 1, 3, 1),
        [7, 0, 0], [0, 0, 7], why="the first wins in its 2-D op, and in everybody else's",
    ),
    Difference(
        "TensorFlow.js", "MaxPool3DGrad", "a window of -infinity has a maximum",
        _tfjs(_SEVEN, _array([-INF, -INF], 1, 1, 1, 2, 1)), {"filterSize": [1, 1, 2], **_VALID}, (1, 1, 1, 2, 1),
        [0, 0], [0, 7], why="it has none in its 2-D op",
    ),
    Difference(
        "TensorFlow.js", "MaxPool3DGrad", "height is taken for width",
        _tfjs(_SEVEN, _array([1, 2, 3, 4, 5, 6], 1, 1, 2, 3, 1)), {"filterSize": [1, 2, 3], **_VALID}, (1, 1, 2, 3, 1),
        [0, 0, 0, 0, 0, 7], [0, 0, 0, 0, 7, 0], forward=_max((1, 2, 3)), at=[1, 2, 3, 4, 5, 6],
    ),
    Difference(
        "TensorFlow.js", "MaxPool3DGrad", "'same' pads by less than nothing",
        _tfjs(_array([1, 2, 3], 1, 1, 1, 3, 1), np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8, 1)),
        {"filterSize": 1, "strides": [1, 1, 3], "pad": "same"}, (1, 1, 1, 8, 1),
        [1, 0, 0, 2, 0, 0, 3, 0], [0, 1, 0, 0, 2, 0, 0, 3], why="its 2-D op has no pads below 0",
        forward=_max(1, strides=(1, 1, 3)), at=[0, 1, 2, 3, 4, 5, 6, 7],
    ),
)  # fmt: skip


def table() -> str:
    """The entries as Markdown."""
    lines = []
    for system in dict.fromkeys(d.system for d in DIFFERENCES):
        lines += [
            f"### {system}",
            "",
            "| op | what | call | there | here | what decides |",
            "|---|---|---|---|---|---|",
        ]
        for d in DIFFERENCES:
            if d.system != system:
                continue
            inputs = d.inputs.items() if isinstance(d.inputs, dict) else enumerate(d.inputs)
            call = "; ".join(f"{_short(x)}" for name, x in inputs if name != "output")
            attributes = ", ".join(f"{name}={value}" for name, value in d.attributes.items())
            there = d.theirs if isinstance(d.theirs, str) else f"`{_numbers(d.theirs)}`"
            here = d.ours if isinstance(d.ours, str) else f"`{_numbers(d.ours)}`" if d.ours else "nothing, as it is"
            why = f"finite differences: `{_numbers(d.derivative())}`" if d.forward else d.why
            lines.append(f"| `{d.op}` | {d.what} | `{call}`; `{attributes}` | {there} | {here} | {why} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _short(x: np.ndarray) -> str:
    return f"{_numbers(x.ravel().tolist())} as {'x'.join(map(str, x.shape))}"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{round(v, 9):.8g}" if abs(v) > 1e-6 else f"{v:.9g}" for v in map(float, values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    text = PAGE.read_text()
    start, end = text.index("-->", text.index("<!-- differences:")) + 3, text.index("<!-- end of differences -->")
    made = f"{text[:start]}\n{table()}\n{text[end:]}"
    if made == text:
        return 0
    if parser.parse_args().check:
        print(f"{PAGE.name} is not what tests/conformance/differences.py makes")
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
