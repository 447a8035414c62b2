"""What every reader of audio has in common: the open file, the asked-for span, and what is known of a file."""

from __future__ import annotations

import io
import logging
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asr.errors import AudioError

log = logging.getLogger(__name__)

# A segment may pass the end by this much and is cut there: transcripts round times, codecs pad and trim.
OVERSHOOT_SECONDS = 0.1
OVERSHOOT_SHARE = 0.01
ROUNDING_SECONDS = 0.01  # what transcripts with times in centiseconds are off by; not worth a line for each utterance


@dataclass(frozen=True)
class AudioInfo:
    """What a file says of itself. `estimated`: a compressed format, which may decode to another length."""

    rate: int  # Hz
    frames: int  # samples per channel
    channels: int
    estimated: bool

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


@dataclass(frozen=True)
class Source:
    """An open, seekable audio file of `size` bytes; `name` is what errors call it, `modified` its mtime in ns."""

    file: BinaryIO
    name: str
    size: int
    modified: int | None = None  # None: a stream


@dataclass(frozen=True)
class Span:
    """The part of a file to read, in seconds; `duration` None is to the end. Positions are rounded to samples."""

    start: float = 0.0
    duration: float | None = None

    def check(self, name: str) -> None:
        """Raises AudioError for negative, non-finite or empty spans, before any decoding."""
        if not (math.isfinite(self.start) and self.start >= 0):
            raise AudioError(f"{name}: start must be a finite number of seconds >= 0, got {self.start}")
        if self.duration is not None and not (math.isfinite(self.duration) and self.duration > 0):
            raise AudioError(f"{name}: duration must be a finite number of seconds > 0, got {self.duration}")

    def within(self, total: int, rate: int, name: str) -> tuple[int, int]:
        """First sample and the one after the last, 0 <= first < last <= total.

        Both ends are rounded, not the length, so that adjacent spans share no sample and miss none.
        Raises AudioError if nothing is left, or if the end lies further past the file than the tolerance above.
        """
        first = round(self.start * rate)
        last = total if self.duration is None else round((self.start + self.duration) * rate)
        if total == 0:
            raise AudioError(f"{name}: holds no samples")
        if first >= total:
            raise AudioError(f"{name}: starts at {self.start:g} s but the audio ends at {total / rate:.3f} s")
        if last > total:
            allowed = max(OVERSHOOT_SECONDS, OVERSHOOT_SHARE * (self.duration or 0))
            if (last - total) / rate > allowed:
                raise AudioError(
                    f"{name}: the segment ends at {last / rate:.3f} s ({last} samples)"
                    f" but the audio at {total / rate:.3f} s ({total} samples)"
                )
            level = logging.INFO if last - total > ROUNDING_SECONDS * rate else logging.DEBUG
            log.log(
                level, "%s: segment end %.3f s cut to the end of the audio, %.3f s", name, last / rate, total / rate
            )
            last = total
        if last <= first:
            raise AudioError(f"{name}: {self.duration:g} s is less than one sample at {rate} Hz")
        return first, last


@contextmanager
def open_source(source: str | Path | BinaryIO) -> Iterator[Source]:
    """Opens a path, or wraps a binary stream (read to its end if it cannot seek, e.g. standard input).

    Raises AudioError for what is missing, unreadable, empty, or no regular file.
    """
    if isinstance(source, (str, Path)):
        name = str(source)
        try:
            status = os.stat(source)
            if stat.S_ISDIR(status.st_mode):
                raise AudioError(f"{name}: is a folder, not an audio file")
            if not stat.S_ISREG(status.st_mode):  # a device never ends, a pipe may never start
                raise AudioError(f"{name}: is not a regular file; pipe audio through standard input instead")
            file: BinaryIO = open(source, "rb")  # noqa: SIM115  (closed below)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise AudioError(f"{name}: cannot be opened: {reason}") from None
        with file:
            yield _sized(file, name, status.st_mtime_ns)
    else:
        name = str(getattr(source, "name", "<stream>"))
        yield _sized(source if source.seekable() else io.BytesIO(source.read()), name)


def _sized(file: BinaryIO, name: str, modified: int | None = None) -> Source:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size == 0:
        raise AudioError(f"{name}: is empty (0 bytes)")
    return Source(file, name, size, modified)


def truncated(name: str, promised: int, found: int, unit: str = "samples") -> AudioError:
    """The error for a file that holds less than it declares: its transcript covers sound that is not there."""
    return AudioError(f"{name}: truncated or damaged: the header promises {promised} {unit}, the file holds {found}")
