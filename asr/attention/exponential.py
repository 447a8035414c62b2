"""Sums over exponential features, from the logarithms of the features: exact, and nothing over- or underflows.

    y_t = Σ_j Σ_f exp(a_tf + b_jf) v_j / Σ_j Σ_f exp(a_tf + b_jf)      φ(q)_t = exp a_t, φ(k)_j = exp b_j

A factor per query cancels in y; one per feature may be moved from keys to queries. So feature f of the keys is counted
in units of its greatest value so far, e^m, as in the online softmax (Milakov, Gimelshein 2018). A maximum over all keys
would do for the whole utterance; in a causal layer it would let later frames decide which earlier ones underflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asr.attention.masks import frame_mask
from asr.kernels.features import wide

MAX_RISE = 60.0  # a feature of e^60 times a query's factor of e^-60 and the terms that count leave float32 room


def stabilise(q: Tensor, k: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of features → features in [0, 1], for `linear_attention`; (batch, time, heads, features) each.

    Of each feature the greatest real key is 1, and of each query the greatest feature: the normaliser is at least 1.
    """
    if not k.shape[1]:
        return q, k
    with torch.autocast(q.device.type, enabled=False):
        q, k = wide(q, k)
        k = k.masked_fill(~frame_mask(lengths, k.shape[1])[..., None, None], -torch.inf)
        peak = k.detach().amax(1, keepdim=True).nan_to_num(neginf=0.0)  # an empty row has none
        q = q + peak
        return torch.exp(q - q.detach().amax(-1, keepdim=True)), torch.exp(k - peak)


def causal_exponential_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    ksum: Tensor,
    peak: Tensor,
    normalise: bool = True,
    chunk: int = 64,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each frame attends to itself and the frames before it; cost O(time · features · (width + chunk)).

    Args:
        q, k: logarithms of features, (batch, time, heads, features).
        v: (batch, time, heads, width).
        kv, ksum, peak: the state: sums (batch, heads, features, width) and (batch, heads, features) in units of e^peak,
            and the greatest logarithm of each feature so far, (batch, heads, features), −inf before the first frame.
        normalise: divide by the sum of the weights; else each frame's result keeps an arbitrary positive factor.
        chunk: frames at once. Halved until no feature rises by more than e^60 within one, which 1 always satisfies.

    Returns:
        (batch, time, heads, width) in at least float32, and the state after the last frame.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (t.transpose(1, 2) for t in wide(q, k, v))
        peaks = torch.cat([peak[:, :, None].to(k.dtype), k.detach()], dim=2).cummax(2).values
        time = q.shape[2]
        chunk = max(1, min(chunk, time))
        while chunk > 1 and time and _rise(peaks[:, :, 1:], chunk) > MAX_RISE:
            chunk //= 2
        parts = [v[:, :, :0]]
        # `split`, as the gradient of every slice would be as long as the whole.
        pieces = zip(*(t.split(chunk, dim=2) for t in (q, k, v)), strict=True) if time else ()
        for start, (cq, ck, cv) in zip(range(0, time, chunk), pieces, strict=True):
            stop = start + cq.shape[2]
            before, unit, after = (peaks[:, :, t, :, None] for t in (start, start + 1, stop))
            kv, ksum = (before - unit).exp() * kv, (before - unit).exp() * ksum[..., None]
            top = (cq.detach() + peaks[:, :, start + 1 : stop + 1]).amax(-1, keepdim=True)
            fq, fk = torch.exp(cq + unit.mT - top), torch.exp(ck - unit.mT)
            weights = (fq @ fk.mT).tril()
            y = weights @ cv + fq @ kv
            if normalise:
                y = y / (weights.sum(-1, keepdim=True) + fq @ ksum)
            parts.append(y)
            fk = torch.exp(ck - after.mT)
            fade = (unit - after).exp()
            kv, ksum = fade * kv + fk.mT @ cv, (fade * ksum)[..., 0] + fk.sum(2)
        return torch.cat(parts, dim=2).transpose(1, 2), kv, ksum, peaks[:, :, time].clone()


def _rise(peaks: Tensor, chunk: int) -> float:
    """How far a feature's peak rises above that of its chunk's first frame, at most."""
    first = peaks[:, :, ::chunk].repeat_interleave(chunk, dim=2)[:, :, : peaks.shape[2]]
    return float((peaks - first).max()) if peaks.numel() else 0.0
