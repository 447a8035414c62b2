"""What a stretch of audio holds: its length, a hash of its samples, clipping and silence. Each file is decoded once."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr.audio.read import read_audio
from asr.audio.source import OVERSHOOT_SECONDS, Span
from asr.errors import AsrError, AudioError

FULL_SCALE = 32766 / 32768  # 16-bit audio that was clipped holds -32768, -32767 or 32767
FRAME_SECONDS = 0.01
QUIET = 10**-4  # power ratio: a frame 40 dB under the loud frames of its own utterance is silent,
FLOOR = 10**-7  # and so is any frame under -70 dB of full scale


@dataclass(frozen=True)
class Stretch:
    """A part of a file, in seconds; `end` None is the end of the file. `channel` counts from 0, None is the mean."""

    audio: Path
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


@dataclass(frozen=True)
class AudioStats:
    """Measured on decoded samples. Shares lie in 0..1."""

    first: int  # sample of the file at which the stretch starts
    samples: int
    rate: int  # Hz
    overshoot: float  # seconds that the stretch was to pass the end of the file by, and were cut off
    digest: str  # equal for equal samples, in whatever file and format
    peak: float  # of full scale
    clipped: float  # share of samples at full scale that have a neighbour there too
    silent: float  # share of 10 ms frames 40 dB under the loud ones (95th percentile), or under -70 dB of full scale

    @property
    def start(self) -> float:
        return self.first / self.rate

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


def measure_audio(
    stretches: Sequence[Stretch], max_overshoot: float = OVERSHOOT_SECONDS, workers: int = 0
) -> list[AudioStats | str]:
    """The statistics of each stretch, or the reason why it cannot be used, in the order asked for.

    A file is decoded once, whole, however many stretches lie in it: a header promises samples that a file cut short
    does not hold. A stretch that ends at most `max_overshoot` seconds after its file is cut there, one that starts
    there or later is refused. `workers`: threads (the decoders release the interpreter); 0 is one per core.
    """
    places = defaultdict(list)
    for index, stretch in enumerate(stretches):
        places[stretch.audio, stretch.channel].append(index)
    results: list[AudioStats | str] = [""] * len(stretches)

    def measure(place: tuple[Path, int | None]) -> None:
        wanted = [stretches[index] for index in places[place]]
        for index, result in zip(places[place], _measure_file(*place, wanted, max_overshoot), strict=True):
            results[index] = result

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for _ in pool.map(measure, places):
            pass
    return results


def measure_samples(samples: np.ndarray, rate: int, first: int = 0, overshoot: float = 0.0) -> AudioStats:
    """The statistics of samples (n,) float32 in [-1, 1] at `rate` Hz; n >= 1."""
    samples = np.ascontiguousarray(samples, "<f4")
    full = np.flatnonzero(np.abs(samples) >= FULL_SCALE)
    pairs = np.flatnonzero(np.diff(full) == 1)
    return AudioStats(
        first=first,
        samples=len(samples),
        rate=rate,
        overshoot=overshoot,
        # + 0: a negative zero is the same sound. 128 bits: no two of 10^9 utterances share a hash by chance.
        digest=hashlib.blake2b((samples + np.float32(0)).data, digest_size=16).hexdigest(),
        peak=float(np.abs(samples).max()),
        clipped=len(np.union1d(pairs, pairs + 1)) / len(samples),
        silent=_silent(samples, rate),
    )


def _measure_file(
    audio: Path, channel: int | None, stretches: list[Stretch], tolerance: float
) -> list[AudioStats | str]:
    try:
        decoded = read_audio(audio, channel=channel)
    except AsrError as error:
        return [str(error)] * len(stretches)
    except Exception as error:  # a decoder may fail in ways of its own; the other files must not suffer
        return [f"{audio}: {type(error).__name__}: {error}"] * len(stretches)
    samples = decoded.samples.numpy()
    results: list[AudioStats | str] = []
    for stretch in stretches:
        try:
            first, last, overshoot = _cut(stretch, len(samples), decoded.rate, tolerance)
        except AudioError as error:
            results.append(str(error))
            continue
        results.append(measure_samples(samples[first:last], decoded.rate, first, overshoot))
    return results


def _cut(stretch: Stretch, total: int, rate: int, tolerance: float) -> tuple[int, int, float]:
    """First sample, the one after the last, and the seconds cut off. Raises AudioError as `Span.within`."""
    start, end, name = stretch.start, stretch.end, str(stretch.audio)
    if end is None:
        Span(start).check(name)
        return *Span(start).within(total, rate, name), 0.0
    if end <= start:
        raise AudioError(f"{name}: starts at {start:g} s but ends at {end:g} s")
    length = total / rate
    overshoot = end - length
    if overshoot > tolerance and start < length:
        raise AudioError(
            f"{name}: ends at {end:g} s, {overshoot:.3f} s after the audio ({length:.3f} s); "
            f"{tolerance:g} s are allowed"
        )
    cut = max(0.0, (round(end * rate) - total) / rate)
    span = Span(start, min(end, length) - start if start < length else end - start)
    span.check(name)
    return *span.within(total, rate, name), cut


def _silent(samples: np.ndarray, rate: int) -> float:
    size = max(1, round(rate * FRAME_SECONDS))
    count = max(1, len(samples) // size)
    frames = samples[: count * size].reshape(count, -1)
    frames = frames - frames.mean(axis=1, keepdims=True)  # an offset is no sound
    power = np.square(frames).mean(axis=1)
    return float(np.mean(power < max(FLOOR, QUIET * float(np.quantile(power, 0.95)))))
