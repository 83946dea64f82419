"""Windows: how a kernel walks over an input, for pooling and convolution alike.

A `Geometry` is the answer to every question about positions: which input elements does output position `o` see, how
many are they, and how large is the output. All numbers are Python integers, so no size overflows.

Terms. A *tap* is one element of the kernel; the taps of output position `o` on one axis stand at input positions
`o * stride - pad_begin + t * dilation` for `t` in `range(kernel)`. A tap is *valid* when it lies inside the input.
"""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

Pads = tuple[tuple[int, int], ...]
Rounding = Literal["floor", "ceil", "ceil_inside", "round", "trunc"]
Counted = Literal["valid", "padded", "kernel"]

_ROUND: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "ceil_inside": math.ceil,
    "round": lambda value: math.floor(value + Fraction(1, 2)),
    "trunc": math.trunc,
}
_AUTO_PADS = ("none", "same_upper", "same_lower", "valid")
_LAYOUTS = ("NCX", "NXC")
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Geometry:
    """The windows of one pooling or convolution, one entry per spatial axis, 1 to 3 axes.

    `of` makes one from the arguments of a public function. The fields themselves may say more than those arguments
    can: an output size that no rounding rule gives, an empty output, or negative pads, which crop the input.
    """

    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_size", integers("input_size", self.input_size, None, 0))
        if not 1 <= self.rank <= 3:
            raise ValueError(f"input_size: {self.input_size!r} given, expected 1 to 3 spatial axes")
        for name, least in (("output_size", 0), ("kernel", 1), ("strides", 1), ("dilations", 1)):
            object.__setattr__(self, name, integers(name, getattr(self, name), self.rank, least))
        object.__setattr__(self, "pads", _pad_pairs(self.pads, self.rank, least=None))

    @classmethod
    def of(
        cls,
        input_size: Sequence[int],
        kernel: int | Sequence[int],
        *,
        strides: int | Sequence[int] | None = None,
        pads: int | Sequence[int] | Sequence[Sequence[int]] = 0,
        dilations: int | Sequence[int] = 1,
        auto_pad: str = "none",
        rounding: Rounding = "floor",
        kernel_name: str = "kernel",
    ) -> Geometry:
        """The geometry that the arguments of a public function describe.

        kernel, strides, dilations: an int for all axes, or one per axis; strides=None means the kernel.
        pads: an int for all sides, one int per axis for both its sides, or a (begin, end) pair per axis; never
        negative.
        auto_pad: "none"; "valid", no padding; "same_upper" and "same_lower", the least padding that makes the output
        ceil(input / stride) long, an odd element going to the end or to the beginning. Case does not matter. Other than
        "none" it goes with pads of zero only.
        rounding: how many windows fit when the last stride is not whole. "floor"; "ceil"; "ceil_inside", which is
        "ceil" but drops a last window that starts in the end padding (ONNX, PyTorch); "round", halves go up; "trunc".
        kernel_name: what errors call the kernel.

        An output that would be shorter than 1 on some axis is a ValueError.
        """
        input_size = integers("input_size", input_size, None, 0)
        rank = len(input_size)
        kernel = integers(kernel_name, kernel, rank, 1)
        strides = kernel if strides is None else integers("strides", strides, rank, 1)
        dilations = integers("dilations", dilations, rank, 1)
        pad_pairs = _pad_pairs(pads, rank, least=0)
        mode = _choice("auto_pad", auto_pad.lower() if isinstance(auto_pad, str) else auto_pad, _AUTO_PADS)
        if mode != "none" and any(side for pair in pad_pairs for side in pair):
            raise ValueError(f"pads: {pads!r} given with auto_pad={auto_pad!r}, expected 0: one of the two decides")
        _choice("rounding", rounding, tuple(_ROUND))
        return _geometry(input_size, kernel, strides, dilations, pad_pairs, mode, rounding, kernel_name)

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.input_size)

    @property
    def extents(self) -> tuple[int, ...]:
        """The length of a window from its first tap to its last, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def start(self, axis: int, position: int) -> int:
        """The input position of the first tap of output `position`; negative in the begin padding."""
        return position * self.strides[axis] - self.pads[axis][0]

    def axis_taps(self, axis: int, position: int) -> range:
        """The input positions of the valid taps of output `position` on one axis, ascending, perhaps none."""
        start, dilation = self.start(axis, position), self.dilations[axis]
        first = start if start >= 0 else start % dilation
        return range(first, min(start + self.extents[axis], self.input_size[axis]), dilation)

    def taps(self, position: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The input positions that the window of output `position` sees, in scan order (the last axis runs fastest)."""
        return itertools.product(*(self.axis_taps(axis, p) for axis, p in enumerate(position)))

    def interior(self, axis: int) -> range:
        """The output positions whose whole window lies inside the input: there no tap needs a bounds check."""
        begin, stride = self.pads[axis][0], self.strides[axis]
        first = max(0, _ceil_div(begin, stride))
        stop = (self.input_size[axis] - self.extents[axis] + begin) // stride + 1
        count = self.output_size[axis]
        return range(min(first, count), min(max(first, stop), count))

    def covering(self, axis: int) -> npt.NDArray[np.int64]:
        """The outputs whose windows see each input position on one axis: a row for each, ascending, then -1."""
        size, stride, dilation = self.input_size[axis], self.strides[axis], self.dilations[axis]
        table = np.full((size, min(self.kernel[axis], (self.extents[axis] - 1) // stride + 1)), -1, np.int64)
        found = np.zeros(size, np.int64)
        starts = np.arange(self.output_size[axis], dtype=np.int64) * stride - self.pads[axis][0]
        for tap in reversed(range(self.kernel[axis])):  # of the windows over one position, the first meets its last tap
            positions = starts + tap * dilation
            inside = np.flatnonzero((positions >= 0) & (positions < size))
            at = positions[inside]
            table[at, found[at]] = inside
            found[at] += 1
        return table[:, : max(1, int(found.max(initial=0)))]

    def in_three(self) -> Geometry:
        """The same windows with axes of length 1 in front, so that there are three."""
        ones = (1,) * (3 - self.rank)
        return Geometry(
            ones + self.input_size,
            ones + self.output_size,
            ones + self.kernel,
            ones + self.strides,
            ones + self.dilations,
            ((0, 0),) * len(ones) + self.pads,
        )

    def divisors(self, counted: Counted) -> tuple[npt.NDArray[np.int64], ...]:
        """What an average divides by: one array of output length per axis; a window's divisor is their product.

        counted: which taps count. "valid", those inside the input; "padded", those inside the input and its padding, so
        that only what hangs over the end padding is left out (ONNX's count_include_pad); "kernel", all of them (oneDNN
        with padding included). A window that sees no counted tap divides by 1, so that its average is 0, not NaN.
        """
        _choice("counted", counted, ("valid", "padded", "kernel"))
        self.require_int64()
        result = []
        for axis, (kernel, size) in enumerate(zip(self.kernel, self.output_size, strict=True)):
            counts = np.full(size, kernel, np.int64)
            inside = self.interior(axis)
            if counted != "kernel":
                for position in itertools.chain(range(inside.start), range(inside.stop, size)):
                    counts[position] = max(1, self._count(axis, position, counted))
            result.append(counts)
        return tuple(result)

    def _count(self, axis: int, position: int, counted: Counted) -> int:
        if counted == "valid":
            return len(self.axis_taps(axis, position))
        start = self.start(axis, position)
        stop = min(start + self.extents[axis], self.input_size[axis] + self.pads[axis][1])
        return 1 + (stop - start - 1) // self.dilations[axis]

    def require_output(self, name: str, size: Sequence[int]) -> None:
        """Raise ValueError naming the argument unless `size`, the spatial size it came with, is the output size."""
        if tuple(size) != self.output_size:
            raise ValueError(f"{name}: spatial size {tuple(size)} given, expected {self.output_size} for {self}")

    def require_int64(self) -> None:
        """Raise ValueError unless every position that walking the windows forms fits in 64 bits, as machine code needs.

        Python's integers do not overflow, so a geometry may be larger than any array; a compiled loop may not.
        """
        for axis in range(self.rank):
            begin, end = self.pads[axis]
            reach = self.output_size[axis] * self.strides[axis] + self.extents[axis] + self.dilations[axis]
            if max(reach, self.input_size[axis] + abs(end)) + abs(begin) > _INT64_MAX:
                raise ValueError(f"spatial axis {axis} of {self}: positions do not fit in 64 bits")


@functools.lru_cache(maxsize=512)
def _geometry(
    input_size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: Pads,
    auto_pad: str,
    rounding: Rounding,
    kernel_name: str,
) -> Geometry:
    """`Geometry.of`, its arguments checked: calls come again and again with the same ones."""
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto_pad.startswith("same"):
        upper = auto_pad == "same_upper"
        pads = tuple(_same_pads(n, e, s, upper) for n, e, s in zip(input_size, extents, strides, strict=True))
    output_size = tuple(map(window_count, input_size, extents, strides, pads, itertools.repeat(rounding)))
    for axis, count in enumerate(output_size):
        if count < 1:
            raise ValueError(
                f"{kernel_name}: no window fits on spatial axis {axis}: input {input_size[axis]} with pads"
                f" {pads[axis]} is shorter than the window's extent {extents[axis]}"
            )
    return Geometry(input_size, output_size, kernel, strides, dilations, pads)


def window_count(size: int, extent: int, stride: int, pads: tuple[int, int], rounding: Rounding = "floor") -> int:
    """How many windows fit on one axis; less than 1 when the padded input is shorter than the window.

    `size` is the input's, `extent` the window's from first tap to last. For `rounding` see `Geometry.of`.
    """
    _choice("rounding", rounding, tuple(_ROUND))
    count = _ROUND[rounding](Fraction(size + sum(pads) - extent, stride) + 1)
    if rounding == "ceil_inside" and (count - 1) * stride >= size + pads[0]:
        count -= 1
    return count


def ceil_rounding(ceil_mode: bool) -> Rounding:
    """The rounding that `ceil_mode` of a public function asks for; ceil_mode must be a bool."""
    if not isinstance(ceil_mode, (bool, np.bool_)):
        raise TypeError(f"ceil_mode: {ceil_mode!r} given, expected a bool")
    return "ceil_inside" if ceil_mode else "floor"


def spatial_axes(shape: Sequence[int], layout: str, name: str) -> range:
    """The spatial axes of an array of that shape: 1 to 3 of them, after N and C in "NCX", between them in "NXC".

    `name` is the argument that the array came as, for the error.
    """
    _choice("layout", layout, _LAYOUTS)
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"{name}: shape {tuple(shape)} given, expected 3 to 5 axes: N, C and 1 to 3 spatial ones")
    return range(2, len(shape)) if layout == "NCX" else range(1, len(shape) - 1)


def in_layout(shape: Sequence[int], sizes: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape with other spatial sizes."""
    return (*shape[:2], *sizes) if layout == "NCX" else (shape[0], *sizes, shape[-1])


def tfjs_pool_2d(
    input_size: Sequence[int],
    filter_size: float | Sequence[float],
    strides: float | Sequence[float],
    pad: str | float | Sequence[Sequence[float]],
    dim_rounding_mode: str | None = None,
) -> tuple[Geometry, tuple[slice, slice]]:
    """The windows of TensorFlow.js' 2-D pooling, and the slices of dy's rows and columns that belong to them.

    input_size is (height, width). filter_size and strides: a number, or (height, width), what follows being ignored.
    pad: "same" (odd padding goes to the end), "valid", a number, or [[., .], [top, bottom], [left, right], [., .]]. A
    number makes **both** axes count windows with the filter height and the stride height, as TensorFlow.js does.
    dim_rounding_mode "floor", "ceil", "round" or None (truncate) is read for number and explicit pads only.

    TensorFlow.js takes fractions. A window whose origin is no whole number sees nothing there, nor does an empty one;
    they are left out of the geometry, and the slices step over them. For whole numbers the slices are plain ranges.

    ValueError where TensorFlow.js fails: unknown pad or rounding mode, strides that are not positive, a size below 0.
    """
    input_size = integers("input_size", input_size, 2, 0)
    filters, steps = _tfjs_pair("filterSize", filter_size), _tfjs_pair("strides", strides)
    if min(steps) <= 0:
        raise ValueError(f"strides: {strides!r} given, expected positive numbers")
    if any(f.denominator != 1 for f in filters):
        raise ValueError(f"filterSize: {filter_size!r} given, expected whole numbers")
    pads = [(Fraction(0), Fraction(0))] * 2
    if isinstance(pad, str) and pad == "same":
        counts = [math.ceil(n / s) for n, s in zip(input_size, steps, strict=True)]
        totals = [
            max(Fraction(0), (c - 1) * s + f - n) for c, s, f, n in zip(counts, steps, filters, input_size, strict=True)
        ]
        pads = [(Fraction(total // 2), total - total // 2) for total in totals]
    elif isinstance(pad, str) and pad == "valid":
        counts = [math.ceil((n - f + 1) / s) for n, f, s in zip(input_size, filters, steps, strict=True)]
    else:
        counted = list(zip(filters, steps, strict=True))
        if isinstance(pad, (list, tuple)):
            if len(pad) != 4 or not all(map(_is_sequence, pad[1:3])):
                raise ValueError(f"pad: {pad!r} given, expected [[0, 0], [top, bottom], [left, right], [0, 0]]")
            pads = [_tfjs_pair("pad", sides) for sides in pad[1:3]]
        elif _is_number(pad):
            pads = [_tfjs_pair("pad", pad)] * 2
            counted = [counted[0]] * 2
        else:
            raise ValueError(f"Unknown padding parameter: {pad}")
        if dim_rounding_mode and dim_rounding_mode not in ("floor", "ceil", "round"):
            raise ValueError(f"Unknown roundingMode {dim_rounding_mode}")
        rounded = _ROUND[dim_rounding_mode or "trunc"]
        counts = [rounded((n - f + sum(p)) / s + 1) for n, (f, s), p in zip(input_size, counted, pads, strict=True)]
    if min(counts) < 0:
        raise ValueError(f"filterSize: {filter_size!r} given, the output of input {input_size} would be {counts}")

    windows = []
    for count, size, step, (begin, _) in zip(counts, filters, steps, pads, strict=True):
        whole = (o for o in range(min(count, step.denominator)) if (o * step - begin).denominator == 1)
        first = next(whole, count) if size > 0 else count
        windows.append(slice(first, count, step.denominator))
    geometry = Geometry(
        input_size,
        tuple(_ceil_div(w.stop - w.start, w.step) for w in windows),
        tuple(max(1, int(f)) for f in filters),
        tuple(s.numerator for s in steps),
        (1, 1),
        tuple((math.floor(p[0] - w.start * s), math.floor(p[1])) for p, w, s in zip(pads, windows, steps, strict=True)),
    )
    return geometry, (windows[0], windows[1])


def integers(name: str, value: Any, count: int | None, least: int | None, *, also: str = "") -> tuple[int, ...]:
    """`value` as `count` exact ints (any number if None), an int standing for all; none below `least`.

    TypeError for anything but integers (bool and float are refused, also whole ones), ValueError for a wrong length or
    a value too small; both name the argument. `also` says what else the caller would have taken.
    """
    bound = "integers" if least is None else f"integers >= {least}"
    expected = (f"expected {bound}" if count is None else f"expected an int or {count} {bound}") + also
    values = value if _is_sequence(value) else (value,) * (1 if count is None else count)
    if any(isinstance(v, (bool, np.bool_)) or not hasattr(v, "__index__") for v in values):
        raise TypeError(f"{name}: {value!r} given, {expected}")
    result = tuple(operator.index(v) for v in values)
    if (count is not None and len(result) != count) or (least is not None and any(v < least for v in result)):
        raise ValueError(f"{name}: {value!r} given, {expected}")
    return result


def _pad_pairs(value: Any, rank: int, least: int | None) -> Pads:
    if _is_sequence(value) and len(value) and all(map(_is_sequence, value)):
        if len(value) != rank:
            raise ValueError(f"pads: {value!r} given, expected {rank} (begin, end) pairs, one per spatial axis")
        pairs = [integers("pads", pair, 2, least) for pair in value]
    else:
        pairs = [(side, side) for side in integers("pads", value, rank, least, also=" or (begin, end) pairs")]
    return cast(Pads, tuple(pairs))


def _same_pads(size: int, extent: int, stride: int, upper: bool) -> tuple[int, int]:
    # The last of ceil(size / stride) windows starts at the last multiple of the stride below size.
    total = max(0, extent - (size % stride or stride))
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def _tfjs_pair(name: str, value: Any) -> tuple[Fraction, Fraction]:
    pair = value if _is_sequence(value) else (value, value)
    if len(pair) < 2 or not all(_is_number(v) and math.isfinite(v) for v in pair[:2]):
        raise ValueError(f"{name}: {value!r} given, expected a number or two")
    first, second = (Fraction(v if isinstance(v, int) else float(v)) for v in pair[:2])
    # A quotient by 0.1 is rounded in JavaScript; quotients by halves, quarters and so on are what they should be.
    if max(first.denominator, second.denominator) > 2**10:
        raise ValueError(f"{name}: {value!r} given, expected fractions that are multiples of 1/1024")
    return first, second


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    expected = f"expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} given, {expected}")
    if value not in choices:
        raise ValueError(f"{name}: {value!r} given, {expected}")
    return value


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
