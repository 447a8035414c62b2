"""Gated linear attention against its equations, frame by frame."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from asr.attention.gated import GatedConfig
from asr.attention.softmax import SoftmaxConfig


def test_equals_its_equations():
    torch.manual_seed(0)
    layer = GatedConfig(causal=True, tau=2.0).build(24, 3).double()
    x = torch.randn(20, 24, dtype=torch.float64)
    q, k, v = layer.project(x).unflatten(-1, (3, 16)).split([4, 4, 8], -1)
    alpha = torch.sigmoid(layer.gates(x)).unflatten(-1, (3, 4)).sqrt()
    s, out = torch.zeros(3, 4, 8, dtype=torch.float64), []
    for t in range(20):
        s = alpha[t, :, :, None] * s + k[t, :, :, None] * v[t, :, None] / 2
        o = (q[t, :, :, None] * s).sum(1)
        normed = (o - o.mean(-1, keepdim=True)) / (o.var(-1, correction=0, keepdim=True) + layer.out.eps).sqrt()
        out.append(layer.out.output(F.silu(layer.out.gate(x[t])) * normed.flatten()))
    y = layer(x[None], torch.tensor([20]))[0]
    torch.testing.assert_close(y, torch.stack(out), atol=1e-9, rtol=1e-9)


def test_has_about_the_weights_of_softmax_attention():
    count = lambda mixer: sum(p.numel() for p in mixer.parameters())  # noqa: E731
    gated, softmax = (count(config.build(192, 6)) for config in (GatedConfig(causal=True), SoftmaxConfig()))
    assert abs(gated / softmax - 1) < 0.05


@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_gates_shut_and_open_give_finite_gradients(bias):
    torch.manual_seed(0)
    layer = GatedConfig(causal=True, tau=1.0).build(24, 3)
    torch.nn.init.constant_(layer.gates[1].bias, bias)
    x = torch.randn(2, 70, 24, requires_grad=True)
    layer(x, torch.tensor([70, 40])).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *layer.parameters()))
    assert x.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("options", "dim", "message"),
    [
        ({"expand_k": 0.3}, 24, "expand_k 0.3 makes keys of 2.4 channels a head, not a whole number"),
        ({"expand_k": 1e-9}, 24, "not a whole number"),
        ({}, 3, "head width of at least 2, got 1"),
    ],
)
def test_widths_that_do_not_work_are_refused(options, dim, message):
    with pytest.raises(ValueError, match=message):
        GatedConfig(**options).check(dim, 3, rotary=False)
