"""A fresh object cache for each run of the tests, and none of the caller's settings."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

# `make conformance` lends the tests of the graph and of training what they compare with (torch, a published model) from
# the peers' environment; it comes last, so that onnxruntime stays today's.
for folder in Path(os.environ.get("PEERS", ".nowhere")).glob("lib/python*/site-packages"):
    sys.path.append(str(folder.resolve()))
for name in [name for name in os.environ if name.startswith("BACKSTROKE_") and name != "BACKSTROKE_TARGET"]:
    del os.environ[name]
os.environ["BACKSTROKE_CACHE_DIR"] = tempfile.mkdtemp(prefix="backstroke-tests-")
atexit.register(shutil.rmtree, os.environ["BACKSTROKE_CACHE_DIR"], ignore_errors=True)
