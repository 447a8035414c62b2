"""Padding set to zero, alone and behind a gate: the compiled ops against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import library

from asr.kernels import gate, padding, zero_padding
from asr.kernels.backend import forced

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [(3, 5), (2, 33, 17), (4, 70, 64, 8), (0, 3), (2, 0)]


def bits(function, x, dout, *rest):
    x = x.detach().requires_grad_()
    y = function(x, *rest)
    y.backward(dout)
    return y.detach(), x.grad


@pytest.mark.parametrize("shape", SHAPES)
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


@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 33, 34), (4, 70, 288), (1, 1, 2), (0, 3, 4), (2, 0, 6)])
def test_the_gate_is_its_definition(shape, threads):
    threads(1)
    torch.manual_seed(0)
    x, dout = 3 * torch.randn(shape), torch.randn(*shape[:2], shape[2] // 2)
    lengths = torch.arange(shape[0]) * shape[1] // max(1, shape[0] - 1)
    real = torch.arange(shape[1]) < lengths[:, None]
    mine = bits(gate, x, dout, lengths)
    for a, b in zip(mine, bits(padding.gate_reference, x.double(), dout.double(), lengths), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-6, rtol=1e-6)
        assert not a[~real].any()
    threads(2)
    x[~real] = torch.nan
    for a, b in zip(mine, bits(gate, x, dout, lengths.int()), strict=True):
        assert torch.equal(a, b)


def test_the_gate_in_any_layout_and_dtype():
    x, lengths = torch.randn(6, 5, 4).permute(2, 0, 1)[:, :, :4], torch.tensor([6, 0, 3, 9])
    torch.testing.assert_close(gate(x, lengths), padding.gate_reference(x, lengths))
    assert torch.equal(gate(x.bfloat16(), lengths), padding.gate_reference(x.bfloat16(), lengths))
    with pytest.raises(RuntimeError, match="an even number"):
        gate(x[:, :, :3], lengths)


@pytest.mark.parametrize("kernels_are", ["auto", "cpp", "reference", "cuda"])
def test_they_work_whatever_is_demanded_of_the_attention_ops(kernels_are):
    with forced(kernels_are):
        assert zero_padding(torch.ones(2, 3), torch.tensor([3, 1])).tolist() == [[1, 1, 1], [1, 0, 0]]
        assert gate(torch.zeros(1, 2, 2) + torch.tensor([4, 0]), torch.tensor([1])).tolist() == [[[2], [0]]]


def test_torchs_contract():
    x = torch.randn(3, 8, 4, requires_grad=True)
    library.opcheck(torch.ops.asr.zero_padding, (x, torch.tensor([8, 0, 3])))
    library.opcheck(torch.ops.asr.gate, (x, torch.tensor([8, 0, 3])))
