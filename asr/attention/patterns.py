"""Which frames a softmax query looks at, and how each pattern is computed without the pairs it leaves out.

A pattern takes q, k, v (batch, heads, time, D), whose padding holds finite numbers, and lengths (batch,), and returns
(batch, heads, time, D) = softmax(q kᵀ / √D over the keys it lets a query see) v. `sees(query, key)` says it for times
that broadcast. A padding frame's own result is arbitrary, yet finite: every frame sees itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.masks import frame_mask
from asr.kernels.lsh import SELF_SCORE, unit_length

MIN_BLOCK = 16  # frames computed at once at least: smaller matrices cost more to start than to multiply


@dataclass(frozen=True)
class Full:
    """Every real frame, or every one up to the query. Cost O(N²) time; O(N) memory, as torch's fused kernel does it."""

    causal: bool = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query if self.causal else torch.ones_like(key <= query)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if self.causal:  # padding comes after every real frame, which therefore never sees it
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, frame_mask(lengths, k.shape[2])[:, None, None])


@dataclass(frozen=True)
class Materialised(Full):
    """`Full` by way of the N×N matrix. With `topk`, of the keys a query may see only the k with the highest scores.

    Zhao et al., "Explicit Sparse Transformer", 2019, equations 6-7. As there, all keys that tie with the k-th stay, so
    that the choice depends on nothing but the scores. O(N²) time and memory.
    """

    topk: int = 0  # 0: all

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        t = torch.arange(k.shape[2], device=k.device)
        mask = frame_mask(lengths, len(t))[:, None, None] & self.sees(t[:, None], t)
        scores = _scores(q, k).masked_fill(~mask, -torch.inf)
        if 0 < self.topk < len(t):
            lowest = scores.detach().topk(self.topk, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < lowest, -torch.inf)
        return _softmax(scores).to(v.dtype) @ v


