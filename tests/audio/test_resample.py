from __future__ import annotations

import math

import pytest
import torch
import torchaudio

from asr.audio.resample import direct_resample, resample


@pytest.mark.parametrize(
    ("source", "rate"), [(44100, 16000), (48000, 16000), (8000, 16000), (11025, 16000), (16000, 22050)]
)
def test_both_forms_are_torchaudios(source, rate):
    samples = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    expected = torchaudio.functional.resample(samples.double(), source, rate).float()
    common = math.gcd(source, rate)
    torch.testing.assert_close(resample(samples, source, rate), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(direct_resample(samples, source // common, rate // common), expected, atol=1e-5, rtol=0)


def test_rates_without_a_common_divisor_take_little_memory():
    """torchaudio would tabulate 16000 filters of 1,092,676 / 4 taps and more: gigabytes."""
    for source in (44101, 1092676, 15999):
        samples = torch.sin(2 * math.pi * 200 * torch.arange(source // 2) / source)
        result = resample(samples, source, 16000)
        assert len(result) == math.ceil(source // 2 * 16000 / source)
        expected = torch.sin(2 * math.pi * 200 * torch.arange(len(result)) / 16000)
        assert float((result - expected)[100:-100].abs().max()) < 2e-3


def test_tiny_inputs():
    for source in (8000, 44100, 44101):
        assert len(resample(torch.ones(1), source, 16000)) == math.ceil(16000 / source)
