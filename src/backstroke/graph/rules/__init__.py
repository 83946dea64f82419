"""One gradient rule for each forward op, in one table.

A rule takes an `Op` and gives the gradients of its inputs, in their order (None where there is none; what is missing at
the end is None). It computes only what is `wants(i)`ed.
"""

from __future__ import annotations

from ..tensors import MICROSOFT
from .elementwise import RULES as _ELEMENTWISE
from .linear import RULES as _LINEAR
from .normalization import RULES as _NORMALIZATION
from .pooling import RULES as _POOLING
from .reduction import RULES as _REDUCTION
from .resize import RULES as _RESIZE
from .rule import Rule
from .shape import RULES as _SHAPE

# By (domain, op).
RULES: dict[tuple[str, str], Rule] = {
    **_ELEMENTWISE,
    **_LINEAR,
    **_NORMALIZATION,
    **_POOLING,
    **_REDUCTION,
    **_RESIZE,
    **_SHAPE,
}

# Their outputs do not move when their inputs do: shapes, indices, comparisons, steps.
FLAT = frozenset(
    ("", op)
    for op in [
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "Ceil",
        "Constant",
        "ConstantOfShape",
        "Equal",
        "EyeLike",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Multinomial",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Range",
        "Round",
        "Shape",
        "Sign",
        "Size",
        "Xor",
    ]
)
CONTROL_FLOW = frozenset({("", "If"), ("", "Loop"), ("", "Scan")})

__all__ = ["CONTROL_FLOW", "FLAT", "MICROSOFT", "RULES", "Rule"]
