"""WAV (RIFF, RIFX, RF64), AIFF and FLAC through libsndfile, with the checks libsndfile leaves out."""

from __future__ import annotations

import numpy as np
import soundfile

from asr.audio.chunks import FIX, check_chunks
from asr.audio.source import AudioInfo, Source, Span, truncated
from asr.errors import AudioError

BLOCK = 1 << 20  # frames read at once: memory follows what is in the file, not what a broken header claims
_UNKNOWN = 1 << 48  # libsndfile's frame count is near 2**63 where a FLAC stream does not declare one


def info(source: Source) -> AudioInfo:
    """Raises AudioError if the file is not readable or shorter than declared (FLAC: only decoding would tell)."""
    check_chunks(source)
    try:
        with soundfile.SoundFile(source.file) as file:
            frames = _count(source, file) if file.frames > _UNKNOWN else file.frames
            return AudioInfo(file.samplerate, frames, file.channels, estimated=False)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _unreadable(source, error) from None


def read(source: Source, span: Span) -> tuple[np.ndarray, int]:
    """Samples (n, channels) float32 and the rate in Hz. Raises AudioError; see `info`."""
    padding = check_chunks(source)
    try:
        with soundfile.SoundFile(source.file) as file:
            total = _count(source, file) if file.frames > _UNKNOWN else file.frames
            first, last = span.within(total, file.samplerate, source.name)
            file.seek(first)
            samples = _blocks(file, last - first, "int32" if padding else "float32")
            rate = file.samplerate
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


def _blocks(file: soundfile.SoundFile, count: int, dtype: str) -> np.ndarray:
    if count <= BLOCK:
        return file.read(count, dtype=dtype, always_2d=True)
    parts = []
    while count > 0 and len(part := file.read(min(count, BLOCK), dtype=dtype, always_2d=True)):
        parts.append(part)
        count -= len(part)
    return np.concatenate(parts) if parts else np.zeros((0, file.channels), dtype)


def _count(source: Source, file: soundfile.SoundFile) -> int:
    """Frames of a stream that does not declare them: by decoding it once."""
    total = 0
    while part := len(file.read(BLOCK, dtype="int16", always_2d=True)):
        total += part
    return total


def _unreadable(source: Source, error: Exception) -> AudioError:
    reason = str(getattr(error, "error_string", error)).rstrip(".")
    return AudioError(f"{source.name}: cannot be read: {reason}; {FIX}")
