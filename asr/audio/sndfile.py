"""WAV (RIFF, RIFX, RF64), AIFF and FLAC through libsndfile, with the checks libsndfile leaves out."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import soundfile

from asr.audio import ffmpeg
from asr.audio.chunks import FIX, check_chunks
from asr.audio.source import AudioInfo, Source, Span, truncated
from asr.errors import AudioError

BLOCK = 1 << 20  # frames read at once: memory follows what is in the file, not what a broken header claims
_UNKNOWN = 1 << 48  # libsndfile says 2**63 - 1 for a FLAC stream of undeclared length, and cannot find its end


def info(source: Source) -> AudioInfo:
    """Raises AudioError if the file is not readable or shorter than declared (FLAC: only decoding would tell)."""
    check_chunks(source)
    try:
        with _opened(source) as file:
            if file.frames < _UNKNOWN:
                return AudioInfo(file.samplerate, file.frames, file.channels, estimated=False)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _unreadable(source, error) from None
    return ffmpeg.info(source)


def read(source: Source, span: Span) -> tuple[np.ndarray, int]:
    """Samples (n, channels) float32 and the rate in Hz. Raises AudioError; see `info`."""
    padding = check_chunks(source)
    try:
        with _opened(source) as file:
            total = file.frames
            if total >= _UNKNOWN:
                return ffmpeg.read(source, span)
            first, last = span.within(total, file.samplerate, source.name)
            rate = file.samplerate
            try:
                file.seek(first)
                samples = _blocks(file, last - first, "int32" if padding else "float32")
            except soundfile.SoundFileError:  # a FLAC stream that is cut or damaged
                raise truncated(source.name, total, _decodable(source)) from None
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _unreadable(source, error) from None
    if len(samples) < last - first:
        raise truncated(source.name, total, first + len(samples))
    if padding:
        # By the standard a 24-bit sample lies in the upper bytes of its 32-bit container; some writers use the lower.
        if np.any(samples & ((1 << padding) - 1)):
            raise AudioError(f"{source.name}: samples do not fill the upper bits of their container as WAV asks; {FIX}")
        samples = samples.astype(np.float32) / np.float32(2**31)
    return samples, rate


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[soundfile.SoundFile]:
    """A SoundFile over the source; what interrupted libsndfile's calls back into Python is raised at the end.

    A file goes in by its name: libsndfile then reads it itself, and no Ctrl-C can fall into such a call.
    """
    if source.modified is not None:
        with soundfile.SoundFile(source.name) as file:
            yield file
        return
    guarded = _Guarded(source.file)
    try:
        with soundfile.SoundFile(guarded) as file:
            yield file
    finally:
        if guarded.failure is not None:
            raise guarded.failure


class _Guarded:
    """A stream as libsndfile calls it. An exception raised in these calls would be printed and lost.

    Ctrl-C is one: without this, an interrupted stream would pass for a truncated one. libsndfile also seeks before
    the start of damaged files; that is answered with the position as it is.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failure: BaseException | None = None

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        try:
            return function(*arguments) if self.failure is None else 0
        except BaseException as error:
            self.failure = error
            return 0

    def readinto(self, buffer: Any) -> int:
        return self._call(self._file.readinto, buffer)  # type: ignore[attr-defined]  # all binary files have it

    def tell(self) -> int:
        return self._call(self._file.tell)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        def move() -> int:
            with contextlib.suppress(ValueError, OSError):
                return self._file.seek(offset, whence)
            return self._file.tell()

        return self._call(move)

    def write(self, data: bytes) -> int:
        raise io.UnsupportedOperation("opened for reading")


def _blocks(file: soundfile.SoundFile, count: int, dtype: str) -> np.ndarray:
    if count <= BLOCK:
        return file.read(count, dtype=dtype, always_2d=True)
    parts = []
    while count > 0 and len(part := file.read(min(count, BLOCK), dtype=dtype, always_2d=True)):
        parts.append(part)
        count -= len(part)
    return np.concatenate(parts) if parts else np.zeros((0, file.channels), dtype)


def _decodable(source: Source) -> int:
    """Frames up to the first that cannot be decoded, to within a few."""
    source.file.seek(0)
    total = 0
    with _opened(source) as file, contextlib.suppress(soundfile.SoundFileError):
        while part := len(file.read(256, dtype="int16", always_2d=True)):
            total += part
    return total


def _unreadable(source: Source, error: Exception) -> AudioError:
    reason = str(getattr(error, "error_string", error)).rstrip(".")
    return AudioError(f"{source.name}: cannot be read: {reason}; {FIX}")
