"""Both answers of every known difference, asked again; and that the page says what the table says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differences import DIES, DIFFERENCES, PAGE, RAISES, REFUSES, Difference, table
from systems import SYSTEMS, Case

from peers import why_absent
from peers.child import PeerDiedError, PeerError

every_difference = pytest.mark.parametrize("d", DIFFERENCES, ids=lambda d: d.name.replace(" ", "_"))


def _asked(d: Difference, side: str) -> Any:
    system = next(s for s in SYSTEMS if s.name == d.system)
    if side == "theirs" and (why := why_absent(system.peer)):
        pytest.skip(why)
    (kernel,) = [k for k in system.kernels() if k.op == d.op and k.domain in (d.domain, "oneDNN", "tfjs")]
    (answer,) = getattr(system, side)(kernel, Case(d.inputs, d.attributes, [d.shape], list))
    assert answer.shape == d.shape
    return answer.ravel()


@every_difference
def test_here(d: Difference) -> None:
    if d.ours == RAISES:
        with pytest.raises(ValueError):
            _asked(d, "ours")
        return
    np.testing.assert_array_equal(_asked(d, "ours"), np.array(d.ours, np.float32))


@every_difference
def test_there(d: Difference) -> None:
    """Fails on the day they answer otherwise: look again, and take the entry out if they are right now."""
    if d.theirs in (REFUSES, DIES):
        with pytest.raises(PeerError) as caught:
            _asked(d, "theirs")
        assert isinstance(caught.value, PeerDiedError) == (d.theirs == DIES)
        return
    np.testing.assert_array_equal(_asked(d, "theirs"), np.array(d.theirs, np.float32))


@pytest.mark.parametrize("d", [d for d in DIFFERENCES if d.forward], ids=lambda d: d.name.replace(" ", "_"))
def test_the_derivative_decides_for_us(d: Difference) -> None:
    np.testing.assert_allclose(d.ours, d.derivative(), rtol=1e-9, atol=1e-9)
    if not isinstance(d.theirs, str):
        assert not np.allclose(d.theirs, d.derivative(), rtol=1e-3)


def test_the_page_is_made_from_the_table() -> None:
    assert table() in PAGE.read_text()
