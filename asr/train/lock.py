"""One training per experiment folder at a time."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from asr.errors import AsrError
from asr.files import try_lock

NAME = ".lock"
LOOK = 0.1  # seconds in which somebody who looks has looked


class FolderLock:
    """Holds `folder` until `release` or the end of the process, however it ends: a lock is never left behind.

    Raises:
        AsrError: another process trains in the folder; names it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / NAME, "a+", encoding="utf-8")  # noqa: SIM115
        if not try_lock(self._file.fileno()):
            time.sleep(LOOK)  # it may be but `in_use`
        if not try_lock(self._file.fileno()):
            self._file.seek(0)
            holder = self._file.read().strip() or "of unknown number"
            self._file.close()
            raise AsrError(
                f"{folder}: another training is running in this folder: process {holder}; "
                "wait for its end, stop it, or choose another exp=DIR"
            )
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def in_use(folder: Path) -> bool | None:
    """Whether a training is running in the folder; None where nobody can tell: no such locks here, or no folder."""
    try:
        import fcntl

        with open(folder / NAME, "rb") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False
    except (ImportError, OSError):
        return None
