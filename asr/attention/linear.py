"""Linear attention: similarity as a dot product of feature maps, so that cost grows with N instead of N².

    V'_i = φ(q_i)ᵀ S / φ(q_i)ᵀ Z      S = Σ_j φ(k_j) v_jᵀ      Z = Σ_j φ(k_j)      φ(x) = elu(x) + 1

The sums run over all frames (bidirectional) or over j ≤ i (causal, an RNN whose state is S and Z).
Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4-12. With rotary positions φ(q) and φ(k) are
turned in the numerator only, so that the denominator stays positive (Su et al., "RoFormer", 2021, equation 19).

Cost O(N·D²) per head. State when causal: heads · D · (D + 1) floats, whatever the length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.kernels import causal_linear_attention, linear_attention, prepare, rotary_table


class LinearConfig(MixerConfig):
    """`attention: {kind: linear}` in a recipe."""

    turns: ClassVar[bool] = True

    kind: Literal["linear"] = "linear"
    chunk: int = Field(64, ge=1)  # causal: frames PyTorch works on at once; the result does not depend on it
    eps: float = Field(1e-6, gt=0)  # added to the normaliser; a frame that sees no key gives 0, not NaN

    def build(self, dim: int, heads: int, rotary: bool = False) -> LinearAttention:
        return LinearAttention(dim, heads, self.causal, self.chunk, self.eps, rotary)


class LinearState(NamedTuple):
    """What a causal layer remembers: `s` (batch, heads, D, D), `z` (batch, heads, D), float32, and frames seen."""

    s: Tensor
    z: Tensor
    time: int = 0


class LinearAttention(Mixer):
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
        self.heads, self.chunk, self.eps, self.rotary = heads, chunk, eps, rotary
        self.causal = self.streams = causal
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        prepare()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length neither give nor receive."""
        x = zero_padding(x, lengths)
        if self.causal:  # padding comes after every real frame, so no real frame ever sees it
            return self.step(x, self.initial_state(x.shape[0]))[0]
        q, k, v = self._qkv(x)
        return self._out(linear_attention(q, k, v, lengths, self._table(x), eps=self.eps))

    def initial_state(self, batch: int) -> LinearState:
        if not self.causal:
            raise ValueError(self._why_not())
        d = self.output.in_features // self.heads
        like = self.output.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        return LinearState(
            torch.zeros(batch, self.heads, d, d, device=like.device, dtype=dtype),
            torch.zeros(batch, self.heads, d, device=like.device, dtype=dtype),
        )

    def step(self, x: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        if not self.causal:
            raise ValueError(self._why_not())
        q, k, v = self._qkv(x)
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        table = self._table(x, state.time)
        y, s, z = causal_linear_attention(
            q, k, v, lengths, table, kv=state.s, ksum=state.z, eps=self.eps, chunk=self.chunk
        )
        return self._out(y), LinearState(s, z, state.time + x.shape[1])

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, dim) → three of (batch, time, heads, D)."""
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return q, k, v

    def _table(self, x: Tensor, start: int = 0) -> Tensor | None:
        if not self.rotary:
            return None
        return rotary_table(x.shape[1], self.output.in_features // self.heads, start, device=x.device)

    def _out(self, y: Tensor) -> Tensor:
        return self.output(y.flatten(2).to(self.output.weight.dtype))
