"""Linear attention: similarity as a dot product of feature maps, so that cost grows with N instead of N².

    V'_i = φ(q_i)ᵀ S / φ(q_i)ᵀ Z      S = Σ_j φ(k_j) v_jᵀ      Z = Σ_j φ(k_j)      φ(x) = elu(x) + 1

The sums run over all frames (bidirectional) or over j ≤ i (causal, an RNN whose state is S and Z).
Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4-12. With rotary positions φ(q) and φ(k) are
turned in the numerator only, so that the denominator stays positive (Su et al., "RoFormer", 2021, equation 19).

Cost O(N·D²) per head. State when causal: heads · D · (D + 1) floats, whatever the length.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from asr.attention.masks import frame_mask, zero_padding
from asr.attention.rotary import rotate
from asr.config import Config


class LinearConfig(Config):
    """`attention: {kind: linear}` in a recipe."""

    kind: Literal["linear"] = "linear"
    causal: bool = False  # sums over the past only: an RNN
    chunk: int = Field(64, ge=1)  # causal: frames worked on at once; the result does not depend on it
    eps: float = Field(1e-6, gt=0)  # added to the normaliser; a frame that sees no key gives 0, not NaN

    def build(self, dim: int, heads: int, rotary: bool = False) -> LinearAttention:
        return LinearAttention(dim, heads, self.causal, self.chunk, self.eps, rotary)


class LinearState(NamedTuple):
    """What a causal layer remembers: `s` (batch, heads, D, D), `z` (batch, heads, D), float32, and frames seen."""

    s: Tensor
    z: Tensor
    time: int = 0


def elu_plus_one(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, written so that it neither underflows to 0 below -17 nor costs a slow elu."""
    return torch.exp(x.clamp(max=0)) + x.clamp(min=0)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, z: Tensor, norm_q: Tensor, eps: float) -> Tensor:
    """Bidirectional. q, k (batch, heads, time, C) after φ, v (…, M), z (batch, heads, C) = Σ_j φ(k_j) → (…, M).

    `norm_q` is φ(q) as the denominator uses it: q itself, or q before rotation. Padded keys must be 0.
    """
    return (q @ (k.mT @ v)) / ((norm_q @ z[..., None]) + eps)


def causal_numerator(q: Tensor, k: Tensor, v: Tensor, s: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Σ_{j≤i} (q_iᵀ k_j) v_j + q_iᵀ s, chunk by chunk: masked products inside a chunk, the state S between chunks.

    q, k (batch, heads, time, C), v (batch, heads, time, M), s (batch, heads, C, M) → (batch, heads, time, M) and the
    state after the last frame. Exact for any chunk: 1 is the recurrence, ≥ time the parallel form. Cost
    O(N·(chunk + C)·M); memory for N/chunk states.
    """
    time = q.shape[2]
    pad = -time % chunk
    q, k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for t in (q, k, v))
    states = torch.cat([s[:, :, None], k.mT @ v], dim=2).cumsum(2)  # states[c]: everything before chunk c
    y = (q @ k.mT).tril() @ v + q @ states[:, :, :-1]
    return y.flatten(2, 3)[:, :, :time], states[:, :, -1]


class LinearAttention(nn.Module):
    """Multi-head linear attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        causal: sums over the past; then `step` continues from a `LinearState`.
        rotary: turn queries and keys by their time in the numerator.

    Example:
        >>> layer = LinearAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool = False,
        chunk: int = 64,
        eps: float = 1e-6,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.chunk, self.eps, self.rotary = heads, causal, chunk, eps, rotary
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length neither give nor receive."""
        x = zero_padding(x, lengths)
        if self.causal:  # padding comes after every real frame, so no real frame ever sees it
            return self.step(x, self.initial_state(x.shape[0]))[0]
        q, k, v = self._qkv(x)
        k = k.masked_fill(~frame_mask(lengths, x.shape[1])[:, None, :, None], 0.0)  # padding must leave S and Z alike
        z = k.sum(2)
        turned_q, turned_k = (rotate(q), rotate(k)) if self.rotary else (q, k)
        y = linear_attention(turned_q, turned_k, v, z, q, self.eps)
        return self._out(y, x)

    def initial_state(self, batch: int) -> LinearState:
        d = self.output.in_features // self.heads
        like = self.output.weight
        zeros = torch.zeros(
            batch, self.heads, d, d + 1, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32)
        )
        return LinearState(zeros[..., :d], zeros[..., d])

    def step(self, x: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        """The next frames, (batch, time, dim), any number of them → the same shape, and the state after them.

        Feeding an utterance in pieces gives the numbers of feeding it whole.

        Raises:
            ValueError: the layer is not causal.
        """
        if not self.causal:
            raise ValueError("a bidirectional linear attention cannot stream; set causal: true")
        q, k, v = self._qkv(x)
        turned_q, turned_k = (rotate(q, state.time), rotate(k, state.time)) if self.rotary else (q, k)
        y, s = causal_numerator(turned_q, turned_k, v, state.s, self.chunk)
        sums = state.z[:, :, None] + k.cumsum(2)
        y = y / ((q * sums).sum(-1, keepdim=True) + self.eps)
        z = sums[:, :, -1] if x.shape[1] else state.z
        return self._out(y, x), LinearState(s, z, state.time + x.shape[1])

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, dim) → three of (batch, heads, time, D), φ applied to the first two; at least float32."""
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))  # sums over N need the digits
        return elu_plus_one(q), elu_plus_one(k), v

    def _out(self, y: Tensor, x: Tensor) -> Tensor:
        return self.output(y.transpose(1, 2).flatten(2).to(self.output.weight.dtype))
