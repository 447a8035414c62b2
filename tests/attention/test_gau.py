"""The gated attention unit against its equations, pair by pair."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from asr.attention.gau import GauConfig
from asr.attention.rotary import rotate


def explicit(layer, x):
    """One row (time, dim), its N×N weights written out; Hua et al., 2022, sections 2.2 and 3.2."""
    time, group = len(x), layer.group or len(x)
    u, v, z = F.silu(layer.project(x)).split(layer.sizes, dim=-1)
    v = v.unflatten(-1, (layer.heads, -1))
    i, j = torch.arange(time)[:, None], torch.arange(time)
    together = i // group == j // group
    near = together & (j <= i) if layer.causal else together
    far = (j // group < i // group) if layer.causal else torch.ones(time, time, dtype=torch.bool)
    out = []
    for h in range(layer.heads):
        vectors = [z * a + b for a, b in zip(layer.scale[:, h], layer.offset[:, h], strict=True)]
        if layer.rotary:
            vectors = [rotate(t) for t in vectors]
        q, k = vectors[:2]
        weights = F.relu(q @ k.T / layer.width**0.5) ** 2 * near / near.sum(-1, keepdim=True)
        if layer.group:
            q, k = vectors[2:]
            weights = weights + q @ k.T / layer.width**0.5 * far / far.sum(-1, keepdim=True).clamp(min=1)
        out.append(weights @ v[:, h])
    return layer.output(u * torch.cat(out, -1))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group", [None, 1, 5, 23, 2**16])
@pytest.mark.parametrize("heads", [1, 2])
def test_equals_the_explicit_form(heads, group, causal, rotary):
    torch.manual_seed(0)
    layer = GauConfig(group=group, width=6, causal=causal).build(12, heads, rotary).double()
    torch.nn.init.normal_(layer.offset)
    x, lengths = torch.randn(3, 23, 12, dtype=torch.float64), torch.tensor([23, 9, 1])
    y = layer(x, lengths)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(y[row, :n], explicit(layer, x[row, :n]), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("group", [None, 64])
def test_a_new_layer_gives_results_of_ordinary_size(group):
    """A product of so many factors starts near 0 unless each starts near 1: softmax attention gives 0.04 here."""
    torch.manual_seed(0)
    layer = GauConfig(group=group).build(192, 6)
    y = layer(torch.randn(2, 200, 192), torch.tensor([200, 200])) - layer.output.bias
    assert 0.003 < y.std() < 0.5


def test_widths_are_checked_with_the_recipe():
    with pytest.raises(ValueError, match="even width, got 7"):
        GauConfig(width=7).check(12, 4, rotary=True)
    GauConfig(width=8).check(12, 4, rotary=True)  # the model's head width of 3 turns nothing
    with pytest.raises(ValueError, match="not a multiple of heads"):
        GauConfig().check(12, 5, rotary=False)


def test_a_stream_does_not_remember_without_bounds():
    assert GauConfig(group=10**9).group == 10**9, "without a stream there is no state"
    with pytest.raises(ValueError, match="group makes a stream remember 1000000000 frames, more than 65536"):
        GauConfig(group=10**9, causal=True)
