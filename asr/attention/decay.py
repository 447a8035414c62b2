"""Linear attention that forgets: each head's memory is an exponential average over its own number of frames.

    V'_i = φ(q_i)ᵀ μ_i / φ(q_i)ᵀ ν_i      μ_i = a μ_{i−1} + (1 − a) φ(k_i) v_iᵀ      ν_i = a ν_{i−1} + (1 − a) φ(k_i)

with 0 < a < 1, fixed or learned, one per head: a frame loses its weight by a factor e in about 1/(1 − a) frames.
Without a, Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 16-20; the averages are those of Peng et
al., "Random Feature Attention", ICLR 2021 (RFA-Gate), with an a that is constant in time.

What is kept are the sums S = μ/(1 − a) and Z = ν/(1 − a): the factor cancels, the sums turn into linear attention's as
a → 1, and eps means the same to every head (beside ν it would be (1 − a)·eps). Rotary positions as in linear attention.

Cost O(N·C·D) per head for C features. State: heads · C · (D + 1) floats, whatever the length.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.attention.directions import DirectionalConfig
from asr.attention.feature_maps import FixedMapConfig
from asr.attention.linear import LinearAttention, LinearConfig
from asr.wording import counted

SHORTEST, LONGEST = 4.0, 1024.0  # frames that the first and the last head remember when the recipe says nothing


class DecayConfig(DirectionalConfig):
    """`attention: {kind: decay}` in a recipe."""

    turns: ClassVar[bool] = True
    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["decay"] = "decay"
    decay: list[float] | None = None  # a of each head; unset: memories of 4 to 1024 frames, in equal ratios
    learned: bool = True  # false: the decays stay as they are
    feature_map: Literal["elu", "relu", "square"] = "elu"  # of linear attention's; its others need more than a sum
    chunk: int = Field(64, ge=1)  # frames PyTorch works on at once; the result does not depend on it
    eps: float = Field(1e-6, gt=0)  # added to the normaliser

    def check(self, dim: int, heads: int, rotary: bool) -> None:
        super().check(dim, heads, rotary)
        if self.decay is None:
            return
        if len(self.decay) != heads:
            raise ValueError(f"decay has {counted(len(self.decay), 'value')} for {counted(heads, 'head')}")
        if wrong := [a for a in self.decay if not 0 < a < 1]:
            raise ValueError(f"decay must lie between 0 and 1, got {wrong[0]}; kind: linear is what forgets nothing")

    def build_causal(self, dim: int, heads: int, rotary: bool) -> DecayedAttention:
        linear = LinearConfig(
            causal=True, feature_map=FixedMapConfig(kind=self.feature_map), chunk=self.chunk, eps=self.eps
        )
        decays = spread(heads) if self.decay is None else self.decay
        return DecayedAttention(linear, dim, heads, decays, self.learned, rotary)


def spread(heads: int) -> list[float]:
    """Decays whose memories 1/(1 − a) grow in equal ratios from 4 to 1024 frames; one head gets their mean, 64.

    Example:
        >>> [round(1 / (1 - a)) for a in spread(5)]
        [4, 16, 64, 256, 1024]
    """
    steps = [h / (heads - 1) for h in range(heads)] if heads > 1 else [0.5]
    return [1 - 1 / (SHORTEST * (LONGEST / SHORTEST) ** step) for step in steps]


class DecayedAttention(LinearAttention):
    """Causal linear attention over padded batches whose heads forget.

    Args:
        config: of the linear attention, causal.
        dim: model width, a multiple of `heads`.
        decays: a of each head, 0 < a < 1.
        learned: train them, as the parameter ln(a / (1 − a)).
        rotary: turn queries and keys by their time.

    Example:
        >>> layer = DecayedAttention(LinearConfig(causal=True), dim=192, heads=6, decays=[0.9] * 6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    logit: Tensor

    def __init__(
        self,
        config: LinearConfig,
        dim: int,
        heads: int,
        decays: list[float],
        learned: bool = True,
        rotary: bool = False,
    ) -> None:
        super().__init__(config, dim, heads, rotary)
        logit = torch.tensor([math.log(a) - math.log1p(-a) for a in decays])
        if learned:
            self.logit = nn.Parameter(logit)
        else:
            self.register_buffer("logit", logit)

    def decay(self) -> Tensor:
        """(heads,) a of each head, at least float32."""
        return self._wide_logit().sigmoid()

    def memory_frames(self) -> Tensor:
        """(heads,) 1/(1 − a): the frames after which a weight is 1/e of what it was."""
        return 1 + self._wide_logit().exp()  # not from a, whose distance to 1 has few digits

    def _wide_logit(self) -> Tensor:
        return self.logit.to(torch.promote_types(self.logit.dtype, torch.float32))
