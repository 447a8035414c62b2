"""One training per experiment folder at a time."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from asr.errors import AsrError
from asr.files import try_lock


class FolderLock:
    """Holds `folder` until `release` or the end of the process, however it ends: a lock is never left behind.

    Raises:
        AsrError: another process trains in the folder; names it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115
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
