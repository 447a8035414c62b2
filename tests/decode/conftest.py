"""A recogniser whose answer is a plain function of the samples, so that results can be traced to their inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import soundfile

from asr.errors import AudioError
from asr.recogniser import TokenSpan


@dataclass
class Hypothesis:
    text: str
    tokens: list[TokenSpan] = field(default_factory=list)
    log_prob: float = 0.0


class Loudness:
    """Says the peak of the audio in percent; empty below 400 samples; refuses silence."""

    sample_rate = 16000

    def __init__(self):
        self.batches: list[list[int]] = []

    def transcribe(self, batch):
        self.batches.append([len(audio.samples) for audio in batch])
        return [self._one(audio) for audio in batch]

    def _one(self, audio):
        if len(audio.samples) < 400:
            return Hypothesis("")
        peak = round(100 * float(np.abs(np.asarray(audio.samples)).max()))
        if peak == 0:
            raise AudioError("the fake refuses silence")
        return Hypothesis(str(peak), [TokenSpan(str(peak), 0.0, len(audio.samples) / audio.rate, -0.1)], -0.1)


@pytest.fixture
def recogniser():
    return Loudness()


@pytest.fixture
def tone(tmp_path):
    """`tone(name, peak percent, seconds, rate)` writes a sine and gives its path."""

    def write(name, peak=50, seconds=0.5, rate=16000, channels=1):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        time = np.arange(round(seconds * rate)) / rate
        wave = peak / 100 * np.sin(2 * np.pi * 200 * time)
        data = wave if channels == 1 else np.stack([wave * (1 - c / channels) for c in range(channels)], 1)
        soundfile.write(path, data, rate)
        return path

    return write
