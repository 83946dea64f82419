"""A fresh object cache for each run of the tests, and none of the caller's settings."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# `make conformance` lends the tests of the graph and of training what they compare with (torch, a published model) from
# the peers' environment; it comes last, so that onnxruntime stays today's.
for folder in Path(os.environ.get("PEERS", ".nowhere")).glob("lib/python*/site-packages"):
    sys.path.append(str(folder.resolve()))
# Whoever starts us in the background of a script has Ctrl-C ignored, by our children as well, who are asked for it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The workers of pytest-xdist share the cache of who started them.
shared = os.environ.get("BACKSTROKE_CACHE_DIR") if "PYTEST_XDIST_WORKER" in os.environ else None
for name in [name for name in os.environ if name.startswith("BACKSTROKE_") and name != "BACKSTROKE_TARGET"]:
    del os.environ[name]
os.environ["BACKSTROKE_CACHE_DIR"] = shared or tempfile.mkdtemp(prefix="backstroke-tests-")
if not shared:
    atexit.register(shutil.rmtree, os.environ["BACKSTROKE_CACHE_DIR"], ignore_errors=True)
