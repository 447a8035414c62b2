"""LSH attention (Reformer): each frame looks only at frames whose shared query-key vector hashes near its own.

Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2. Per round: hash by a random
rotation, h(x) = argmax([xR; -xR]); stable sort by (bucket, time); cut the sorted frames into chunks of `bucket_size`;
attend within the own chunk and the one before. Queries are also the keys, the keys scaled to unit length; a frame
looks at itself only if it sees nothing else. Rounds are combined by their log-sum-exp (its equation 7), where a pair
that meets in several rounds counts once (its N_ij): the result is exact softmax attention over the union of what the
rounds let meet.

Cost O(rounds · N · bucket_size · D) per head. The number of buckets follows from each utterance's own length, and
chunks are cut from its own frames, so that padding changes nothing.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from asr.attention.masks import frame_mask, zero_padding
from asr.attention.rotary import rotate
from asr.config import Config

MAX_COLUMNS = 1024  # of a rotation: at most 2048 buckets
SELF_SCORE = -5e4  # far below any real score, yet finite: it wins when a frame sees nothing but itself


class LshConfig(Config):
    """`attention: {kind: lsh}` in a recipe."""

    kind: Literal["lsh"] = "lsh"
    causal: bool = False  # see no frame after the current one (not streaming: hashing needs the whole utterance)
    rounds: int = Field(4, ge=1, le=64)  # independent hashings; more rounds miss fewer of the frames that matter
    bucket_size: int = Field(32, ge=1)  # frames per bucket on average, and per chunk
    seed: int = Field(0, ge=0)  # of the rotations

    def build(self, dim: int, heads: int, rotary: bool = False) -> LshAttention:
        return LshAttention(dim, heads, self.causal, self.rounds, self.bucket_size, self.seed, rotary)


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


def lsh_attention(
    qk: Tensor, v: Tensor, lengths: Tensor, rotation: Tensor, bucket_size: int, causal: bool = False
) -> Tensor:
    """qk (batch, heads, time, D), v (…, M), lengths (batch,), rotation (rounds, D, H) → (batch, heads, time, M)."""
    time, dim = qk.shape[2:]
    rounds = rotation.shape[0]
    padded = -(-time // bucket_size) * bucket_size
    qk, v = F.pad(qk, (0, 0, 0, padded - time)), F.pad(v, (0, 0, 0, padded - time))

    with torch.no_grad():
        buckets = hash_buckets(qk, rotation, bucket_counts(lengths, bucket_size))
        real = frame_mask(lengths, padded)[:, None, None, :]
        # Stable, so ties keep their time order; padding sorts behind every bucket and never takes part.
        order = buckets.masked_fill(~real, rotation.shape[-1] * 2 + 1).sort(dim=-1, stable=True).indices
        place = order.argsort(dim=-1)  # where each frame went
        chunk_of = place // bucket_size  # (batch, heads, rounds, time)

        def chunked(t: Tensor) -> Tensor:  # (batch, heads, rounds, padded, …) → (…, chunks, bucket_size, …)
            return t.unflatten(3, (-1, bucket_size))

        def with_previous(t: Tensor) -> Tensor:  # each chunk preceded by the one before; the first by itself, masked
            return torch.cat([torch.cat([t[:, :, :, :1], t[:, :, :, :-1]], 3), t], 4)

        at_q = chunked(order)
        at_k = with_previous(at_q)
        seen = at_k < lengths[:, None, None, None, None]
        seen[:, :, :, 0, :bucket_size] = False  # nothing stands before the first chunk
        allowed = seen[:, :, :, :, None, :].expand(*at_q.shape, 2 * bucket_size)
        if causal:
            allowed = allowed & (at_k[..., None, :] <= at_q[..., None])
        itself = at_q[..., None] == at_k[..., None, :]
        meetings = _meetings(chunk_of, at_q, at_k, qk.dtype) if rounds > 1 else 0.0

    def gathered(t: Tensor, at: Tensor) -> Tensor:  # (batch, heads, padded, D) at (batch, heads, rounds, …)
        flat = at.flatten(2)[..., None].expand(-1, -1, -1, t.shape[-1])
        return t.gather(2, flat).unflatten(2, at.shape[2:])

    key = qk / (qk.norm(dim=-1, keepdim=True) + 1e-6)
    q = gathered(qk, at_q) * dim**-0.5
    k = with_previous(gathered(key, at_q))
    scores = q @ k.mT - meetings
    scores = scores.masked_fill(itself, SELF_SCORE).masked_fill(~allowed, torch.finfo(scores.dtype).min)
    total = scores.logsumexp(-1, keepdim=True)
    out = (scores - total).exp() @ with_previous(gathered(v, at_q))

    back = place[..., None]  # unsort, then weigh the rounds by how much attention mass each one found
    out = out.flatten(3, 4).gather(3, back.expand(-1, -1, -1, -1, v.shape[-1]))
    weight = total.flatten(3, 4).gather(3, back).softmax(2)
    return (out * weight).sum(2)[:, :, :time]


def _meetings(chunk_of: Tensor, at_q: Tensor, at_k: Tensor, dtype: torch.dtype) -> Tensor:
    """ln of the number of rounds in which each (query, key) pair meets, (batch, heads, rounds, chunks, C, 2C)."""
    rounds = chunk_of.shape[2]
    count = torch.zeros((), dtype=torch.int8, device=chunk_of.device)
    for other in range(rounds):
        chunk = chunk_of[:, :, other]  # (batch, heads, padded)
        of_q = chunk.gather(2, at_q.flatten(2)).unflatten(2, at_q.shape[2:])
        of_k = chunk.gather(2, at_k.flatten(2)).unflatten(2, at_k.shape[2:])
        behind = of_q[..., None] - of_k[..., None, :]
        count = count + ((behind == 0) | (behind == 1)).to(torch.int8)
    return torch.arange(rounds + 1, device=count.device, dtype=dtype).clamp(min=1).log()[count.long()]


class LshAttention(nn.Module):
    """Multi-head LSH attention over padded batches of any length.

    In training the rotations are drawn anew at every call, from torch's global generator; in evaluation they are fixed
    by `seed`, so that an utterance always gets the same answer.

    Args:
        dim: model width, a multiple of `heads`.
        rotary: turn the shared query-key vectors by their time before they are hashed and compared.

    Example:
        >>> layer = LshAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    rotation: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool = False,
        rounds: int = 4,
        bucket_size: int = 32,
        seed: int = 0,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.bucket_size, self.rotary = heads, causal, bucket_size, rotary
        self.project = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)
        generator = torch.Generator().manual_seed(seed)
        rotation = torch.randn(rounds, dim // heads, MAX_COLUMNS, generator=generator)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length take no part in any bucket."""
        if x.shape[1] == 0:
            return self.output(x)
        x = zero_padding(x, lengths)
        qk, v = self.project(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        qk, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (qk, v))
        if self.rotary:
            qk = rotate(qk)
        columns = min(MAX_COLUMNS, -(-x.shape[1] // (2 * self.bucket_size)))
        rotation = self.rotation[..., :columns].to(qk.dtype)
        if self.training:
            rotation = torch.randn_like(rotation)
        y = lsh_attention(qk, v, lengths, rotation, self.bucket_size, self.causal)
        return self.output(y.transpose(1, 2).flatten(2).to(x.dtype))
