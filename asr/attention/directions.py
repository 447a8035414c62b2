"""A causal mixer made to see the whole utterance: one copy runs forwards, one backwards, and their results are joined.

Schuster, Paliwal, "Bidirectional Recurrent Neural Networks", 1997. The copies have weights of their own; `combine: sum`
adds their results, `concat` puts them side by side and projects them back to the model's width. The backward copy runs
over rows reversed within their own length, so that it starts at each utterance's own last frame.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig


class DirectionalConfig(MixerConfig):
    """Base of the mixers that are recurrences by nature. `causal: false` makes them run in both directions."""

    combine: Literal["sum", "concat"] = "sum"  # of the two directions; causal: true has only one

    @model_validator(mode="after")
    def _nothing_to_combine(self) -> DirectionalConfig:
        if self.causal and self.combine != "sum":
            raise ValueError(f"combine: {self.combine} joins two directions, and causal: true has one; leave it out")
        return self

    def build(self, dim: int, heads: int, rotary: bool = False) -> Mixer:
        if self.causal:
            return self.build_causal(dim, heads, rotary)
        ahead, back = (self.build_causal(dim, heads, rotary) for _ in range(2))
        return BothDirections(ahead, back, dim, self.combine)

    def build_causal(self, dim: int, heads: int, rotary: bool) -> Mixer:
        """One direction."""
        raise NotImplementedError


class BothDirections(Mixer):
    """(batch, time, dim), (batch,) → (batch, time, dim), every frame seeing the whole of its row."""

    def __init__(self, ahead: Mixer, back: Mixer, dim: int, combine: str) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back
        self.join = nn.Linear(2 * dim, dim) if combine == "concat" else None

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = zero_padding(x, lengths)
        ahead, back = self.ahead(x, lengths), reverse(self.back(reverse(x, lengths), lengths), lengths)
        return ahead + back if self.join is None else self.join(torch.cat([ahead, back], dim=-1))


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, …) with each row's real frames in reverse order and its padding left in place.

    Example:
        >>> reverse(torch.tensor([[[1], [2], [3]], [[4], [5], [0]]]), torch.tensor([3, 2]))[..., 0].tolist()
        [[3, 2, 1], [5, 4, 0]]
    """
    t = torch.arange(x.shape[1], device=x.device)
    mirror = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x.gather(1, mirror.view(*mirror.shape, *[1] * (x.dim() - 2)).expand_as(x))
