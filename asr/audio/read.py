"""Reads any audio file as one channel of float32 samples. The format is told by content, never by the file's name."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from asr.audio import ffmpeg, sndfile, sphere
from asr.audio.resample import resample
from asr.audio.source import AudioInfo, Source, Span, open_source
from asr.errors import AudioError

log = logging.getLogger(__name__)

RATES = (1000, 2_000_000)  # Hz that a header may state; outside it is damaged
MAX_PEAK = 16.0  # floating-point files and codecs overshoot 1 a little; more means another scale


@dataclass(frozen=True)
class Audio:
    """One channel of sound: samples (n,) float32 in [-1, 1] at `rate` Hz; the file had `source_rate` Hz."""

    samples: Tensor
    rate: int
    source_rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def read_audio(
    source: str | Path | BinaryIO,
    *,
    sample_rate: int | None = None,
    channel: int | None = None,
    start: float = 0.0,
    duration: float | None = None,
) -> Audio:
    """Reads a file, or a part of it, as one channel.

    WAV, AIFF, FLAC and NIST SPHERE are read without FFmpeg; mp3, m4a, ogg, opus and the like need the package `av`.
    `sample_rate` (Hz) asks for resampling; None keeps the file's rate. `channel` counts from 0; None is the mean of
    all. `start` and `duration` are seconds, rounded to samples of the file; a span that passes the end by no more than
    0.1 s or 1 % is cut there, with a notice in the log.

    Raises AudioError, one line naming the file, if it is missing, empty, damaged, in an unknown format, shorter than
    its header promises (no tolerance; compressed formats without a packet table promise nothing), or if its samples are
    not finite.
    """
    span = Span(start, duration)
    with open_source(source) as opened:
        span.check(opened.name)
        samples, rate = _reader(opened).read(opened, span)
        _check_rate(opened, rate)
        mono = _mono(opened, samples, channel)
        if sample_rate is not None and sample_rate != rate:
            _note_rates(rate, sample_rate, opened.name)
            mono = resample(mono, rate, sample_rate)
    return Audio(mono.clamp_(-1.0, 1.0), sample_rate or rate, rate)


def audio_info(source: str | Path | BinaryIO) -> AudioInfo:
    """Rate, frames, channels and seconds without decoding where the header tells. Raises AudioError as `read_audio`."""
    with open_source(source) as opened:
        info = _reader(opened).info(opened)
        _check_rate(opened, info.rate)
        if info.frames == 0:
            raise AudioError(f"{opened.name}: holds no samples")
        return info


def _reader(source: Source):  # type: ignore[no-untyped-def]  # one of three modules with the same two functions
    magic = source.file.read(12)
    source.file.seek(0)
    if magic.startswith(b"NIST_"):
        return sphere
    kind, form = magic[:4], magic[8:12]
    wave = kind in (b"RIFF", b"RIFX", b"RF64") and form == b"WAVE"
    if wave or kind == b"fLaC" or (kind == b"FORM" and form in (b"AIFF", b"AIFC")):
        return sndfile
    return ffmpeg


def _check_rate(source: Source, rate: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise AudioError(f"{source.name}: states a sample rate of {rate} Hz; the header must be damaged")


def _mono(source: Source, samples: np.ndarray, channel: int | None) -> Tensor:
    """(n, channels) → (n,)."""
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise AudioError(f"{source.name}: holds samples that are not finite (NaN or infinite)")
    if peak > MAX_PEAK:
        raise AudioError(f"{source.name}: floating-point samples reach {peak:g}, but full scale is 1; rescale the file")
    channels = samples.shape[1]
    if channel is not None:
        if not 0 <= channel < channels:
            raise AudioError(f"{source.name}: has {channels} channel(s), counted from 0; there is no channel {channel}")
        samples = samples[:, channel]
    elif channels > 1:
        samples = samples.mean(axis=1)
    return torch.from_numpy(np.ascontiguousarray(samples).reshape(-1))


_noted: set[tuple[int, int]] = set()


def _note_rates(source_rate: int, rate: int, name: str) -> None:
    """One line for each pair of rates, not for each file: a corpus has thousands of files at the same rate."""
    if (source_rate, rate) in _noted:
        return
    _noted.add((source_rate, rate))
    if source_rate < rate:
        log.warning(
            "%s: %d Hz upsampled to the model's %d Hz: nothing above %d Hz to hear (said once for this rate)",
            *(name, source_rate, rate, source_rate // 2),
        )
    else:
        log.info("%s: resampled from %d to %d Hz (said once for this rate)", name, source_rate, rate)
