"""Linear attention whose memory decays channel by channel at rates the frames choose: in PyTorch, chunk by chunk.

    S_t = diag(α_t) S_{t−1} + k_t v_tᵀ      o_t = S_tᵀ q_t      so      o_t = Σ_{j ≤ t} Σ_d q_td k_jd e^{L_jt,d} v_j

with L_jt = Σ_{j < s ≤ t} ln α_s ≤ 0. Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient
Training", 2023, equations 3 and 4.

e^{L_jt} does not split into a factor of t and one of j without one of them growing beyond all bounds under strong
decay. Between two neighbouring blocks it does: L_jt = (from j to the end of its block) + (from there to t), neither of
them positive. So a chunk is a binary tree: blocks of 1, 2, 4, … frames, where at each level the frames of every odd
block read those of the even block before it by one matrix product. A level's sums come from those of the level below
by additions of numbers ≤ 0, so that nothing cancels either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from asr.kernels.backend import compiled
from asr.kernels.features import check, hide_padding, wide


class GatedSums(NamedTuple):
    """`out` (batch, time, heads, width); `kv` (batch, heads, dim, width), S after each row's last real frame, at least
    float32."""

    out: Tensor
    kv: Tensor


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    lengths: Tensor,
    kv: Tensor | None = None,
    chunk: int = 32,
) -> GatedSums:
    """Each frame reads the decayed sum of itself and the frames before it; cost O(time · dim · width).

    Sums are at least float32, also under autocast. For the backward pass it keeps, for each row and head, about
    time · (8 · dim + width + chunk + 2 · dim · width / chunk) numbers.

    Args:
        q, k: (batch, time, heads, dim), any strides.
        v: (batch, time, heads, width).
        log_decay: ln α, as q, ≤ 0, −∞ too; not read at padding, where the state stays as it is.
        lengths: (batch,) integers; frames at or past a row's length give nothing and get 0.
        kv: the state to start from. Has a gradient, as has the state returned.
        chunk: frames at once, rounded up to a power of two; the result does not depend on it.

    Raises:
        ValueError: shapes do not match.
        KernelError: `ASR_KERNELS` demands a compiled implementation; there is none.

    Example:
        >>> q, k, v = torch.randn(3, 2, 10, 4, 8)
        >>> gated_linear_attention(q, k, v, -torch.rand(2, 10, 4, 8), torch.tensor([10, 7])).kv.shape
        torch.Size([2, 4, 8, 8])
    """
    check(q, k, v, lengths, None)
    batch, time, heads, dim = q.shape
    if log_decay.shape != q.shape:
        raise ValueError(f"log_decay must be {tuple(q.shape)}, got {tuple(log_decay.shape)}")
    if kv is not None and kv.shape != (batch, heads, dim, v.shape[3]):
        raise ValueError(f"kv must be {(batch, heads, dim, v.shape[3])}, got {tuple(kv.shape)}")
    compiled(q, v, cuda=False, cpp=False)  # raises where a compiled implementation is demanded
    size = 1 << (min(chunk, max(time, 1)) - 1).bit_length()
    dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, log_decay = wide(q, k, v, log_decay)
        state = q.new_zeros(batch, heads, dim, v.shape[3]) if kv is None else kv.to(q.dtype)
        if not time:
            return GatedSums(v.to(dtype), state)
        q, k, v, g = (_blocks(t, size) for t in hide_padding(lengths, q, k, v, log_decay))
        scores, since, until = _Scores.apply(q, k, g)
        fade = since[..., -1, :].exp()[..., None]  # over a whole chunk, (batch, heads, chunks, dim, 1)
        gain = (k * until.exp()).mT @ v
        before = []  # the state before each chunk
        for kept, added in zip(fade.unbind(2), gain.unbind(2), strict=True):
            before.append(state)
            state = kept * state + added
        out = scores @ v + (q * since.exp()) @ torch.stack(before, dim=2)
        return GatedSums(out.flatten(2, 3)[:, :, :time].transpose(1, 2).to(dtype), state)


def _blocks(x: Tensor, size: int) -> Tensor:
    """(batch, time, heads, D) → (batch, heads, blocks, size, D), filled up with 0: no decay, no key."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size))
    return x.transpose(1, 2).unflatten(2, (-1, size)).contiguous()


class _Scores(autograd.Function):
    """q, k, g (…, chunk, dim), the chunk a power of two and g = ln α → what each chunk has to know of itself:

    scores (…, chunk, chunk): Σ_d q_td k_jd e^{L_jt,d} for j ≤ t, else 0;
    since, until (…, chunk, dim): Σ g up to and with each frame, and from the frame after it on.

    Its backward pass keeps q, k and g and climbs the tree anew.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(q, k, g)
        scores = q.new_zeros(*q.shape[:-1], q.shape[-2])
        scores.diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))
        since, until = g.clone(), torch.zeros_like(g)
        for since1, until0 in _climb(since, until):
            half = since1.shape[-2]
            _block(scores, half).copy_((_pairs(q, half)[1] * since1) @ (_pairs(k, half)[0] * until0).mT)
        return scores, since, until

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dscores: Tensor, dsince: Tensor, duntil: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, g = ctx.saved_tensors
        diagonal = dscores.diagonal(dim1=-2, dim2=-1)[..., None]
        dq, dk = diagonal * k, diagonal * q
        dsince, duntil = (t.clone(memory_format=torch.contiguous_format) for t in (dsince, duntil))
        for since1, until0 in reversed(list(_climb(g.clone(), torch.zeros_like(g)))):
            half = since1.shape[-2]
            (dsince0, dsince1), duntil0 = _pairs(dsince, half), _pairs(duntil, half)[0]
            dsince0[..., -1, :] += dsince1.sum(-2)
            dsince1[..., -1, :] += duntil0.sum(-2)
            q1, k0, d = _pairs(q, half)[1] * since1, _pairs(k, half)[0] * until0, _block(dscores, half)
            dq1, dk0 = d @ k0, d.mT @ q1
            dsince1 += dq1 * q1
            duntil0 += dk0 * k0
            _pairs(dq, half)[1].addcmul_(dq1, since1)
            _pairs(dk, half)[0].addcmul_(dk0, until0)
        return dq, dk, dsince


def _climb(since: Tensor, until: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Up the tree, level by level: the decays of the odd blocks' queries and of the even blocks' keys.

    `since` starts as g and `until` as 0, the sums of blocks of one frame; both end, in place, as those of the chunk.
    """
    half = 1
    while half < since.shape[-2]:
        (since0, since1), until0 = _pairs(since, half), _pairs(until, half)[0]
        yield since1.exp(), until0.exp()
        until0 += since1[..., -1:, :]
        since1 += since0[..., -1:, :]
        half *= 2


def _pairs(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """(…, chunk, D) → the even and the odd blocks of `half` frames, each (…, chunk / 2 half, half, D). Views."""
    even, odd = x.unflatten(-2, (-1, 2, half)).unbind(-3)
    return even, odd


def _block(scores: Tensor, half: int) -> Tensor:
    """(…, chunk, chunk) → (…, chunk / 2 half, half, half): odd blocks reading the even ones before them. A view."""
    return (
        scores.unflatten(-2, (-1, 2, half))
        .unflatten(-1, (-1, 2, half))[..., 1, :, :, 0, :]
        .diagonal(dim1=-4, dim2=-2)
        .movedim(-1, -3)
    )
