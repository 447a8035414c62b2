"""Gated linear attention, chunk by chunk, against its recurrence in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from asr.kernels import gated_linear_attention
from asr.kernels.backend import KernelError, forced


def recurrence(q, k, v, g, lengths, kv):
    """S_t = diag(e^g_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t; nothing happens at padding."""
    out = []
    for t in range(q.shape[1]):
        real = (t < lengths)[:, None, None]
        after = g[:, t].exp()[..., None] * kv + k[:, t, :, :, None] * v[:, t, :, None]
        kv = torch.where(real[..., None], after, kv)
        out.append(torch.where(real, (q[:, t, :, :, None] * kv).sum(2), 0.0))
    return torch.stack(out, 1), kv


def case(time=37, dtype=torch.float64, sharpness=4.0):
    """Three rows, one of them empty, and gates all over (0, 1): q, k, v, g, lengths, kv."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=dtype)  # noqa: E731
    q, k, v = draw(3, time, 2, 5), draw(3, time, 2, 5), draw(3, time, 2, 7)
    g = F.logsigmoid(sharpness * draw(3, time, 2, 5))
    return q, k, v, g, torch.tensor([time, 0, time // 2]), draw(3, 2, 5, 7)


def with_gradients(function, q, k, v, g, lengths, kv, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, g, kv)]
    out, last = function(*leaves[:4], lengths, leaves[4], **options)
    loss = (out * out.detach().cos()).sum() + (last * last.detach().sin()).sum()
    return [out.detach(), last.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 37, 100])
def test_values_and_gradients(chunk):
    for mine, exact in zip(
        with_gradients(gated_linear_attention, *case(), chunk=chunk), with_gradients(recurrence, *case()), strict=True
    ):
        torch.testing.assert_close(mine, exact, atol=1e-9, rtol=1e-9)


def test_gradients_are_those_of_its_values():
    q, k, v, g, lengths, kv = case(11)
    leaves = [t.requires_grad_() for t in (q, k, v, g, kv)]
    run = lambda q, k, v, g, kv: gated_linear_attention(q, k, v, g, lengths, kv, chunk=4)  # noqa: E731
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("gate", [0.0, -1e-6, -50.0, -1e30, float("-inf")])
def test_gates_from_open_to_shut_give_neither_nan_nor_wrong_numbers(gate):
    q, k, v, g, lengths, kv = case()
    g = torch.full_like(g, gate)
    g[:, ::3] = -0.01  # and mixed with mild ones, which must keep their digits beside the strong
    single = with_gradients(gated_linear_attention, *(t.float() for t in (q, k, v, g)), lengths, kv.float(), chunk=16)
    for mine, exact in zip(single, with_gradients(recurrence, q, k, v, g, lengths, kv), strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=1e-4, rtol=1e-4)


def test_a_strong_gate_takes_no_digits_from_those_after_it():
    """Differences of running sums would: e^{−1e−3} out of numbers near −1e6 has no digit left in float32."""
    q, k, v, g, lengths, kv = case(32)
    g = torch.full_like(g, -1e-3)
    g[:, 1] = -1e6
    single = gated_linear_attention(*(t.float() for t in (q, k, v, g)), lengths, kv.float(), chunk=32)
    torch.testing.assert_close(single.out.double(), recurrence(q, k, v, g, lengths, kv)[0], atol=1e-5, rtol=1e-5)


def test_padding_is_not_read_and_an_empty_row_keeps_its_state():
    q, k, v, g, lengths, kv = case()
    clean = gated_linear_attention(q, k, v, g, lengths, kv)
    for t in (q, k, v, g):
        t[1] = t[2, 18:] = float("nan")
    dirty = gated_linear_attention(q, k, v, g, lengths, kv)
    assert torch.equal(clean.out, dirty.out)
    assert torch.equal(clean.kv, dirty.kv)
    assert torch.equal(dirty.kv[1], kv[1])
    assert dirty.out[1].abs().max() == 0
    alone = gated_linear_attention(*(t[2:, :18] for t in (q, k, v, g)), lengths[2:], kv[2:])
    torch.testing.assert_close(alone.kv, dirty.kv[2:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_float32_for_half_precision_and_under_autocast(dtype):
    q, k, v, g, lengths, kv = case(dtype=torch.float32)
    half = gated_linear_attention(q.to(dtype), k.to(dtype), v.to(dtype), g, lengths)
    assert (half.out.dtype, half.kv.dtype) == (dtype, torch.float32)
    exact = gated_linear_attention(q, k, v, g, lengths, kv)
    with torch.autocast("cpu", dtype):
        same = gated_linear_attention(q, k, v, g, lengths, kv)
    assert torch.equal(same.out, exact.out)
    assert torch.equal(same.kv, exact.kv)


def test_no_frames_and_no_rows():
    q, k, v, g, _, kv = case()
    none = gated_linear_attention(*(t[:, :0] for t in (q, k, v, g)), torch.zeros(3, dtype=torch.long), kv)
    assert none.out.shape == (3, 0, 2, 7)
    assert torch.equal(none.kv, kv)
    empty = gated_linear_attention(*(t[:0] for t in (q, k, v, g)), torch.zeros(0, dtype=torch.long))
    assert empty.out.shape == (0, 37, 2, 7)


def test_shapes_that_do_not_match_are_refused():
    q, k, v, g, lengths, kv = case()
    with pytest.raises(ValueError, match=r"log_decay must be \(3, 37, 2, 5\)"):
        gated_linear_attention(q, k, v, g[..., :1], lengths)
    with pytest.raises(ValueError, match=r"kv must be \(3, 2, 5, 7\)"):
        gated_linear_attention(q, k, v, g, lengths, kv.mT)


def test_a_compiled_implementation_cannot_be_demanded():
    q, k, v, g, lengths, _ = case(dtype=torch.float32)
    with forced("cpp"), pytest.raises(KernelError, match="no C\\+\\+ kernel"):
        gated_linear_attention(q, k, v, g, lengths)


def test_traces_in_one_piece_forwards_and_backwards():
    torch._dynamo.reset()
    traced = torch.compile(gated_linear_attention, backend="aot_eager", fullgraph=True)
    inputs = case(4)
    for mine, exact in zip(with_gradients(traced, *inputs, chunk=2), with_gradients(recurrence, *inputs), strict=True):
        torch.testing.assert_close(mine, exact, atol=1e-9, rtol=1e-9)
