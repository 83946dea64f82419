"""Ctrl-C while training: the step is finished first, so that what is saved is a state that training can go on from."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Within it, the first SIGINT is only noted, and `stop_if_asked` raises it; a second one is raised at once."""

    def __init__(self) -> None:
        self._asked = 0
        self._before: Any = None
        self.orderly = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1
        if self._asked > 1:
            raise KeyboardInterrupt

    def stop_if_asked(self) -> None:
        """Raise a KeyboardInterrupt, where one has been asked for."""
        if self._asked:
            self.orderly = True
            raise KeyboardInterrupt
