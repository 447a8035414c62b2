"""Depth-wise convolution: the compiled op against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import library

from asr.kernels import depthwise_convolution
from asr.kernels.depthwise import reference
from asr.report.flops import count_flops

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [  # batch, time, dim, kernel, left, right
    (2, 30, 48, 15, 7, 7),
    (3, 131, 16, 5, 4, 0),
    (1, 200, 37, 31, 15, 15),
    (2, 5, 33, 15, 7, 7),
    (2, 17, 144, 4, 0, 0),
    (1, 1, 4, 3, 1, 1),
    (2, 9, 20, 1, 0, 0),
    (2, 8, 32, 9, 0, 8),
    (2, 4, 8, 5, 0, 0),
    (0, 7, 8, 3, 1, 1),
]


def inputs(batch, time, dim, kernel, left, right):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, dout = (
        torch.randn(shape, generator=generator)
        for shape in ((batch, time, dim), (dim, kernel), (dim,), (batch, time + left + right - kernel + 1, dim))
    )
    return x, weight, bias, dout


def results(function, x, weight, bias, dout, left, right):
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    out = function(*leaves, left, right)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_the_definitions(shape, threads):
    *tensors, dout = inputs(*shape)
    threads(1)
    mine = results(depthwise_convolution, *tensors, dout, *shape[-2:])
    if shape[0] and dout.shape[1]:
        exact = results(reference, *(t.double() for t in (*tensors, dout)), *shape[-2:])
        for name, a, b in zip(("out", "dx", "dweight", "dbias"), mine, exact, strict=True):
            torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    else:
        assert mine[0].shape == dout.shape
        assert not any(gradient.any() for gradient in mine[1:])
    threads(2)
    for a, b in zip(results(depthwise_convolution, *tensors, dout, *shape[-2:]), mine, strict=True):
        assert torch.equal(a, b)


def test_any_layout_and_dtype_and_no_bias():
    x, weight, _, dout = inputs(2, 12, 16, 5, 2, 2)
    turned, gradient = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, dout))
    weight = weight.mT.contiguous().mT.requires_grad_()
    for function in (depthwise_convolution, reference):
        weight.grad = None
        function(turned, weight, None, 2, 2).backward(gradient)
        torch.testing.assert_close(weight.grad, torch.einsum("btd,btdk->dk", dout, windows(x, 5, 2)))
    half = depthwise_convolution(x.bfloat16(), weight.bfloat16(), None, 2, 2)
    assert half.dtype == torch.bfloat16


def windows(x, kernel, left):
    return torch.nn.functional.pad(x, (0, 0, left, kernel - 1 - left)).unfold(1, kernel, 1)


def test_an_utterance_in_pieces_is_the_whole():
    x, weight, bias, _ = inputs(2, 50, 24, 7, 6, 0)
    whole = depthwise_convolution(x, weight, bias, 6, 0)
    padded = torch.nn.functional.pad(x, (0, 0, 6, 0))
    pieces = [
        depthwise_convolution(padded[:, t : t + 6 + n], weight, bias, 0, 0) for t, n in ((0, 1), (1, 29), (30, 20))
    ]
    assert torch.equal(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize(("left", "right", "words"), [(3, 0, "below the kernel's"), (0, 0, "fewer frames")])
def test_what_it_refuses(left, right, words):
    with pytest.raises(RuntimeError, match=words):
        depthwise_convolution(torch.ones(1, 1, 4), torch.ones(4, 3), None, left, right)


def test_torchs_contract_and_the_count_of_operations():
    x, weight, bias, _ = inputs(2, 12, 16, 5, 2, 2)
    arguments = (x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), 2, 2)
    library.opcheck(torch.ops.asr.depthwise_convolution, arguments)
    found = count_flops(lambda: depthwise_convolution(*arguments).sum().backward())
    assert found == 3 * 2 * 2 * 12 * 16 * 5
