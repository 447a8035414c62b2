"""Lightning attention: linear attention without a denominator, computed in blocks, with fading, output norm and gate.

    O = norm(((Q Kᵀ) ⊙ M) V) ⊙ σ(X W_u)      Q = silu(X W_q), K = silu(X W_k), V = X W_v, M_ts = λ^(t−s), 0 for s > t

Qin et al., "Lightning Attention-2", 2024, and "Various Lengths, Constant Speed" (TransNormerLLM), 2024: within a block
masked products, between blocks the state; that is how the op works, compiled and in PyTorch. λ of head h of H is
exp(−2^(−8h/H)), as in their code (the slopes of ALiBi), which reduces it further with depth; here layers are alike. The
norm is per head.

Cost O(N·D·(D + chunk)) per head. Causal by nature: `causal: false` runs it in both directions. State: heads · D²
floats.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from asr.attention.directions import DirectionalConfig
from asr.attention.mixer import Mixer
from asr.kernels import causal_linear_attention, prepare, rotary_table
from asr.kernels.features import wide


class LightningConfig(DirectionalConfig):
    """`attention: {kind: lightning}` in a recipe."""

    turns: ClassVar[bool] = True
    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["lightning"] = "lightning"
    decay: bool = True  # earlier frames fade, each head at a rate of its own
    chunk: int = Field(64, ge=1)  # frames PyTorch works on at once; the result does not depend on it

    def build_causal(self, dim: int, heads: int, rotary: bool) -> LightningAttention:
        return LightningAttention(dim, heads, self.decay, self.chunk, rotary)


class LightningState(NamedTuple):
    """Σ_s λ^(t−s) k_s v_sᵀ, (batch, heads, D, D), at least float32, and frames seen."""

    s: Tensor
    time: int = 0


class LightningAttention(Mixer):
    """One direction of lightning attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        decay: the head's fixed λ; without it nothing is forgotten.
        rotary: turn queries and keys by their time.

    Example:
        >>> layer = LightningAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    causal = streams = True
    decay: Tensor | None

    def __init__(self, dim: int, heads: int, decay: bool = True, chunk: int = 64, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.chunk, self.rotary = heads, chunk, rotary
        self.project = nn.Linear(dim, 4 * dim)
        self.norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.output = nn.Linear(dim, dim)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("decay", torch.exp(-slopes) if decay else None, persistent=False)
        prepare()

    def memory_frames(self) -> Tensor | None:
        """(heads,) 1/(1 − λ): the frames after which a weight is 1/e of what it was; None: nothing fades."""
        return None if self.decay is None else 1 / (1 - self.decay)

    def initial_state(self, batch: int) -> LightningState:
        like = self.output.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        d = like.shape[1] // self.heads
        return LightningState(torch.zeros(batch, self.heads, d, d, device=like.device, dtype=dtype))

    def step(self, x: Tensor, state: LightningState) -> tuple[Tensor, LightningState]:
        *qkv, gate = self.project(x).unflatten(-1, (4, self.heads, -1)).unbind(2)
        q, k, v = wide(*qkv)  # undivided sums over an utterance leave float16's range
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        table = rotary_table(x.shape[1], q.shape[-1], state.time, device=x.device) if self.rotary else None
        y, s, _ = causal_linear_attention(
            F.silu(q), F.silu(k), v, lengths, table, self.decay, kv=state.s, ksum=torch.zeros_like(state.s[..., 0]),
            feature_map="identity", normalise=False, chunk=self.chunk,
        )  # fmt: skip
        y = self.norm(y) * gate.sigmoid()
        return self.output(y.flatten(2).to(self.output.weight.dtype)), LightningState(s, state.time + x.shape[1])
