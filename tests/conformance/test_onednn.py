"""oneDNN where random cases do not go: what it refuses or dies of, bfloat16, its way of counting windows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import _onednn_window
from checks import same_bits

from backstroke.dialects import onednn as our_onednn
from peers import onednn, why_absent
from peers.child import PeerDiedError, PeerError

Attributes = dict[str, Any]
pytestmark = pytest.mark.skipif(bool(why_absent("onednn")), reason=why_absent("onednn"))
ONED: Attributes = {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [2], "data_format": "NCX"}


def wave(*values: float) -> np.ndarray:
    return np.float32(values).reshape(1, 1, -1)


def test_bfloat16_where_windows_do_not_overlap() -> None:
    """Where they do, oneDNN may round after every window."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        attributes, shape, _, _ = _onednn_window(rng, dilated=False)
        attributes |= {"strides": attributes["kernel"], "auto_pad": "VALID", "exclude_pad": True}
        attributes["src_shape"] = list(shape)
        x = rng.normal(size=shape).astype(ml_dtypes.bfloat16)
        (pooled,) = our_onednn.run("AvgPool", [x], {n: v for n, v in attributes.items() if n != "src_shape"})
        dy = rng.normal(size=pooled.shape).astype(ml_dtypes.bfloat16)
        try:
            theirs = onednn.run("AvgPoolBackward", [dy], attributes, shape)
        except PeerError as error:
            pytest.skip(f"bfloat16: {error}")
        assert same_bits(our_onednn.run("AvgPoolBackward", [dy], attributes)[0], theirs), (seed, attributes)


def test_it_counts_windows_by_a_division_that_truncates() -> None:
    attributes = {**ONED, "strides": [2], "kernel": [3], "exclude_pad": False, "src_shape": [1, 1, 2]}
    ours = our_onednn.run("AvgPoolBackward", [wave(6)], attributes)[0]
    assert same_bits(ours, onednn.run("AvgPoolBackward", [wave(6)], attributes, (1, 1, 2)))


@pytest.mark.parametrize(
    ("change", "dies"),
    [
        ({"strides": [0]}, True),
        ({"strides": [1, 1]}, None),
        ({"kernel": [2, 2]}, None),
        ({"kernel": [3]}, True),
        ({"pads_begin": [-1]}, True),
        ({"pads_begin": [], "pads_end": []}, True),
        ({"pads_begin": [2], "kernel": [2], "strides": [2]}, True),
        ({"src_shape": [1, 1, 4]}, True),
        ({"src_shape": [1, 2, 3]}, True),
        ({"auto_pad": "SAME"}, False),
        ({"data_format": "NHWC"}, False),
        ({"exclude_pad": None}, False),
        ({"src_shape": None}, True),
    ],
)
def test_it_refuses_what_we_refuse(change: Attributes, dies: bool | None) -> None:
    """dies: whether oneDNN ends the process; None: whether it does was seen to depend on memory."""
    dy = wave(5, 6)
    given = {**ONED, "exclude_pad": True, "src_shape": [1, 1, 3], **change}
    attributes = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ValueError):
        our_onednn.run("AvgPoolBackward", [dy], attributes)
    if dies is None:
        return
    with pytest.raises(PeerError) as caught:
        onednn.run("AvgPoolBackward", [dy], attributes, given["src_shape"] or (1, 1, 3))
    assert isinstance(caught.value, PeerDiedError) == dies
