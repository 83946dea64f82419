"""Every op of every dialect against the system it speaks for: CONFORMANCE_CASES seeded random cases (500).

`make conformance` installs the systems and runs this. Where one is absent its tests are skipped and say why.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from cases import generator
from systems import SYSTEMS, Case, System

from backstroke.dialects.table import Kernel
from peers import why_absent
from peers.child import PeerDiedError, PeerError

COUNT = int(os.environ.get("CONFORMANCE_CASES", "500"))
OPS = [(system, kernel) for system in SYSTEMS for kernel in system.kernels()]
NAMES = [f"{system.peer}-{kernel.op}" for system, kernel in OPS]


@pytest.mark.parametrize(("system", "kernel"), OPS, ids=NAMES)
def test_conformance(system: System, kernel: Kernel) -> None:
    if why := why_absent(system.peer):
        pytest.skip(why)
    make = generator(system.name, kernel)
    answered = 0
    for seed in range(COUNT):
        case = make(np.random.default_rng(seed), kernel)
        answered += agree(system, kernel, case, seed)
    assert answered >= COUNT // 2, "too few cases in which both gave an answer"


def agree(system: System, kernel: Kernel, case: Case, seed: Any) -> bool:
    """Both answer alike, or both refuse; whether they answered."""
    told = f"{system.name} {kernel.op}, case {seed}: {case.attributes}, outputs {case.shapes}"
    answers: list[list[np.ndarray] | None] = []
    for run in (system.ours, system.theirs):
        try:
            answers.append(run(kernel, case))
        except (ValueError, TypeError):
            answers.append(None)
        except PeerDiedError:
            raise
        except PeerError:
            answers.append(None)
    ours, theirs = answers
    assert (ours is None) == (theirs is None), f"{told}: we gave {ours}, they {theirs}"
    if ours is None or theirs is None:
        return False
    for mine, other, bound in zip(ours, theirs, case.bound(), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), told
        wide = mine.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            near = np.abs(wide[0] - wide[1]) <= np.nan_to_num(bound, nan=0, posinf=0)
        if not (same | near).all():
            at = tuple(int(i[0]) for i in np.nonzero(~(same | near)))
            inputs = case.inputs.values() if isinstance(case.inputs, dict) else case.inputs
            given = [x[at] if x.shape == mine.shape else x.shape for x in inputs]
            raise AssertionError(f"{told}: at {at} we gave {mine[at]!r}, they {other[at]!r}; inputs there {given}")
    return True


def test_every_op_has_cases() -> None:
    """A new op in a dialect is tested here, or this fails."""
    for system, kernel in OPS:
        assert generator(system.name, kernel)
