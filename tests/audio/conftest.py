"""Sounds made here, so that most tests need no corpus."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile


@pytest.fixture(scope="session")
def tone() -> np.ndarray:
    """One second at 16 kHz, int16: a sum of sines that every codec keeps recognisable."""
    time = np.arange(16000) / 16000
    return (8000 * np.sin(2 * np.pi * 300 * time) + 4000 * np.sin(2 * np.pi * 1100 * time + 1)).astype(np.int16)


@pytest.fixture
def wav_bytes():
    """`wav_bytes(int16 samples, declared=None)`: a 44-byte-header WAV whose data size may be a lie."""

    def make(samples: np.ndarray, rate: int = 16000, declared: int | None = None) -> bytes:
        body = samples.astype("<i2").tobytes()
        size = len(body) if declared is None else declared
        form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
        riff = min(0xFFFFFFFF, size + 36)
        return (
            struct.pack("<4sI4s4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16)
            + form
            + struct.pack("<4sI", b"data", size)
            + body
        )

    return make


@pytest.fixture
def encode():
    """`encode(samples, format, rate)`: the bytes of a file that libsndfile writes."""

    def make(samples: np.ndarray, format: str, rate: int = 16000, **options) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format=format, **options)
        return file.getvalue()

    return make


@pytest.fixture
def m4a_bytes():
    """`m4a_bytes(int16 samples, rate)`: AAC in MP4, made by PyAV."""
    av = pytest.importorskip("av")

    def make(samples: np.ndarray, rate: int = 16000) -> bytes:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("aac", rate=rate)
            stream.layout = "mono"
            frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate = rate
            frame.pts = 0
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                container.mux(packet)
        return file.getvalue()

    return make
