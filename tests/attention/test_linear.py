"""Linear attention against its explicit N×N form."""

from __future__ import annotations

import pytest
import torch

from asr.attention.feature_maps import FixedMapConfig
from asr.attention.linear import LinearConfig
from asr.attention.rotary import rotate
from asr.kernels.features import elu_plus_one


def explicit(layer, x, causal):
    """V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j), one row at a time (Katharopoulos et al., equation 3)."""
    q, k, v = layer.project(x[0]).unflatten(-1, (3, layer.heads, -1)).permute(1, 2, 0, 3)
    phi = lambda t: torch.nn.functional.elu(t) + 1  # noqa: E731
    out = []
    for h in range(layer.heads):
        qh, kh = phi(q[h]), phi(k[h])
        weights = rotate(qh) @ rotate(kh).T if layer.rotary else qh @ kh.T
        sums = qh @ kh.T
        if causal:
            weights, sums = weights.tril(), sums.tril()
        out.append(weights @ v[h] / (sums.sum(-1, keepdim=True) + layer.eps))
    return layer.output(torch.cat(out, -1))


def explicit_norm(layer, x, causal):
    """norm(Σ_j φ(q_i)ᵀφ(k_j) v_j), the norm per head, with the map identity (Qin et al. 2022, equation 9)."""
    q, k, v = layer.project(x[0]).unflatten(-1, (3, layer.heads, -1)).permute(1, 2, 0, 3)
    weights = rotate(q) @ rotate(k).mT if layer.rotary else q @ k.mT
    y = (weights.tril() if causal else weights) @ v
    y = y / (y.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.norm.weight
    return layer.output(y.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_output_norm_equals_the_explicit_form(causal, rotary):
    torch.manual_seed(0)
    identity = FixedMapConfig(kind="identity")
    layer = (
        LinearConfig(causal=causal, chunk=5 if causal else 64, feature_map=identity, normaliser="output")
        .build(12, 2, rotary)
        .double()
    )
    torch.nn.init.normal_(layer.norm.weight)
    x = torch.randn(1, 23, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, torch.tensor([23]))[0], explicit_norm(layer, x, causal), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_explicit_form(causal, rotary):
    torch.manual_seed(0)
    layer = LinearConfig(causal=causal, chunk=5 if causal else 64).build(12, 2, rotary).double()
    x = torch.randn(1, 23, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, torch.tensor([23]))[0], explicit(layer, x, causal), atol=1e-9, rtol=1e-9)


def test_feature_map_is_elu_plus_one_and_stays_positive():
    x = torch.linspace(-80, 10, 1000)
    torch.testing.assert_close(elu_plus_one(x), torch.nn.functional.elu(x) + 1)
    assert (elu_plus_one(x) > 0).all()
