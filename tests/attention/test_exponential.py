"""Sums over exponential features against the sums written out in float64, where nothing is out of range."""

from __future__ import annotations

import pytest
import torch

from asr.attention.exponential import causal_exponential_attention, stabilise
from asr.kernels import linear_attention


def written_out(q, k, v, causal):
    """Weights as a softmax over frames of ln Σ_f exp(a_tf + b_jf)."""
    q, k, v = (t.double() for t in (q, k, v))
    scores = torch.logsumexp(q[:, :, None] + k[:, None], dim=-1)  # (batch, query, key, heads)
    if causal:
        future = torch.ones(q.shape[1], k.shape[1]).triu(1).bool()
        scores = scores.masked_fill(future[..., None], -torch.inf)
    return torch.einsum("btsh,bshw->bthw", scores.softmax(2), v)


def start(q, v):
    batch, _, heads, features = q.shape
    z = torch.zeros(batch, heads, features)
    return torch.zeros(batch, heads, features, v.shape[3]), z, torch.full_like(z, -torch.inf)


SPREADS = [0.1, 3.0, 100.0, 3000.0]  # of the logarithms; e^88 is the end of float32


@pytest.mark.parametrize("spread", SPREADS)
def test_whole_utterance(spread):
    torch.manual_seed(0)
    q, k = spread * torch.randn(2, 2, 40, 3, 5)
    v = torch.randn(2, 40, 3, 4)
    y = linear_attention(*stabilise(q, k, torch.tensor([40, 40])), v, torch.tensor([40, 40]), feature_map="identity")
    torch.testing.assert_close(y.double(), written_out(q, k, v, False), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("chunk", [1, 8, 10**9])
@pytest.mark.parametrize("spread", SPREADS)
def test_causal(spread, chunk):
    torch.manual_seed(0)
    q, k = spread * torch.randn(2, 2, 40, 3, 5)
    v = torch.randn(2, 40, 3, 4)
    y = causal_exponential_attention(q, k, v, *start(q, v), chunk=chunk)[0]
    torch.testing.assert_close(y.double(), written_out(q, k, v, True), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("jump", [30.0, 70.0, 500.0])
def test_a_huge_later_key_changes_nothing_before_it(jump):
    """A maximum over all keys would make the earlier ones underflow."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 40, 1, 5)
    v = torch.randn(1, 40, 1, 4)
    before = causal_exponential_attention(q, k, v, *start(q, v))[0]
    k[:, 25] += jump
    after, kv, ksum, peak = causal_exponential_attention(q, k, v, *start(q, v))
    torch.testing.assert_close(after[:, :25], before[:, :25])
    torch.testing.assert_close(after.double(), written_out(q, k, v, True), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(peak, k.amax(1))
    assert torch.isfinite(kv).all()
    assert (ksum >= 1).all()  # the greatest key of each feature counts 1


def test_padding_has_no_part_in_the_maximum():
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 12, 1, 5)
    v, lengths = torch.randn(2, 12, 1, 4), torch.tensor([7, 0])
    k[:, 7:] += 500
    fq, fk = stabilise(q, k, lengths)
    y = linear_attention(fq, fk, v, lengths, feature_map="identity")
    expected = written_out(*(t[:1, :7] for t in (q, k, v)), causal=False)
    torch.testing.assert_close(y[:1, :7].double(), expected, atol=1e-5, rtol=1e-4)
    assert torch.isfinite(fq).all()
    assert (y[1] == 0).all()


@pytest.mark.parametrize("spread", [1.0, 200.0])
def test_gradients_are_those_of_the_written_out_sums(spread):
    torch.manual_seed(0)
    values = [spread * torch.randn(1, 9, 2, 3), spread * torch.randn(1, 9, 2, 3), torch.randn(1, 9, 2, 4)]
    probe, lengths = torch.randn(1, 9, 2, 4), torch.tensor([9])

    def gradients(function):
        leaves = [t.double().requires_grad_() for t in values]
        return torch.autograd.grad((function(*leaves) * probe).sum(), leaves)

    def causal(q, k, v):
        return causal_exponential_attention(q, k, v, *start(q, v), chunk=4)[0]

    def whole(q, k, v):
        return linear_attention(*stabilise(q, k, lengths), v, lengths, feature_map="identity", eps=1e-30)

    for function, is_causal in ((causal, True), (whole, False)):
        expected = gradients(lambda q, k, v, c=is_causal: written_out(q, k, v, c))
        torch.testing.assert_close(gradients(function), expected, atol=1e-8, rtol=1e-6)
