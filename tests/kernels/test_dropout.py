"""Dropout behind an activation and before a sum: the compiled ops against their definition, bits included."""

from __future__ import annotations

import pytest
import torch
from torch import library

from asr.kernels import add_dropout, dropout
from asr.kernels.backend import forced
from asr.kernels.dropout import ACTIVATIONS, _add_dropout, _dropout

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [(1,), (7,), (64,), (3, 5), (2, 33, 17), (4, 70, 64, 8), (0, 3), (2, 0)]
LOW = (1 << 32) - 1
SEED = torch.tensor([-(2**62) + 12345])


def philox(seed, counter, rounds):
    """(n,) → (n, 4) words of 32 bits: Salmon et al., 2011, section 3.3."""
    a, b, c, d = counter & LOW, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)
    first, second = seed & LOW, (seed >> 32) & LOW
    for _ in range(rounds):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = ((q >> 32) & LOW) ^ b ^ first, q & LOW
        c, d = ((p >> 32) & LOW) ^ d ^ second, p & LOW
        first, second = (first + 0x9E3779B9) & LOW, (second + 0xBB67AE85) & LOW
    return torch.stack([a, b, c, d], -1)


def factors(x, seed, dropped, weight=1.0):
    """Byte n of word 2h + j of counter i of a group of four is number 32h + 8n + 2i + j of its 64."""
    words = philox(seed, torch.arange(-(-x.numel() // 64) * 4), 7).view(-1, 4, 2, 1, 2)  # group, i, h, n, j
    drawn = ((words >> torch.arange(0, 32, 8)[:, None]) & 255).permute(0, 2, 3, 1, 4)
    keep = drawn.flatten()[: x.numel()].view(x.shape) >= dropped
    return keep.to(x.dtype) * (weight * 256 / (256 - dropped))


def results(function, dout, *inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dout)]


def test_the_random_words_are_those_of_the_paper():
    """Known answers of the authors' own library, Random123."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert philox(zero, zero, 7).tolist() == [[0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]]
    assert philox(zero, zero, 10).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropped", [0, 1, 26, 255])
def test_the_bits_are_the_definitions(shape, dropped, threads):
    threads(2)
    torch.manual_seed(0)
    x, dout = torch.randn(shape), torch.randn(shape)
    mine = results(lambda t: _dropout(t, SEED, dropped, "identity"), dout, x)
    exact = results(lambda t: t * factors(t, SEED, dropped), dout, x)
    for a, b in zip(mine, exact, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.signbit(), b.signbit())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_behind_an_activation(activation, shape, threads):
    torch.manual_seed(0)
    x, dout = 4 * torch.randn(shape), torch.randn(shape)
    threads(1)
    mine = results(lambda t: _dropout(t, SEED, 60, activation), dout, x)
    exact = results(lambda t: ACTIVATIONS[activation](t) * factors(t, SEED, 60), dout.double(), x.double())
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-6, rtol=2e-6)
    threads(2)
    for a, b in zip(mine, results(lambda t: _dropout(t, SEED, 60, activation), dout, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_extreme_numbers(activation):
    x = torch.tensor([-1e30, -1e4, -90.0, -20.0, -0.0, 0.0, 1e-30, 90.0, 1e4, 1e30])
    mine = results(lambda t: _dropout(t, SEED, 0, activation), torch.ones(10), x)
    exact = results(ACTIVATIONS[activation], torch.ones(10).double(), x.double())
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-7, rtol=1e-6)
    nan = torch.tensor([torch.nan])
    assert _dropout(nan, SEED, 0, activation).isnan().all()


@pytest.mark.parametrize("weight", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_before_a_sum(shape, weight):
    torch.manual_seed(0)
    x, y, dout = (torch.randn(shape) for _ in range(3))
    mine = results(lambda a, b: _add_dropout(a, b, SEED, 26, weight), dout, x, y)
    exact = results(lambda a, b: a + b * factors(b, SEED, 26, weight), dout, x, y)
    torch.testing.assert_close(mine[0], exact[0], atol=1e-6, rtol=0)
    for a, b in zip(mine[1:], exact[1:], strict=True):
        assert torch.equal(a, b)


def test_any_layout_and_dtype():
    x, y = torch.randn(2, 6, 10, 4).transpose(1, 3)
    torch.manual_seed(5)
    first = dropout(x, 0.4), add_dropout(x, y, 0.4)
    torch.manual_seed(5)
    second = dropout(x.contiguous(), 0.4), add_dropout(x.contiguous(), y.contiguous(), 0.4)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for dtype in (torch.bfloat16, torch.float64):
        assert dropout(x.to(dtype), 0.4).dtype == dtype
        assert add_dropout(x, y.to(dtype), 0.4).dtype == torch.promote_types(torch.float32, dtype)


@pytest.mark.parametrize("kernels_are", ["auto", "cpp", "reference", "cuda"])
def test_they_work_whatever_is_demanded_of_the_attention_ops(kernels_are):
    x = torch.ones(300, 200, requires_grad=True)
    with forced(kernels_are):
        torch.manual_seed(1)
        for y in (dropout(x, 0.25), add_dropout(x.detach(), x, 0.25) - 1, dropout(x, 0.25, "relu")):
            assert y.mean().item() == pytest.approx(1, abs=0.02)
            torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach())


def test_nothing_random_is_kept():
    x = torch.randn(100, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        dropout(x * 2, 0.1)
        add_dropout(x, x * 2, 0.1)
    assert [t.numel() for t in kept if t.dtype == torch.int64] == [1, 1]
    assert not any(t.dtype == torch.float32 and t.shape == x.shape for t in kept)


def test_what_the_ops_refuse():
    x = torch.ones(9)
    with pytest.raises(RuntimeError, match="0 to 255"):
        _dropout(x, SEED, 256, "identity")
    with pytest.raises(RuntimeError, match="one int64"):
        _dropout(x, SEED.repeat(2), 26, "identity")
    with pytest.raises(RuntimeError, match="activation: identity, relu, silu or gelu"):
        _dropout(x, SEED, 26, "tanh")
    with pytest.raises(RuntimeError, match="differ in shape"):
        _add_dropout(x, torch.ones(3), SEED, 26, 1.0)


def test_torchs_contract_and_tracing():
    x = torch.randn(3, 8, requires_grad=True)
    library.opcheck(torch.ops.asr.dropout, (x, SEED, 26, "silu"))
    library.opcheck(torch.ops.asr.add_dropout, (x, x.detach().requires_grad_(), SEED, 26, 0.5))
    compiled = torch.compile(
        lambda t: add_dropout(t, dropout(t, 0.5, "silu"), 0.5), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(3)
    expected = add_dropout(x, dropout(x, 0.5, "silu"), 0.5)
    torch.manual_seed(3)
    found = compiled(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x))
