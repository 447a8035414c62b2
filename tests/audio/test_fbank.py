from __future__ import annotations

import pytest
import torch
import torchaudio.compliance.kaldi as kaldi
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import add_deltas, check_config, fbank, num_frames
from asr.audio.read import read_audio
from asr.errors import AudioError, RecipeError


def torchaudio_fbank(samples, config):
    return kaldi.fbank(
        samples[None] * 32768,
        num_mel_bins=config.bins,
        sample_frequency=config.sample_rate,
        frame_length=config.window_ms,
        frame_shift=config.hop_ms,
        low_freq=config.low_hz,
        high_freq=config.high_hz,
        dither=0.0,
    )


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bins": 80},
        {"sample_rate": 8000, "bins": 23},
        {"sample_rate": 11025, "high_hz": -400.0},
        {"window_ms": 32.0, "hop_ms": 8.0, "low_hz": 60.0, "high_hz": 7600.0},
    ],
)
def test_equals_torchaudio(settings):
    config = FeaturesConfig(**settings)
    samples = noise(2 * config.sample_rate + 123)
    samples[5000:9000] = 0  # digital silence: every band at the floor
    torch.testing.assert_close(fbank(samples, config), torchaudio_fbank(samples, config), atol=1e-3, rtol=0)


def test_equals_torchaudio_on_speech(corpus):
    config = FeaturesConfig()
    for path in sorted(corpus("an4").glob("audio/**/*.flac"))[:3]:
        samples = read_audio(path).samples
        torch.testing.assert_close(fbank(samples, config), torchaudio_fbank(samples, config), atol=1e-3, rtol=0)


@given(samples=st.integers(0, 3000), rate=st.sampled_from([8000, 11025, 16000]), hop=st.sampled_from([8.0, 10.0, 12.5]))
@settings(deadline=None, max_examples=40)
def test_num_frames_is_exact(samples, rate, hop):
    config = FeaturesConfig(sample_rate=rate, hop_ms=hop, bins=23)
    if num_frames(samples, config):
        assert fbank(noise(samples), config).shape == (num_frames(samples, config), config.dim)
    else:
        with pytest.raises(AudioError, match=f"^{samples} samples .* too short"):
            fbank(noise(samples), config)


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (1, 0), (399, 0), (400, 1), (401, 1), (560, 2), (1200, 6)])
def test_D1_short_audio(samples, frames):
    config = FeaturesConfig()
    assert num_frames(samples, config) == frames
    if frames:
        assert fbank(noise(samples), config).shape == (frames, 40)
    else:
        with pytest.raises(AudioError, match=f"{samples} samples .* one window needs 400"):
            fbank(noise(samples), config)


def test_D1_swapped_axes_have_their_own_message():
    with pytest.raises(AudioError, match=r"must have shape \(n,\), got \(16000, 1\); the axes are swapped"):
        fbank(torch.zeros(16000, 1), FeaturesConfig())


def test_dither_is_seeded_and_only_on_demand():
    config = FeaturesConfig(dither=1.0)
    quiet = torch.zeros(16000)
    floor = fbank(quiet, config)
    assert torch.equal(floor, torch.full_like(floor, torch.finfo(torch.float32).eps).log())
    assert torch.equal(fbank(quiet, config, dither_seed=3), fbank(quiet, config, dither_seed=3))
    assert not torch.equal(fbank(quiet, config, dither_seed=3), fbank(quiet, config, dither_seed=4))
    # `noise` has deviation 0.1, so ten 16-bit steps of it are noise of one step: equal in the mean.
    expected = torchaudio_fbank(noise(160000, 1) * (10 / 32768), config).mean(0)
    heard = fbank(torch.zeros(160000), config, dither_seed=1).mean(0)
    torch.testing.assert_close(heard, expected, atol=0.1, rtol=0)


def test_deltas_are_kaldis():
    """Against the definition, frame by frame: a linear ramp has slope 1 and curvature 0 away from the edges."""
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))

    def frame(t):
        return x[min(max(t, 0), 29)]

    def first(t):
        return sum(n * (frame(t + n) - frame(t - n)) for n in (1, 2)) / 10

    def second(t):
        return sum(i * j * frame(t + i + j) for i in range(-2, 3) for j in range(-2, 3)) / 100

    expected = torch.stack([torch.cat([frame(t), first(t), second(t)]) for t in range(30)])
    torch.testing.assert_close(add_deltas(x), expected)
    ramp = add_deltas(torch.arange(20.0)[:, None])
    torch.testing.assert_close(ramp[4:-4, 1:], torch.tensor([1.0, 0.0]).expand(12, 2))
    config = FeaturesConfig(deltas=True)
    assert fbank(noise(400), config).shape == (1, 120)


def test_impossible_settings_are_recipe_errors():
    with pytest.raises(RecipeError, match=r"features\.bins: 120 bands are too many"):
        check_config(FeaturesConfig(sample_rate=8000, bins=120))
    with pytest.raises(RecipeError, match=r"window_ms 0\.1"):
        check_config(FeaturesConfig(window_ms=0.1, hop_ms=0.05))
    check_config(FeaturesConfig(bins=80))
