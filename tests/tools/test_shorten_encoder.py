"""The shorten encoder of the fake corpus, against FFmpeg's decoder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from fake_wsj.shorten import BLOCK, encode
from fake_wsj.sphere import write_header_only, write_sphere

from asr.audio.read import audio_info, read_audio
from asr.errors import AudioError

RNG = np.random.default_rng(0)


def int16(values) -> np.ndarray:
    return np.asarray(values).astype(np.int16)


SIGNALS = {
    "noise": int16(RNG.integers(-32768, 32768, 1000)),
    "quiet noise": int16(RNG.integers(-3, 4, 1000)),
    "constant": np.full(700, 1234, np.int16),
    "ramp": int16(np.arange(-1000, 1000)),
    "parabola": int16(np.arange(1000) ** 2 // 40),
    "tone": int16(20000 * np.sin(np.arange(1024) / 50)),
    "square at full scale": np.where(np.arange(900) // 100 % 2, 32767, -32768).astype(np.int16),
    "silence": np.zeros(777, np.int16),
    "silence within": int16(np.r_[np.arange(512), np.zeros(600), np.arange(300)]),
    "one block": int16(np.arange(BLOCK)),
    "one sample more": int16(np.arange(BLOCK + 1)),
    "one sample": int16([-5]),
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", SIGNALS)
def test_decodes_to_the_same_samples(tmp_path, name, order):
    write_sphere(tmp_path / "x.wv1", SIGNALS[name], 16000, order=order, shorten=True)
    decoded = read_audio(tmp_path / "x.wv1")
    assert decoded.rate == 16000
    assert np.array_equal(decoded.samples.numpy() * 32768, SIGNALS[name])


def test_two_channels(tmp_path):
    both = np.stack([SIGNALS["tone"], SIGNALS["tone"][::-1]], axis=1)
    write_sphere(tmp_path / "x.wv1", both, 16000, shorten=True)
    for channel in (0, 1):
        assert np.array_equal(read_audio(tmp_path / "x.wv1", channel=channel).samples.numpy() * 32768, both[:, channel])


def test_compresses(tmp_path):
    assert len(encode(SIGNALS["tone"][:, None])) < 0.6 * SIGNALS["tone"].nbytes
    assert len(encode(np.zeros((16000, 1), np.int16))) < 60


def test_real_speech(corpus, tmp_path):
    path = corpus("sphere_samples") / "reference.wav"
    samples, rate = soundfile.read(path, dtype="int16")
    write_sphere(tmp_path / "x.wv1", samples, rate, shorten=True)
    assert np.array_equal(read_audio(tmp_path / "x.wv1").samples.numpy() * 32768, samples)
    assert (tmp_path / "x.wv1").stat().st_size < 0.55 * samples.nbytes


def test_refuses_other_types():
    with pytest.raises(ValueError, match="int16"):
        encode(np.zeros((10, 1)))
    with pytest.raises(ValueError, match="channels"):
        encode(np.zeros(10, np.int16))


@pytest.mark.parametrize("order", ["<", ">"])
def test_plain_pcm(tmp_path, order):
    write_sphere(tmp_path / "x.wv1", SIGNALS["noise"], 8000, order=order)
    assert np.array_equal(read_audio(tmp_path / "x.wv1").samples.numpy() * 32768, SIGNALS["noise"])
    assert (tmp_path / "x.wv1").stat().st_size == 1024 + 2 * len(SIGNALS["noise"])


def test_header_only_has_a_length_and_no_samples(tmp_path):
    write_header_only(tmp_path / "x.wv1", 32000, 16000)
    assert audio_info(tmp_path / "x.wv1").seconds == 2
    with pytest.raises(AudioError, match="shorten"):
        read_audio(tmp_path / "x.wv1")
