"""A peer in a process of its own, which may die: a line of JSON goes in, a line comes out, and it is started anew."""

from __future__ import annotations

import atexit
import base64
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

TIMEOUT = 60.0
ROOT = Path(__file__).parents[1]


class PeerError(Exception):
    """The peer refused the call, or died of it."""


class PeerDiedError(PeerError):
    """The peer's process ended."""


def encode(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON can carry it: its bytes in base 64, so that every bit arrives."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decode(value: dict[str, Any]) -> np.ndarray:
    """The array that `encode` was given."""
    dtype = ml_dtypes.bfloat16 if value["dtype"] == "bfloat16" else value["dtype"]
    return np.frombuffer(base64.b64decode(value["data"]), dtype).reshape(value["shape"]).copy()


class Child:
    """A long-lived process that answers requests; a dead one is replaced at the next call."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None
        self._errors: Any = None
        atexit.register(self.close)

    def call(self, request: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
        """The answer; `PeerError` where it is an error, `PeerDiedError` where there is none in `timeout` seconds."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            code = process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-500:]
            self.close()
            raise PeerDiedError(f"the process ended with code {code}: {said}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            self._errors.close()

    def _start(self) -> subprocess.Popen[str]:
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=ROOT
        )
        return self._process


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The other side, in Python: answer every line, exceptions as errors."""
    for line in sys.stdin:
        try:
            result = answer(json.loads(line))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)
