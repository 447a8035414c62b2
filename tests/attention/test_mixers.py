"""The suite every mixer goes through. A new mixer is one more row in MIXERS."""

from __future__ import annotations

import itertools

import pytest
import torch

from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig

MIXERS = {
    "softmax": SoftmaxConfig(),
    "softmax-materialised": SoftmaxConfig(implementation="materialised"),
    "softmax-causal": SoftmaxConfig(causal=True),
    "softmax-materialised-causal": SoftmaxConfig(implementation="materialised", causal=True),
    "linear": LinearConfig(),
    "linear-causal": LinearConfig(causal=True, chunk=7),
    "lsh": LshConfig(bucket_size=8),
    "lsh-1": LshConfig(bucket_size=8, rounds=1),
    "lsh-causal": LshConfig(bucket_size=8, causal=True),
}
CAUSAL = [name for name in MIXERS if "causal" in name]


@pytest.fixture(params=list(itertools.product(MIXERS, (False, True))), ids=lambda p: p[0] + ("-rotary" if p[1] else ""))
def mixer(request):
    torch.manual_seed(0)
    name, rotary = request.param
    return MIXERS[name].build(dim=24, heads=3, rotary=rotary).eval()


@pytest.mark.parametrize("fill", [0.0, 1e4, float("nan")])
def test_H1_padding_changes_nothing(mixer, fill):
    lengths = [37, 64, 5, 1, 20]
    rows = [torch.randn(n, 24) for n in lengths]
    alone = [mixer(r[None], torch.tensor([len(r)]))[0] for r in rows]
    batch = torch.full((5, 71, 24), fill)
    for i, r in enumerate(rows):
        batch[i, : len(r)] = r
    together = mixer(batch, torch.tensor(lengths))
    for i, n in enumerate(lengths):
        torch.testing.assert_close(together[i, :n], alone[i], atol=1e-5, rtol=1e-4)


def test_H1_padding_gets_no_gradient_and_gives_none(mixer):
    x = torch.randn(2, 20, 24, requires_grad=True)
    y = mixer(x, torch.tensor([20, 9]))
    y[1, :9].square().sum().backward()
    assert x.grad[1, 9:].abs().max() == 0
    assert x.grad[0].abs().max() == 0
    assert x.grad[1, :9].abs().min() > 0


def test_empty_rows_empty_time_and_empty_batch(mixer):
    y = mixer(torch.randn(4, 6, 24), torch.tensor([5, 0, 3, 0]))
    assert torch.isfinite(y).all()
    assert mixer(torch.randn(2, 0, 24), torch.tensor([0, 0])).shape == (2, 0, 24)
    assert mixer(torch.randn(0, 6, 24), torch.tensor([], dtype=torch.long)).shape == (0, 6, 24)


def test_gradients(mixer):
    mixer = mixer.double()
    x = torch.randn(2, 11, 24, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([11, 6])
    assert torch.autograd.gradcheck(lambda x: mixer(x, lengths)[1, :6].sum() + mixer(x, lengths)[0].sin().sum(), x)


def test_same_answer_twice_and_after_reload(mixer):
    x, lengths = torch.randn(2, 30, 24), torch.tensor([30, 17])
    first = mixer(x, lengths)
    assert torch.equal(first, mixer(x, lengths))
    torch.manual_seed(5)
    assert torch.equal(first, mixer(x, lengths)), "evaluation must not depend on the global generator"


def test_extreme_inputs_stay_finite(mixer):
    for scale in (1e-30, 1e4):
        x = (torch.randn(2, 30, 24) * scale).requires_grad_()
        y = mixer(x, torch.tensor([30, 17]))
        y.sum().backward()
        assert torch.isfinite(y).all()
        assert torch.isfinite(x.grad).all()


def test_autocast_keeps_the_answer(mixer):
    x, lengths = torch.randn(2, 30, 24), torch.tensor([30, 17])
    exact = mixer(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, lengths)
    if "Lsh" not in type(mixer).__name__:  # rounding moves frames over bucket borders
        torch.testing.assert_close(y.float(), exact, atol=0.05, rtol=0.05)
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("rotary", [False, True])
def test_causal_mixers_do_not_see_the_future(name, rotary):
    torch.manual_seed(0)
    mixer = MIXERS[name].build(dim=24, heads=3, rotary=rotary).eval()
    x = torch.randn(1, 40, 24)
    # Hashing sorts, so what a frame meets may move with later frames; what it sees is still only the past.
    if name.startswith("lsh"):
        x.requires_grad_()
        mixer(x, torch.tensor([40]))[0, 20].sum().backward()
        assert x.grad[0, 21:].abs().max() == 0
        assert x.grad[0, :20].abs().max() > 0
        return
    changed = x.clone()
    changed[0, 25:] += 1
    a, b = mixer(x, torch.tensor([40])), mixer(changed, torch.tensor([40]))
    assert torch.equal(a[0, :25], b[0, :25])
    assert not torch.equal(a[0, 25:], b[0, 25:])
