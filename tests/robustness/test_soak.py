"""The soak for a few seconds; `make robustness` runs it for five minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_short_soak() -> None:
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run([sys.executable, str(script), "--seconds", "6"], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert not found["wrong"]
    assert found["calls"] > 100
    assert done.returncode == 0, found
