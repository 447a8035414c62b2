"""Retention against the paper's parallel form, and what it promises of its positions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from asr.attention.retention import RetentionConfig, RetentionState
from asr.attention.rotary import rotate


def layer_of(dim=24, heads=3, **options):
    torch.manual_seed(0)
    return RetentionConfig(causal=True, **options).build(dim, heads).double()


def parallel(layer, x):
    """Sun et al., 2023, equation 5 with the three score normalisations of section 2.4, one row."""
    projected = layer.project(x).unflatten(-1, (layer.heads, -1)).transpose(0, 1)
    q, k, v = projected.split([layer.width, layer.width, layer.values], -1)
    lag = torch.arange(len(x))[:, None] - torch.arange(len(x))
    heads = []
    for h in range(layer.heads):
        gamma = 1 - 2.0 ** (-5 - h)
        decay = torch.where(lag >= 0, gamma ** lag.clamp(min=0).double(), 0.0)
        decay = decay / decay.sum(1, keepdim=True).sqrt()
        scores = rotate(q[h]) @ rotate(k[h]).T / layer.width**0.5 * decay
        scores = scores / scores.sum(1, keepdim=True).abs().clamp(min=1)
        heads.append(F.layer_norm(scores @ v[h], (layer.values,), eps=0.0))
    return layer.out.output(F.silu(layer.out.gate(x)) * torch.cat(heads, -1))


@pytest.mark.parametrize(("chunk", "expand_v"), [(1, 1), (7, 2), (64, 1)])
def test_equals_the_parallel_form_with_its_score_normalisations(chunk, expand_v):
    layer = layer_of(chunk=chunk, expand_v=expand_v, eps=1e-300)
    x = torch.randn(40, 24, dtype=torch.float64)
    torch.testing.assert_close(layer(x[None], torch.tensor([40]))[0], parallel(layer, x), atol=1e-9, rtol=1e-9)


def test_forms_agree_from_a_random_state():
    layer, x = layer_of(), torch.randn(2, 20, 24, dtype=torch.float64)
    start = RetentionState(torch.randn(2, 3, 8, 8, dtype=torch.float64), time=3)
    y, end = layer.step(x, start)
    state, out = start, []
    for t in range(20):
        frame, state = layer.step(x[:, t : t + 1], state)
        out.append(frame)
    torch.testing.assert_close(torch.cat(out, 1), y, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(state, end, atol=1e-9, rtol=1e-9)


def test_only_the_lag_counts():
    layer, x = layer_of(), torch.randn(1, 20, 24, dtype=torch.float64)
    start = layer.initial_state(1)
    late = layer.step(x, start._replace(time=500))[0]
    torch.testing.assert_close(late, layer.step(x, start)[0], atol=1e-4, rtol=1e-4)  # angles are float32
    assert (late - layer.step(x[:, torch.randperm(20)], start)[0]).abs().max() > 0.01


def test_the_sum_of_many_loud_frames_stays_finite_in_half_precision():
    layer = RetentionConfig(causal=True).build(24, 3)
    x = 100 * torch.randn(1, 1, 24).expand(1, 800, 24)
    with torch.autocast("cpu", torch.float16):
        y = layer(x, torch.tensor([800]))
    assert layer.step(x, layer.initial_state(1))[1].s.abs().max() > 65504, "the case is not loud enough"
    assert torch.isfinite(y).all()
    torch.testing.assert_close(y.float(), layer(x, torch.tensor([800])), atol=1.0, rtol=0.02)


def test_memories_are_those_of_the_paper():
    layer = RetentionConfig(causal=True).build(24, 6)
    assert layer.memory_frames().tolist() == [32, 64, 128, 256, 512, 1024]
    assert layer.bfloat16().memory_frames().tolist() == [32, 64, 128, 256, 512, 1024]


def test_an_odd_head_width_is_refused_whatever_the_positions():
    with pytest.raises(ValueError, match="even head width, got 3"):
        RetentionConfig().check(9, 3, rotary=False)
