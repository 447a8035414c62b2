"""Dropout and zeroed padding: the compiled ops give the bits of their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import library

from asr.kernels import dropout, padding, zero_padding
from asr.kernels.backend import forced
from asr.kernels.dropout import reference

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [(1,), (7,), (3, 5), (2, 33, 17), (4, 70, 64, 8), (0, 3), (2, 0)]


def draws_for(x):
    return torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)


def bits(function, x, dout, *rest):
    x = x.detach().requires_grad_()
    y = function(x, *rest)
    y.backward(dout)
    return y.detach(), x.grad


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropped", [1, 26, 255])
def test_dropout_is_its_definition(shape, dropped, threads):
    threads(2)
    torch.manual_seed(0)
    x, dout = torch.randn(shape), torch.randn(shape)
    draws = draws_for(x)
    for mine, exact in zip(
        bits(dropout, x, dout, draws, dropped), bits(reference, x, dout, draws, dropped), strict=True
    ):
        assert torch.equal(mine, exact)
        assert torch.equal(mine.signbit(), exact.signbit())


def test_dropout_in_any_layout_and_dtype():
    x = torch.randn(6, 10, 4)
    draws = draws_for(x)
    turned, dout = x.transpose(0, 2), torch.randn(6, 4, 10).transpose(1, 2).transpose(0, 2)
    for mine, exact in zip(
        bits(dropout, turned, dout, draws, 99), bits(reference, turned, dout, draws, 99), strict=True
    ):
        assert torch.equal(mine, exact)
    for dtype in (torch.bfloat16, torch.float64):
        assert torch.equal(dropout(x.to(dtype), draws, 99), reference(x.to(dtype), draws, 99))


def test_dropout_keeps_nothing_but_its_draws():
    x = torch.randn(100, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        dropout(x * 2, draws_for(x), 26)
    assert [t.dtype for t in kept if t.dim() == 1] == [torch.int64]
    assert not any(t.dtype == torch.float32 and t.shape == x.shape for t in kept)


def test_what_the_compiled_dropout_refuses():
    with pytest.raises(RuntimeError, match="a byte for every element"):
        dropout(torch.ones(9), torch.zeros(1, dtype=torch.int64), 26)
    with pytest.raises(RuntimeError, match="1 to 255"):
        dropout(torch.ones(8), torch.zeros(1, dtype=torch.int64), 256)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_padding_is_zero_whatever_stood_there(shape, dtype, threads):
    threads(2)
    x, dout = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    lengths = torch.arange(shape[0]) * shape[1] // max(1, shape[0] - 1)
    at = torch.arange(shape[1]) >= lengths[:, None]
    x[at] = torch.nan
    for of in (lengths, lengths.int()):
        y, dx = bits(zero_padding, x, dout, of)
        exact, exact_dx = bits(padding.reference, x, dout, of)
        assert torch.equal(y, exact)
        assert torch.equal(dx, exact_dx)
        assert not y[at].any()
        assert torch.equal(y[~at], x[~at])


def test_padding_of_any_layout_and_odd_lengths():
    x = torch.randn(5, 3, 4).transpose(0, 1)
    lengths = torch.tensor([9, 0, -1])
    assert torch.equal(zero_padding(x, lengths), padding.reference(x, lengths))
    with pytest.raises(RuntimeError, match=r"lengths: \(batch,\)"):
        zero_padding(x, lengths[:2])


@pytest.mark.parametrize("kernels_are", ["auto", "cpp", "reference", "cuda"])
def test_helpers_work_whatever_is_demanded_of_the_ops(kernels_are):
    x = torch.ones(2, 3)
    with forced(kernels_are):
        assert zero_padding(x, torch.tensor([3, 1])).tolist() == [[1, 1, 1], [1, 0, 0]]
        assert dropout(x, torch.zeros(1, dtype=torch.int64), 128).tolist() == [[0] * 3] * 2


def test_helpers_keep_torchs_contract():
    x = torch.randn(3, 8, requires_grad=True)
    library.opcheck(torch.ops.asr.dropout, (x, draws_for(x), 26))
    library.opcheck(torch.ops.asr.zero_padding, (x, torch.tensor([8, 0, 3])))
