"""Decayed linear attention against its averages, frame by frame, and what its decays mean."""

from __future__ import annotations

import pytest
import torch

from asr.attention.decay import DecayConfig
from asr.attention.linear import LinearConfig, LinearState
from asr.attention.rotary import rotate
from asr.kernels.features import elu_plus_one

EXTREME = [1e-7, 0.6, 1 - 1e-7]


def layer_of(decays, rotary=False, **options):
    torch.manual_seed(0)
    heads = len(decays)
    return DecayConfig(causal=True, decay=decays, **options).build(4 * heads, heads, rotary).double()


def averages(layer, x, start):
    """μ and ν as they are written, one frame after the other; eps beside ν is (1 − a)·eps."""
    q, k, v = layer.project(x).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = elu_plus_one(q), elu_plus_one(k)
    turned_q, turned_k = (rotate(q, start.time), rotate(k, start.time)) if layer.rotary else (q, k)
    a = layer.logit.sigmoid()[:, None]
    mu, nu = (1 - a[..., None]) * start.s, (1 - a) * start.z
    out = []
    for t in range(x.shape[1]):
        mu = a[..., None] * mu + (1 - a[..., None]) * turned_k[:, :, t, :, None] * v[:, :, t, None]
        nu = a * nu + (1 - a) * k[:, :, t]
        below = (q[:, :, t] * nu).sum(-1, keepdim=True) + (1 - a) * layer.eps
        out.append((turned_q[:, :, t, :, None] * mu).sum(2) / below)
    return layer.output(torch.stack(out, 1).flatten(2)), mu / (1 - a[..., None]), nu / (1 - a)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_equals_the_averages_from_any_state_also_with_decays_near_0_and_1(chunk, rotary):
    layer = layer_of(EXTREME, rotary, chunk=chunk)
    x = torch.randn(2, 23, 12, dtype=torch.float64)
    s, z = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.rand(2, 3, 4, dtype=torch.float64)
    start = LinearState(s, z, time=5)
    y, end = layer.step(x, start)
    expected, last_s, last_z = averages(layer, x, start)
    for mine, right in ((y, expected), (end.s, last_s), (end.z, last_z)):
        torch.testing.assert_close(mine, right, atol=1e-9, rtol=1e-9)
    assert end.time == 28


def test_without_forgetting_it_is_linear_attention():
    layer = layer_of([1 - 1e-13] * 2)
    linear = LinearConfig(causal=True).build(8, 2).double()
    linear.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "logit"})
    x, lengths = torch.randn(1, 30, 8, dtype=torch.float64), torch.tensor([30])
    torch.testing.assert_close(layer(x, lengths), linear(x, lengths), atol=1e-9, rtol=1e-9)


def test_decays_have_a_gradient_also_in_the_compiled_op():
    layer = layer_of(EXTREME)
    x, lengths = torch.randn(2, 40, 12, dtype=torch.float64), torch.tensor([40, 25])

    def loss(logit):
        return torch.func.functional_call(layer, {"logit": logit}, (x, lengths))[0].sin().sum()

    exact = layer.logit.detach().requires_grad_()
    assert torch.autograd.gradcheck(loss, exact)
    (right,) = torch.autograd.grad(loss(exact), exact)
    layer, x = layer.float(), x.float()
    (mine,) = torch.autograd.grad(loss(layer.logit), layer.logit)
    torch.testing.assert_close(mine.double(), right, atol=1e-5, rtol=1e-3)


def test_fixed_decays_are_no_parameters_but_are_saved():
    fixed = layer_of([0.5, 0.9], learned=False)
    assert "logit" not in dict(fixed.named_parameters())
    assert "logit" in fixed.state_dict()
    assert "logit" in dict(layer_of([0.5, 0.9]).named_parameters())


def test_memories_start_spread_and_keep_their_digits():
    both = DecayConfig().build(24, 6)
    for layer in (both.ahead, both.back):
        frames = layer.memory_frames()
        assert frames[0].item() == pytest.approx(4)
        assert frames[-1].item() == pytest.approx(1024)
        torch.testing.assert_close(frames[1:] / frames[:-1], torch.full((5,), 256 ** (1 / 5)))
    long = DecayConfig(causal=True, decay=[1 - 1e-9]).build(4, 1)
    assert long.memory_frames().item() == pytest.approx(1e9, rel=1e-4)
    assert long.bfloat16().decay().dtype == torch.float32


@pytest.mark.parametrize(
    ("decay", "message"),
    [
        ([0.5], "1 value for 2 heads"),
        ([0.5, 1.0], "between 0 and 1, got 1.0; kind: linear"),
        ([0.0, 0.5], "between 0 and 1"),
    ],
)
def test_decays_that_make_no_sense_are_refused(decay, message):
    with pytest.raises(ValueError, match=message):
        DecayConfig(decay=decay).check(8, 2, rotary=False)
