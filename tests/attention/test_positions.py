"""Positions late in a stream: angles stay exact, and with rotary ones only the lag counts."""

from __future__ import annotations

import math

import pytest
import torch

from asr.attention.decay import DecayConfig
from asr.attention.lightning import LightningConfig
from asr.attention.linear import LinearConfig
from asr.attention.retention import RetentionConfig
from asr.attention.rotary import rotate
from asr.encoder.positions import sinusoidal
from asr.kernels import rotary_table

LATE = 1_000_001  # nearly three hours of 10 ms frames; an odd number, of which float32 keeps no half


def angles(frame, dim):
    return [frame * 10000.0 ** (-2 * i / dim) for i in range(dim // 2)]


def test_angles_late_in_a_stream():
    dim = 16
    table, added = rotary_table(2, dim, start=LATE), sinusoidal(2, dim, start=LATE)
    assert table.dtype == added.dtype == torch.float32
    for t in range(2):
        at = angles(LATE + t, dim)
        assert table[t].tolist() == pytest.approx([math.cos(a) for a in at] + [math.sin(a) for a in at], abs=1e-6)
        pairs = [f(a) for a in at for f in (math.sin, math.cos)]
        assert added[t].tolist() == pytest.approx(pairs, abs=1e-6)


def test_only_the_lag_counts_however_late():
    q, k = torch.randn(2, 30, 16).unbind()
    early, late = (rotate(q, start) @ rotate(k, start).mT for start in (0, LATE))
    torch.testing.assert_close(early, late, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [LinearConfig, DecayConfig, LightningConfig, RetentionConfig])
@torch.inference_mode()
def test_a_stream_that_has_run_for_hours_hears_as_at_its_start(kind):
    torch.manual_seed(0)
    layer = kind(causal=True).build(16, 2, rotary=True).eval()
    state, x = layer.initial_state(1), torch.randn(1, 12, 16)
    early, _ = layer.step(x, state)
    late, after = layer.step(x, state._replace(time=LATE))
    torch.testing.assert_close(early, late, atol=1e-5, rtol=1e-5)
    assert after.time == LATE + 12
