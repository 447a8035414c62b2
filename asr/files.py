"""Files that survive a crash: written whole or not at all, and on the disk when the call returns; and their locks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PATIENCE = 5.0  # seconds for a lock that others hold for a moment


@contextmanager
def replacing(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends without an error.

    Its bytes are on the disk before it gets its name, and the name before the block is left, so that neither a kill
    nor a power cut leaves half a file. A kill may leave the temporary file, `.NAME.PID.tmp`.

    Args:
        keep: the name under which what stood at `path` goes on; between the two renames only `keep` is there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            sync(file)
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text with LF line ends; the file appears whole or not at all, its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def append_line(path: Path, line: str) -> None:
    """Add a line of UTF-8 text to a file that processes of several machines may add to; on the disk at the return.

    A line that a kill cut off is ended first, so that it spoils no other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        until = time.monotonic() + PATIENCE
        while not try_lock(file.fileno()) and time.monotonic() < until:  # a stopped process must not stop us
            time.sleep(0.01)
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        cut = end and file.read(1) != b"\n"
        file.write((b"\n" if cut else b"") + line.encode("utf-8") + b"\n")
        sync(file)


def sync(file: BinaryIO) -> None:
    """Return when what was written to the file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder are on the disk; where folders cannot be flushed (Windows), at once."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, without waiting; the system gives it back when the process ends, however it does.

    Returns False where another process holds it. True also where there are no such locks (Windows, some network disks).
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process has, until the block ends, the lock that the file `path` stands for; never waits.

    The file is there only while somebody has the lock, or was killed with it: the next one takes that over.
    """
    with open(path, "ab") as file:
        mine = try_lock(file.fileno())
        if mine:  # and not of a file that its holder has removed since it was opened here
            try:
                mine = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                mine = False
        try:
            yield mine
        finally:
            if mine:
                with suppress(PermissionError):  # Windows removes no open file
                    path.unlink(missing_ok=True)
