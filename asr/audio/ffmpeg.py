"""Every other format (mp3, m4a, ogg, opus, webm, shorten in SPHERE …) through the FFmpeg inside the `av` wheel.

`av` is imported on first use, so that WAV, FLAC and plain SPHERE are read without it.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from asr.audio.source import OVERSHOOT_SECONDS, OVERSHOOT_SHARE, AudioInfo, Source, Span, truncated
from asr.errors import AudioError

log = logging.getLogger(__name__)

# Sound containers only: FFmpeg would also take a playlist, and open the files and addresses named in it.
CONTAINERS = "mp3,mov,ogg,matroska,aac,nistsphere,w64,caf,au,amr,wv,ape,asf,aiff,flac,tta"
# These hold a table of every packet, so their length is a promise; in the others it is an estimate.
_EXACT = {"mov", "w64", "caf", "au"}
_SCALE = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "flt": 1.0, "dbl": 1.0}


def info(source: Source) -> AudioInfo:
    """Metadata where the container has it, else by decoding. Always `estimated`; raises AudioError."""
    with _container(source) as container:
        stream = _stream(container, source)
        declared = _declared(container, stream)
        context = stream.codec_context
        if declared and context.sample_rate and context.channels:
            return AudioInfo(context.sample_rate, declared, context.channels, estimated=True)
    samples, rate = decode(source)
    return AudioInfo(rate, len(samples), samples.shape[1], estimated=True)


def read(source: Source, span: Span) -> tuple[np.ndarray, int]:
    """Samples (n, channels) float32 and the rate in Hz. The decoded length counts, whatever the metadata says."""
    part = span.start > 0 or span.duration is not None
    samples, rate = _remembered(source) if part and source.modified is not None else decode(source)
    first, last = span.within(len(samples), rate, source.name)
    return samples[first:last], rate


_last: tuple[tuple, tuple[np.ndarray, int]] | None = None


def _remembered(source: Source) -> tuple[np.ndarray, int]:
    """`decode`, keeping the last file: a lecture of a thousand segments is decoded once, not a thousand times.

    Seeking instead would not be exact to the sample in mp3 and aac.
    """
    global _last
    key = (source.name, source.size, source.modified)
    if _last is None or _last[0] != key:
        _last = None  # let go of the old samples before the new ones come
        _last = (key, decode(source))
    return _last[1]


def decode(source: Source) -> tuple[np.ndarray, int]:
    """The whole first audio stream: samples (n, channels) float32 and the rate in Hz.

    Raises AudioError if FFmpeg cannot decode it, if the sound changes rate or channels on the way, or if a container
    with a packet table yields less than it promises (by more than 0.1 s and 1 %: encoders pad and trim).
    """
    av = _av(source)
    parts: list[np.ndarray] = []
    shape: tuple[int, int] | None = None
    with _container(source) as container:
        stream = _stream(container, source)
        try:
            for frame in container.decode(stream):
                here = (frame.sample_rate, len(frame.layout.channels))
                if shape is not None and here != shape:
                    raise AudioError(f"{source.name}: changes from {shape} to {here} (Hz, channels) on the way")
                shape = here
                parts.append(_samples(frame, here[1], source))
        except av.FFmpegError as error:
            raise AudioError(f"{source.name}: decoding fails: {error.strerror}") from None
        declared = _declared(container, stream)
        exact = not _EXACT.isdisjoint(container.format.name.split(","))
    if shape is None:
        raise AudioError(f"{source.name}: holds no samples")
    samples = np.concatenate(parts)
    tolerance = max(OVERSHOOT_SECONDS * shape[0], OVERSHOOT_SHARE * (declared or 0))
    if declared and len(samples) < declared - tolerance:
        if exact:
            raise truncated(source.name, declared, len(samples))
        log.warning(
            "%s: its metadata speaks of %.2f s, decoding gives %.2f s; if that is too little, the file is cut off",
            *(source.name, declared / shape[0], len(samples) / shape[0]),
        )
    return samples, shape[0]


def _av(source: Source) -> Any:
    try:
        import av
    except ImportError:
        raise AudioError(f"{source.name}: this format needs the package `av` (pip install av)") from None
    av.logging.set_level(av.logging.PANIC)  # our errors say what is wrong; FFmpeg's own lines name no file
    return av


def _container(source: Source) -> Any:
    av = _av(source)
    source.file.seek(0)
    try:
        return av.open(source.file, options={"format_whitelist": CONTAINERS})
    except (av.FFmpegError, ValueError):
        raise AudioError(f"{source.name}: is not audio in a known format, or damaged at its beginning") from None


def _stream(container: Any, source: Source) -> Any:
    if not container.streams.audio:
        raise AudioError(f"{source.name}: holds no audio stream")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise AudioError(f"{source.name}: FFmpeg has no decoder for its audio; convert it to WAV or FLAC")
    return stream


def _declared(container: Any, stream: Any) -> int | None:
    """Samples per channel that the metadata speaks of, if it does."""
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration:
        seconds = container.duration / 1e6
    else:
        return None
    context = stream.codec_context
    # Opus counts the samples in that its decoder drops at the start (pre-skip, RFC 7845).
    dropped = context.delay if context.name in ("opus", "libopus") else 0
    return round(seconds * context.sample_rate) - dropped or None


def _samples(frame: Any, channels: int, source: Source) -> np.ndarray:
    kind = frame.format.name.removesuffix("p")
    if kind not in _SCALE:
        raise AudioError(f"{source.name}: samples of type {frame.format.name} are not read; convert it to WAV or FLAC")
    data = frame.to_ndarray()
    data = data.T if frame.format.is_planar else data.reshape(-1, channels)
    if kind == "u8":
        data = data.astype(np.float32) - 128
    return np.ascontiguousarray(data, dtype=np.float32) / np.float32(_SCALE[kind])
