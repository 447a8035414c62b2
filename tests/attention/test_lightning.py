"""Lightning attention against its masked N×N form, and the op behind it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from asr.attention.lightning import LightningConfig
from asr.attention.rotary import rotate
from asr.kernels import build
from asr.kernels.backend import forced


def explicit(layer, x):
    """norm(((Q Kᵀ) ⊙ M) V) ⊙ gate, M_ts = λ^(t−s) for s ≤ t."""
    q, k, v, gate = layer.project(x).unflatten(-1, (4, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = F.silu(q), F.silu(k)
    if layer.rotary:
        q, k = rotate(q), rotate(k)
    t = torch.arange(x.shape[1])
    rates = torch.ones(layer.heads) if layer.decay is None else layer.decay
    mask = (rates[:, None, None].double() ** (t[:, None] - t).clamp(min=0)).tril()
    y = (q @ k.mT * mask) @ v
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight * gate.sigmoid()
    return layer.output(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_equals_the_masked_form(chunk, decay, rotary):
    torch.manual_seed(0)
    layer = LightningConfig(causal=True, decay=decay, chunk=chunk).build(12, 3, rotary).double()
    torch.nn.init.normal_(layer.norm.weight)
    x = torch.randn(2, 23, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, torch.tensor([23, 23])), explicit(layer, x), atol=1e-9, rtol=1e-9)


def test_heads_forget_at_rates_from_a_frame_to_hundreds():
    decay = LightningConfig(causal=True).build(64, 8).decay
    torch.testing.assert_close(decay, torch.exp(-(0.5 ** torch.arange(1, 9))))  # the slopes of ALiBi for 8 heads


def test_the_compiled_op_gives_what_pytorch_gives():
    if reason := build.load():
        pytest.skip(reason)
    torch.manual_seed(0)
    layer, lengths = LightningConfig(chunk=16).build(32, 4), torch.tensor([70, 41])
    x = torch.randn(2, 70, 32)
    results = {}
    for name in ("cpp", "reference"):
        layer.zero_grad()
        with forced(name):
            y = layer(x, lengths)
        y.square().sum().backward()
        results[name] = [y.detach(), *(p.grad.clone() for p in layer.parameters())]
    torch.testing.assert_close(results["cpp"], results["reference"], atol=2e-4, rtol=1e-3)


def test_training_runs_the_compiled_op():
    if reason := build.load():
        pytest.skip(reason)
    layer = LightningConfig(causal=True).build(16, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        layer(torch.randn(1, 9, 16), torch.tensor([9])).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"asr::causal_linear_attention", "asr::causal_linear_attention_backward"} <= names
