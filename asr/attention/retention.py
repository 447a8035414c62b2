"""Retention: a memory that forgets at a rate fixed for each head, read by turned queries, with no denominator.

    o_n = Σ_{m ≤ n} γ^{n−m} (q̃_n · k̃_m / √D) v_m  =  q̃_n S_n      S_n = γ S_{n−1} + k̃_nᵀ v_n / √D
    y = (swish(x W_G) ⊙ norm(o)) W_O      γ_h = 1 − 2^{−5−h}, h = 0, 1, …

q̃ and k̃ are turned by rotary positions, here always on: they are part of the method. Sun et al., "Retentive Network: A
Successor to Transformer for Large Language Models", 2023, equations 5-8. The score normalisations of its section 2.4
divide o by a positive number per frame and head, which the norm takes out again, so that all but 1/√D are left away.

Cost O(N·D·W) per head of keys D and values W = expand_v · D wide. State: heads · D · W floats, whatever the length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.attention.directions import DirectionalConfig
from asr.attention.gated_output import GatedOutput
from asr.attention.mixer import Mixer
from asr.kernels import causal_linear_attention, prepare, rotary_table
from asr.kernels.features import wide


class RetentionConfig(DirectionalConfig):
    """`attention: {kind: retention}` in a recipe."""

    turns: ClassVar[bool] = True
    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["retention"] = "retention"
    expand_v: int = Field(1, ge=1)  # values per key channel; the paper has 2, and a narrower feed-forward to pay for it
    chunk: int = Field(64, ge=1)  # frames PyTorch works on at once; the result does not depend on it
    eps: float = Field(1e-5, gt=0)  # of the norm

    def check(self, dim: int, heads: int, rotary: bool) -> None:
        super().check(dim, heads, rotary=False)
        if (dim // heads) % 2:  # whether or not the recipe asks for rotary positions
            raise ValueError(
                f"retention turns its queries and keys, which needs an even head width, got {dim // heads}"
            )

    def build_causal(self, dim: int, heads: int, rotary: bool) -> Retention:
        return Retention(dim, heads, self.expand_v, self.chunk, self.eps)


class RetentionState(NamedTuple):
    """What a layer remembers: `s` (batch, heads, D, W), at least float32, and frames seen."""

    s: Tensor
    time: int = 0


class Retention(Mixer):
    """Multi-scale retention over padded batches.

    Args:
        dim: model width, a multiple of 2 · `heads`.
        expand_v: width of a value in widths of a key.

    Example:
        >>> layer = Retention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    causal = streams = True

    def __init__(self, dim: int, heads: int, expand_v: int = 1, chunk: int = 64, eps: float = 1e-5) -> None:
        super().__init__()
        self.heads, self.width, self.values, self.chunk = heads, dim // heads, expand_v * dim // heads, chunk
        self.project = nn.Linear(dim, (2 + expand_v) * dim)
        self.out = GatedOutput(dim, heads, self.values, eps)
        prepare()

    def decay(self) -> Tensor:
        """(heads,) γ, float32, which holds it exactly for 19 heads."""
        exponent = torch.arange(self.heads, device=self.project.weight.device, dtype=torch.float32)
        return 1 - 2.0 ** (-5 - exponent)

    def memory_frames(self) -> Tensor:
        """(heads,) 1/(1 − γ): the frames after which a weight is 1/e of what it was."""
        return 1 / (1 - self.decay())

    def initial_state(self, batch: int) -> RetentionState:
        like = self.project.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        s = torch.zeros(batch, self.heads, self.width, self.values, device=like.device, dtype=dtype)
        return RetentionState(s)

    def step(self, x: Tensor, state: RetentionState) -> tuple[Tensor, RetentionState]:
        shape = (self.heads, 2 * self.width + self.values)
        (projected,) = wide(self.project(x).unflatten(-1, shape))  # o has no denominator: half precision may overflow
        q, k, v = projected.split([self.width, self.width, self.values], dim=-1)
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        table = rotary_table(x.shape[1], self.width, state.time, device=x.device)
        unused = state.s.new_zeros(state.s.shape[:3])  # the op's key sum, which only a denominator reads
        o, s, _ = causal_linear_attention(
            q,
            k * self.width**-0.5,
            v,
            lengths,
            table,
            self.decay(),
            state.s,
            unused,
            feature_map="identity",
            normalise=False,
            chunk=self.chunk,
        )
        return self.out(o, x), RetentionState(s, state.time + x.shape[1])
