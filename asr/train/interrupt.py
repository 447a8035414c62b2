"""Ctrl-C and SIGTERM: the first asks the loop to stop at the next step border, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """Context manager; `requested` turns True at the first signal, a second one raises KeyboardInterrupt."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopRequest:
        # Only the main thread may set handlers; a library user elsewhere stops the loop by other means.
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._on_signal) for s in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
