"""Gated linear attention: a memory that forgets channel by channel, at rates that each frame sets.

    S_t = diag(α_t) S_{t−1} + k_tᵀ v_t / √D      o_t = q_t S_t      y = (swish(x W_G + b_G) ⊙ norm(o)) W_O
    α_t = sigmoid(x_t W_1 W_2 + b)^{1/τ}         one α for every channel of every key

Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023, sections 4.1 and 4.3. W_1 is
narrow (`rank`), and τ = 16 lets a gate that is half open forget little: 0.5^{1/16} = 0.96. Keys have half the width of
values (`expand_k`), which leaves as many weights as softmax attention has. No positions: the decay tells near from far.

Cost O(N·D·W) per head of keys D = expand_k · W and values W wide. State: heads · D · W floats, whatever the length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from asr.attention.directions import DirectionalConfig
from asr.attention.gated_output import GatedOutput, check_width
from asr.attention.mixer import Mixer
from asr.kernels import gated_linear_attention
from asr.kernels.features import wide


class GatedConfig(DirectionalConfig):
    """`attention: {kind: gated}` in a recipe."""

    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["gated"] = "gated"
    expand_k: float = Field(0.5, gt=0)  # width of a key in widths of a value
    rank: int = Field(16, ge=1)  # of the gates' projection
    tau: float = Field(16.0, gt=0)  # the larger, the longer the memory
    chunk: int = Field(32, ge=1)  # frames at once, rounded up to a power of two; the result does not depend on it
    eps: float = Field(1e-5, gt=0)  # of the norm

    def check(self, dim: int, heads: int, rotary: bool) -> None:
        super().check(dim, heads, rotary)
        check_width(dim // heads)
        keys = dim * self.expand_k / heads
        if keys < 0.5 or abs(keys - round(keys)) > 1e-6:
            raise ValueError(f"expand_k {self.expand_k} makes keys of {keys:g} channels a head, not a whole number")

    def build_causal(self, dim: int, heads: int, rotary: bool) -> GatedLinearAttention:
        return GatedLinearAttention(dim, heads, self.expand_k, self.rank, self.tau, self.chunk, self.eps)


class GatedState(NamedTuple):
    """What a layer remembers: `s` (batch, heads, D, W), at least float32."""

    s: Tensor


class GatedLinearAttention(Mixer):
    """Multi-head gated linear attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`; `expand_k · dim` is one too.
        rank: width between the two matrices that compute the gates.
        tau: ln α is divided by it.

    Example:
        >>> layer = GatedLinearAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    causal = streams = True

    def __init__(
        self,
        dim: int,
        heads: int,
        expand_k: float = 0.5,
        rank: int = 16,
        tau: float = 16.0,
        chunk: int = 32,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.heads, self.tau, self.chunk = heads, tau, chunk
        self.keys, self.values = round(expand_k * dim) // heads, dim // heads
        self.project = nn.Linear(dim, heads * (2 * self.keys + self.values))
        self.gates = nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, heads * self.keys))
        self.out = GatedOutput(dim, heads, self.values, eps)

    def initial_state(self, batch: int) -> GatedState:
        like = self.project.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        return GatedState(torch.zeros(batch, self.heads, self.keys, self.values, device=like.device, dtype=dtype))

    def step(self, x: Tensor, state: GatedState) -> tuple[Tensor, GatedState]:
        # o has no denominator, and gates near 1 need digits: neither is for half precision
        projected, gates = wide(self.project(x), self.gates(x))
        q, k, v = projected.unflatten(-1, (self.heads, -1)).split([self.keys, self.keys, self.values], dim=-1)
        log_decay = F.logsigmoid(gates.unflatten(-1, (self.heads, -1))) / self.tau
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        o, s = gated_linear_attention(q, k * self.keys**-0.5, v, log_decay, lengths, state.s, self.chunk)
        return self.out(o, x), GatedState(s)
