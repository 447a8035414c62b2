"""LSH attention (Reformer): the op, its gradient, and the pure-PyTorch form that defines it.

Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2. Per round: hash by a random
rotation, h(x) = argmax([xR; -xR]); stable sort by (bucket, time); cut the sorted frames into chunks of `bucket_size`;
attend within the own chunk and the one before. Queries are also the keys, the keys scaled to unit length; a frame
looks at itself only if it sees nothing else. Rounds are combined by their log-sum-exp (its equation 7), where a pair
that meets in several rounds counts once (its N_ij): the result is exact softmax attention over the union of what the
rounds let meet.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, compiled
from asr.kernels.differentiable import differentiable
from asr.kernels.features import check, common, wide

MAX_COLUMNS = 1024  # of a rotation: at most 2048 buckets
SELF_SCORE = -5e4  # far below any real score, yet finite: it wins when a frame sees nothing but itself


def lsh_attention(
    qk: Tensor,
    v: Tensor,
    lengths: Tensor,
    rotation: Tensor,
    bucket_size: int,
    causal: bool = False,
    k: Tensor | None = None,
) -> Tensor:
    """Each frame attends to the frames whose vectors hash near its own; cost O(rounds · time · bucket_size · dim).

    Args:
        qk: (batch, time, heads, dim), any strides: queries, and keys before they are scaled to unit length.
        v: (batch, time, heads, width).
        lengths: (batch,) integers; frames at or past a row's length take no part and get 0.
        rotation: (rounds, dim, columns), columns ≥ half the number of buckets of the longest row.
        bucket_size: frames per bucket on average, and per chunk.
        causal: see no frame after the current one.
        k: like qk, keys that are not the queries. Both are hashed by the same rotations and sorted each for itself; a
            query meets the keys of its own place in that order. Keys keep their length, and a frame may see itself.
            Not in Kitaev et al.; Daras et al., "SMYRF", 2020, pair the two orders likewise. PyTorch only, not causal.

    Returns:
        (batch, time, heads, width), dtype of v.

    Raises:
        ValueError: shapes do not match.

    Example:
        >>> qk, v = torch.randn(2, 2, 50, 4, 8)
        >>> lsh_attention(qk, v, torch.tensor([50, 31]), torch.randn(4, 8, 2), bucket_size=16).shape
        torch.Size([2, 50, 4, 8])
    """
    check(qk, qk, v, lengths, None)
    if rotation.dim() != 3 or rotation.shape[1] != qk.shape[3] or not rotation.numel():
        raise ValueError(f"rotation must be (rounds, {qk.shape[3]}, columns), got {tuple(rotation.shape)}")
    if bucket_size < 1:
        raise ValueError(f"bucket_size must be at least 1, got {bucket_size}")
    if k is not None and (causal or k.shape != qk.shape):
        raise ValueError(f"k must be {tuple(qk.shape)} as qk, and not causal, got {tuple(k.shape)}, causal={causal}")
    if k is not None or not compiled(qk, v):
        return reference(qk, v, lengths, rotation, bucket_size, causal, k)
    qk, v = common(qk, v)
    rotation = rotation.float().contiguous()
    return _lsh_attention(qk, v, lengths.long().contiguous(), rotation, bucket_size, causal)[0]


def bucket_counts(lengths: Tensor, bucket_size: int) -> Tensor:
    """(batch,) frames → (batch,) buckets: 1 if all fit into one, else the even number at or above N / bucket_size."""
    pairs = (-(-lengths // (2 * bucket_size))).clamp(max=MAX_COLUMNS)
    return torch.where(lengths <= bucket_size, 1, 2 * pairs)


def hash_buckets(x: Tensor, rotation: Tensor, counts: Tensor) -> Tensor:
    """x (batch, heads, time, D), rotation (rounds, D, H), counts (batch,) → buckets (batch, heads, rounds, time).

    A row with c buckets uses the first c/2 columns of the rotation, so that its hash is its own alone.
    """
    turned = x[:, :, None] @ rotation  # (batch, heads, rounds, time, H)
    beyond = torch.arange(rotation.shape[-1], device=x.device) >= (counts[:, None] + 1) // 2
    beyond = beyond[:, None, None, None, :]
    high, at_high = turned.masked_fill(beyond, -math.inf).max(-1)
    low, at_low = (-turned).masked_fill(beyond, -math.inf).max(-1)
    bucket = torch.where(high >= low, at_high, at_low + (counts[:, None, None, None] // 2))
    return torch.where(counts[:, None, None, None] == 1, 0, bucket)


def bucket_order(x: Tensor, rotation: Tensor, lengths: Tensor, bucket_size: int) -> tuple[Tensor, Tensor]:
    """x (batch, heads, time, D) → times in order of buckets, and where each went; both (batch, heads, rounds, time).

    Frame t's chunk is place[t] // bucket_size. Two frames meet where the query's chunk is the key's or the next.
    """
    real = (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[:, None, None, :]
    buckets = hash_buckets(x, rotation, bucket_counts(lengths, bucket_size))
    # Stable, so ties keep their time order; padding sorts behind every bucket and never takes part.
    order = buckets.masked_fill(~real, rotation.shape[-1] * 2 + 1).sort(dim=-1, stable=True).indices
    return order, order.argsort(dim=-1)


def unit_length(qk: Tensor) -> Tensor:
    """Shared query-key vectors (…, D) as keys."""
    return qk / (qk.norm(dim=-1, keepdim=True) + 1e-6)


def reference(
    qk: Tensor,
    v: Tensor,
    lengths: Tensor,
    rotation: Tensor,
    bucket_size: int,
    causal: bool = False,
    k: Tensor | None = None,
) -> Tensor:
    """The definition, in the dtype of its inputs but at least float32."""
    dtype, real = v.dtype, (torch.arange(qk.shape[1], device=qk.device) < lengths[:, None])[..., None, None]
    if not qk.numel():
        return v.clone()
    with torch.autocast(qk.device.type, enabled=False):
        qk, v, *keys = (
            t.masked_fill(~real, 0.0).transpose(1, 2) for t in wide(*((qk, v) if k is None else (qk, v, k)))
        )
        y = _attend(qk, v, lengths, rotation.to(qk.dtype), bucket_size, causal, *keys)
        return y.transpose(1, 2).masked_fill(~real, 0.0).to(dtype)


def _attend(
    qk: Tensor,
    v: Tensor,
    lengths: Tensor,
    rotation: Tensor,
    bucket_size: int,
    causal: bool,
    own_keys: Tensor | None = None,
) -> Tensor:
    """qk and own_keys (batch, heads, time, D), v (…, M) → (batch, heads, time, M); padding gets finite nonsense."""
    time, dim = qk.shape[2:]
    rounds = rotation.shape[0]
    bucket_size = min(bucket_size, time)  # one bucket holds all of them: the rest of it would be padding
    padded = -(-time // bucket_size) * bucket_size
    qk, v = F.pad(qk, (0, 0, 0, padded - time)), F.pad(v, (0, 0, 0, padded - time))
    key = unit_length(qk) if own_keys is None else F.pad(own_keys, (0, 0, 0, padded - time))

    with torch.no_grad():
        order, place = bucket_order(qk, rotation, lengths, bucket_size)
        key_order, key_place = order, place
        if own_keys is not None:
            key_order, key_place = bucket_order(key, rotation, lengths, bucket_size)

        def chunked(t: Tensor) -> Tensor:  # (batch, heads, rounds, padded, …) → (…, chunks, bucket_size, …)
            return t.unflatten(3, (-1, bucket_size))

        def with_previous(t: Tensor) -> Tensor:  # each chunk preceded by the one before; the first by itself, masked
            return torch.cat([torch.cat([t[:, :, :, :1], t[:, :, :, :-1]], 3), t], 4)

        at_q = chunked(order)
        at_k = with_previous(chunked(key_order))
        seen = at_k < lengths[:, None, None, None, None]
        seen[:, :, :, 0, :bucket_size] = False  # nothing stands before the first chunk
        allowed = seen[:, :, :, :, None, :].expand(*at_q.shape, 2 * bucket_size)
        if causal:
            allowed = allowed & (at_k[..., None, :] <= at_q[..., None])
        itself = (at_q[..., None] == at_k[..., None, :]) if own_keys is None else None
        chunk_of, key_chunk_of = place // bucket_size, key_place // bucket_size
        meetings = _meetings(chunk_of, key_chunk_of, at_q, at_k, qk.dtype) if rounds > 1 else 0.0

    def gathered(t: Tensor, at: Tensor) -> Tensor:  # (batch, heads, padded, D) at (batch, heads, rounds, …)
        flat = at.flatten(2)[..., None].expand(-1, -1, -1, t.shape[-1])
        return t.gather(2, flat).unflatten(2, at.shape[2:])

    q = gathered(qk, at_q) * dim**-0.5
    k = with_previous(gathered(key, chunked(key_order)))
    scores = q @ k.mT - meetings
    if itself is not None:
        scores = scores.masked_fill(itself, SELF_SCORE)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    total = scores.logsumexp(-1, keepdim=True)
    out = (scores - total).exp() @ with_previous(gathered(v, chunked(key_order)))

    back = place[..., None]  # unsort, then weigh the rounds by how much attention mass each one found
    out = out.flatten(3, 4).gather(3, back.expand(-1, -1, -1, -1, v.shape[-1]))
    weight = total.flatten(3, 4).gather(3, back).softmax(2)
    return (out * weight).sum(2)[:, :, :time]


def _meetings(chunk_of: Tensor, key_chunk_of: Tensor, at_q: Tensor, at_k: Tensor, dtype: torch.dtype) -> Tensor:
    """ln of the number of rounds in which each (query, key) pair meets, (batch, heads, rounds, chunks, C, 2C)."""
    rounds = chunk_of.shape[2]
    count = torch.zeros((), dtype=torch.int8, device=chunk_of.device)
    for other in range(rounds):
        of_q = chunk_of[:, :, other].gather(2, at_q.flatten(2)).unflatten(2, at_q.shape[2:])
        of_k = key_chunk_of[:, :, other].gather(2, at_k.flatten(2)).unflatten(2, at_k.shape[2:])
        behind = of_q[..., None] - of_k[..., None, :]
        count = count + ((behind == 0) | (behind == 1)).to(torch.int8)
    return torch.arange(rounds + 1, device=count.device, dtype=dtype).clamp(min=1).log()[count.long()]


LIBRARY.define(
    "lsh_attention(Tensor qk, Tensor v, Tensor lengths, Tensor rotation, int bucket_size, bool causal)"
    " -> (Tensor out, Tensor lse, Tensor order)"
)
LIBRARY.define(
    "lsh_attention_backward(Tensor dout, Tensor qk, Tensor v, Tensor lengths, Tensor out, Tensor lse, Tensor order,"
    " int bucket_size, bool causal) -> (Tensor dqk, Tensor dv)"
)


@library.register_fake("asr::lsh_attention", lib=LIBRARY)
def _fake(
    qk: Tensor, v: Tensor, lengths: Tensor, rotation: Tensor, bucket_size: int, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, heads, _ = qk.shape
    order = v.new_empty(batch, heads, rotation.shape[0], time, dtype=torch.int32)
    return v.new_empty(v.shape), v.new_empty(batch, heads, time, dtype=torch.float32), order


@library.register_fake("asr::lsh_attention_backward", lib=LIBRARY)
def _fake_backward(dout: Tensor, qk: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return qk.new_empty(qk.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    qk, v, lengths, _, ctx.bucket_size, ctx.causal = inputs
    ctx.save_for_backward(qk, v, lengths, *output)


def _backward(ctx: Any, dout: Tensor, dlse: Tensor, dorder: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.asr.lsh_attention_backward(dout, *ctx.saved_tensors, ctx.bucket_size, ctx.causal)
    return (*gradients, None, None, None, None)


_lsh_attention = differentiable("lsh_attention", _save, _backward)