@dataclass(frozen=True)
class SharedQk(Full):
    """`Full` for queries that are the keys too. O(N²) time, and memory for the mask.

    Kitaev et al., "Reformer", 2020, section 2: keys are scaled to unit length, and a frame looks at itself only if it
    sees nothing else. LSH attention comes to this when its rounds let every pair meet.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        t = torch.arange(k.shape[2], device=k.device)
        hidden = ~(frame_mask(lengths, len(t))[:, None, None] & self.sees(t[:, None], t))
        mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, -torch.inf)
        mask.diagonal(dim1=2, dim2=3).fill_(SELF_SCORE)
        return F.scaled_dot_product_attention(q, unit_length(k).to(q.dtype), v, mask)


@dataclass(frozen=True)
class Band:
    """The frames around: of an N×N matrix, a band along its diagonal. Cost O(N · (left + right + global_tokens)).

    Query i belongs to the unit of frames ⌊i / unit⌋, and sees that unit, `left` frames before it, `right` after it.
    unit 1 is a sliding window, which may have global tokens: the first frames, seen by all and seeing all (causal: all
    up to themselves). Beltagy et al., "Longformer", 2020, section 3.1. A larger unit is attention in chunks: Zhang et
    al., "Unified Streaming and Non-streaming Two-pass End-to-end Model" (WeNet's U2), 2020; with frames to the right of
    the chunk Shi et al., "Emformer", 2021.
    """

    left: int
    right: int = 0
    unit: int = 1
    global_tokens: int = 0
    causal: bool = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        first = query - query % self.unit
        seen = (key >= first - self.left) & (key < first + self.unit + self.right)
        seen = seen | (key < self.global_tokens)
        return seen & (key <= query) if self.causal else seen | (query < self.global_tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if (fitting := self.within(q.shape[2])) != self:
            return fitting.attend(q, k, v, lengths)
        g = self.global_tokens
        pad = (0, 0, self.left, 0)
        y = self.attend_after(q, F.pad(k, pad), F.pad(v, pad), k[:, :, :g], v[:, :, :g], lengths)
        if not g or self.causal:
            return y
        return torch.cat([Full().attend(q[:, :, :g], k, v, lengths), y[:, :, g:]], dim=2)

    def attend_after(
        self, q: Tensor, k: Tensor, v: Tensor, global_k: Tensor, global_v: Tensor, lengths: Tensor, start: int = 0
    ) -> Tensor:
        """The queries from time `start` on, a multiple of the unit, with the keys of `left` frames before them.

        q (batch, heads, time, D); k, v (…, left + time, D), the first for time start - left; what stands there for
        times before 0 is not looked at. global_k, global_v: (…, at most global_tokens, D). lengths count from time 0.
        """
        batch, _, time, _ = q.shape
        size = self._block(time)
        blocks = -(-time // size)
        more = blocks * size - time
        q = F.pad(q, (0, 0, 0, more)).unflatten(2, (blocks, size))
        pad, span = (0, 0, 0, more + self.right), self.left + size + self.right
        k, v = (
            torch.cat([head[:, :, None].expand(-1, -1, blocks, -1, -1), _spans(F.pad(t, pad), span, size)], dim=3)
            for head, t in ((global_k, k), (global_v, v))
        )
        at = torch.arange(blocks, device=q.device)[:, None] * size + start  # where each block begins
        query = (at + torch.arange(size, device=q.device))[..., None]
        near = at - self.left + torch.arange(span, device=q.device)
        head = torch.arange(global_k.shape[2], device=q.device).expand(blocks, -1)
        key = torch.cat([head, near], dim=1)[:, None]  # (blocks, 1, keys); the global ones stand there once:
        held = torch.cat([head >= 0, near >= self.global_tokens], dim=1)[:, None]  # nor is there a time before 0
        mask = (self.sees(query, key) & (key < lengths[:, None, None, None]) | (query == key)) & held
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, mask.flatten(0, 1)[:, None])
        return y.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :time]

    def within(self, time: int) -> Band:
        """The band that lets so many frames see the same, no wider than they are: what lies beyond costs nothing."""
        left, right, g = (min(frames, time) for frames in (self.left, self.right, self.global_tokens))
        return replace(self, left=left, right=right, unit=min(self.unit, max(1, time)), global_tokens=g)

    @property
    def streams(self) -> bool:
        """What a frame sees is there when its unit has come."""
        return (self.causal or self.unit > 1) and not self.right

    @property
    def lookahead_frames(self) -> int | None:
        """How many later frames a frame may see: the first of a unit sees the rest of it. None: all of them."""
        if self.causal or not self.global_tokens:
            return self.unit - 1 + self.right
        return None

    def keys_per_frame(self) -> int:
        """Keys that stand ready for one frame: the size of its row of the mask."""
        return self.global_tokens + self.left + self._block(None) + self.right

    def _block(self, time: int | None) -> int:
        """Frames computed at once: about as many as they see beside themselves, so that little is seen in vain."""
        size = max(self.left + self.right, MIN_BLOCK)
        return -(-(size if time is None else max(1, min(size, time))) // self.unit) * self.unit


@dataclass(frozen=True)
class Strided:
    """The frames nearer than `stride`, and every stride-th frame before and after. Cost O(N · (stride + N / stride)).

    Child et al., "Generating Long Sequences with Sparse Transformers", 2019, section 4.3, both of its heads' sets in
    one softmax; there causal, here in both directions unless `causal`.
    """

    stride: int
    causal: bool = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        lag = query - key
        seen = (lag.abs() < self.stride) | (lag % self.stride == 0)
        return seen & (lag >= 0) if self.causal else seen

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        time = q.shape[2]
        s = min(self.stride, time)  # from there on every frame sees every other
        rows = -(-time // s)
        # Frame i stands in row ⌊i / s⌋ and column i mod s: it sees its column, and the rows around it in part.
        q, k, v = (F.pad(t, (0, 0, 0, rows * s - time)) for t in (q, k, v))
        behind, ahead = s - 1, 0 if self.causal else s - 1
        near_k, near_v = (_spans(F.pad(t, (0, 0, behind, ahead)), behind + s + ahead, s) for t in (k, v))
        q, k, v = (t.unflatten(2, (rows, s)) for t in (q, k, v))
        column_k, column_v = (t.transpose(2, 3) for t in (k, v))  # (batch, heads, s, rows, D)

        t = torch.arange(rows * s, device=q.device).view(rows, s)
        near = t[:, :1] - behind + torch.arange(behind + s + ahead, device=q.device)
        near, column = near[:, None], t.T[None]  # (rows, 1, keys), (1, s, rows)
        query, real = t[..., None], lengths[:, None, None, None]
        close = (query - near).abs() < s
        mask = torch.cat(
            [
                close & self.sees(query, near) & (near >= 0) & (near < real) | (query == near),
                self.sees(query, column) & (query != column) & (column < real),  # itself stands among the near ones
            ],
            dim=-1,
        )
        scores = torch.cat([_scores(q, near_k), _scores(q.transpose(2, 3), column_k).transpose(2, 3)], dim=-1)
        weights = _softmax(scores.masked_fill_(~mask[:, None], -torch.inf)).to(v.dtype)
        to_near, to_column = weights.split([near.shape[-1], rows], dim=-1)
        y = to_near @ near_v + (to_column.transpose(2, 3) @ column_v).transpose(2, 3)
        return y.flatten(2, 3)[:, :, :time]


Pattern = Full | Materialised | SharedQk | Band | Strided


def _spans(t: Tensor, size: int, hop: int) -> Tensor:
    """(batch, heads, time, D) → (batch, heads, spans, size, D): stretches of `size` frames, one every `hop` frames."""
    return t.unfold(2, size, hop).transpose(-1, -2)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _softmax(scores: Tensor) -> Tensor:
    # The lowest finite number, not -inf: a row without any real key then averages instead of turning into NaN.
    return scores.clamp(min=torch.finfo(scores.dtype).min).softmax(-1)
