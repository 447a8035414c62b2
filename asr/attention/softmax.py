"""Softmax attention: V' = softmax(Q Kᵀ / √D) V, every frame looking at every real frame of its utterance.

Vaswani et al., "Attention Is All You Need", 2017, equation 1. Cost O(N²·D) time per head. `implementation: sdpa` is
torch's fused kernel, O(N) memory; `materialised` forms the N×N matrix, as the softmax baseline of "Transformers are
RNNs" (2020) did, so that its ratio of times can be reproduced.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.masks import frame_mask, zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.attention.rotary import rotate


class SoftmaxConfig(MixerConfig):
    """`attention: {kind: softmax}` in a recipe."""

    turns: ClassVar[bool] = True

    kind: Literal["softmax"] = "softmax"
    implementation: Literal["sdpa", "materialised"] = "sdpa"

    def build(self, dim: int, heads: int, rotary: bool = False) -> SoftmaxAttention:
        return SoftmaxAttention(dim, heads, self.causal, self.implementation, rotary)


class SoftmaxAttention(Mixer):
    """Multi-head softmax attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        rotary: turn queries and keys by their time (see asr.attention.rotary).

    Example:
        >>> layer = SoftmaxAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    def __init__(
        self, dim: int, heads: int, causal: bool = False, implementation: str = "sdpa", rotary: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.materialised = implementation == "materialised"
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length are seen by no frame."""
        x = zero_padding(x, lengths)
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        mask = frame_mask(lengths, x.shape[1])[:, None, None, :]
        if self.causal:
            mask = mask & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        y = _materialised(q, k, v, mask) if self.materialised else F.scaled_dot_product_attention(q, k, v, mask)
        return self.output(y.transpose(1, 2).flatten(2))


def _materialised(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # The lowest finite number, not -inf: a row without any real key then averages instead of turning into NaN.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.to(v.dtype) @ v
