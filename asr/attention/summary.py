"""SummaryMixing: every frame is combined with one summary of the utterance, the mean of its transformed frames.

    y_t = c([f(x_t), s̄])      s̄ = 1/N Σ_j s(x_j)

f and s are two dense layers with GELU and a layer norm, in `heads` branches that each see their own part of the frame;
c is one dense layer with GELU over both. Parcollet, van Dalen, Zhang, Bhattacharya, "SummaryMixing", 2023, section 2.
The causal form takes the mean over j ≤ t, as their streaming Conformer does (2024).

Cost O(N·dim²), no pairs of frames. State when causal: dim floats and a count, whatever the length.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.kernels.features import wide


class SummaryConfig(MixerConfig):
    """`attention: {kind: summary}` in a recipe."""

    kind: Literal["summary"] = "summary"

    def build(self, dim: int, heads: int, rotary: bool = False) -> SummaryMixing:
        return SummaryMixing(dim, heads, self.causal)


class SummaryState(NamedTuple):
    """What a causal layer remembers: `total` (batch, dim), Σ s(x_j), at least float32, and the frames in it."""

    total: Tensor
    time: int = 0


class SummaryMixing(Mixer):
    """SummaryMixing over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        heads: branches of f and s.
        causal: the mean over the past; then `step` continues from a `SummaryState`.

    Example:
        >>> layer = SummaryMixing(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    def __init__(self, dim: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = self.streams = causal
        self.local = nn.Sequential(*(Branches(dim, heads) for _ in range(2)), nn.LayerNorm(dim))
        self.summary = nn.Sequential(*(Branches(dim, heads) for _ in range(2)), nn.LayerNorm(dim))
        self.combine = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length are in no mean."""
        if self.causal:
            return super().forward(x, lengths)
        x = zero_padding(x, lengths)
        total = wide(zero_padding(self.summary(x), lengths))[0].sum(1)
        mean = total / lengths.clamp(min=1)[:, None]
        return self._combine(x, mean[:, None].expand_as(x))

    def initial_state(self, batch: int) -> SummaryState:
        if not self.causal:
            raise ValueError(self._why_not())
        weight = wide(self.combine.weight)[0]
        return SummaryState(weight.new_zeros(batch, weight.shape[0]))

    def step(self, x: Tensor, state: SummaryState) -> tuple[Tensor, SummaryState]:
        if not self.causal:
            raise ValueError(self._why_not())
        totals = torch.cat([state.total[:, None], *wide(self.summary(x))], dim=1).cumsum(1)
        count = torch.arange(1, x.shape[1] + 1, device=x.device) + state.time
        y = self._combine(x, totals[:, 1:] / count[:, None])
        return y, SummaryState(totals[:, -1].clone(), state.time + x.shape[1])

    def _combine(self, x: Tensor, mean: Tensor) -> Tensor:
        local = self.local(x)
        return F.gelu(self.combine(torch.cat([local, mean.to(local.dtype)], dim=-1)))


class Branches(nn.Module):
    """(batch, time, dim) → the same: a dense layer with GELU for each of `heads` equal parts of a frame."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        parts = [nn.Linear(dim // heads, dim // heads) for _ in range(heads)]
        self.weight = nn.Parameter(torch.stack([part.weight.detach().T for part in parts]))  # (heads, in, out)
        self.bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (len(self.weight), -1)).movedim(2, 0).flatten(1, 2)
        y = (parts @ self.weight).unflatten(1, x.shape[:2]).movedim(0, 2).flatten(2)
        return F.gelu(y + self.bias)
