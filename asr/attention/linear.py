"""Linear attention: similarity as a dot product of feature maps, so that cost grows with N instead of N².

    V'_i = φ(q_i)ᵀ S / φ(q_i)ᵀ Z      S = Σ_j φ(k_j) v_jᵀ      Z = Σ_j φ(k_j)

The sums run over all frames (bidirectional) or over j ≤ i (causal, an RNN whose state is S and Z).
Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4-12; `asr.attention.feature_maps` has the maps.
With `normaliser: output` there is no denominator, and a root mean square norm per head takes its place: Qin et al.,
"The Devil in Linear Transformer", 2022, equation 9.

Rotary positions turn φ(q) and φ(k) of the maps elu and relu, in the numerator only, so that the denominator stays
positive (Su et al., "RoFormer", 2021, equation 19). With every other map q and k are turned before it.

Cost O(N·C·D) per head for C features. State when causal: heads · C · (D + 1) floats, whatever the length, and heads · C
more with the exponential maps, which count each feature in units of its greatest value so far.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.attention.exponential import causal_exponential_attention, stabilise
from asr.attention.feature_maps import FeatureMapConfig, FixedMapConfig
from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.attention.softmax import SoftmaxConfig
from asr.kernels import causal_linear_attention, linear_attention, prepare, rotary_table
from asr.kernels.features import turn, wide


class LinearConfig(MixerConfig):
    """`attention: {kind: linear}` in a recipe."""

    turns: ClassVar[bool] = True
    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["linear"] = "linear"
    feature_map: FeatureMapConfig = FixedMapConfig()
    normaliser: Literal["sum", "output"] = "sum"  # of the weights, as in the paper; output: a norm of the result
    chunk: int = Field(64, ge=1)  # causal: frames PyTorch works on at once; the result does not depend on it
    eps: float = Field(1e-6, gt=0)  # added to the normaliser; a frame that sees no key gives 0, not NaN

    @model_validator(mode="after")
    def _check(self) -> LinearConfig:
        if self.feature_map.kind == "identity" and self.normaliser == "sum":
            raise ValueError("feature_map: identity gives weights of both signs; it needs normaliser: output")
        if not self.causal:
            self.leave_out("chunk", "causal: false sums over all frames at once")
        elif self.feature_map.kind in ("exp", "favor") and self.normaliser == "sum":
            self.leave_out(
                "eps", f"with causal: true the normaliser of feature_map: {self.feature_map.kind} is never 0"
            )
        return self

    def meaning(self) -> dict[str, Any]:
        # The Performer's features estimate softmax attention, whose weights they take.
        estimate = self.feature_map.kind == "favor" and self.normaliser == "sum"
        return SoftmaxConfig(causal=self.causal).meaning() if estimate else super().meaning()

    def build(self, dim: int, heads: int, rotary: bool = False) -> LinearAttention:
        return LinearAttention(self, dim, heads, rotary)


class LinearState(NamedTuple):
    """What a causal layer remembers: `s` (batch, heads, C, D) and `z` (batch, heads, C), at least float32, frames seen,
    and with the exponential maps the logarithm `peak` (batch, heads, C) of the units of s and z."""

    s: Tensor
    z: Tensor
    time: int = 0
    peak: Tensor | None = None


class LinearAttention(Mixer):
    """Multi-head linear attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        rotary: turn queries and keys by their time.

    Example:
        >>> layer = LinearAttention(LinearConfig(), dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    def __init__(self, config: LinearConfig, dim: int, heads: int, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.chunk, self.eps, self.rotary = heads, config.chunk, config.eps, rotary
        self.causal = self.streams = config.causal
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.map = config.feature_map.build(dim // heads, heads)
        self.norm = nn.RMSNorm(dim // heads, eps=self.eps) if config.normaliser == "output" else None
        prepare()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length neither give nor receive."""
        if self.causal:
            return super().forward(x, lengths)
        x = zero_padding(x, lengths)
        q, k, v, table = self._inputs(x)
        if self.map.logarithmic:
            q, k = stabilise(q, k, lengths)
        return self._out(linear_attention(q, k, v, lengths, table, self.map.op, self.eps, self.norm is None))

    def initial_state(self, batch: int) -> LinearState:
        if not self.causal:
            raise ValueError(self._why_not())
        like = self.output.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        z = torch.zeros(batch, self.heads, self.map.size, device=like.device, dtype=dtype)
        s = z[..., None].repeat(1, 1, 1, like.shape[1] // self.heads)
        return LinearState(s, z, peak=torch.full_like(z, -torch.inf) if self.map.logarithmic else None)

    def step(self, x: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        if not self.causal:
            raise ValueError(self._why_not())
        q, k, v, table = self._inputs(x, state.time)
        time = state.time + x.shape[1]
        if state.peak is not None:
            y, s, z, peak = causal_exponential_attention(
                q, k, v, state.s, state.z, state.peak, normalise=self.norm is None, chunk=self.chunk
            )
            return self._out(y), LinearState(s, z, time, peak)
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        y, s, z = causal_linear_attention(
            q, k, v, lengths, table, self.decay(), state.s, state.z, feature_map=self.map.op,
            normalise=self.norm is None, eps=self.eps, chunk=self.chunk,
        )  # fmt: skip
        return self._out(y), LinearState(s, z, time)

    def decay(self) -> Tensor | None:
        """(heads,) what a causal memory keeps from one frame to the next; None: all of it, as in the paper."""
        return None

    def _inputs(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(batch, time, dim) → q, k (batch, time, heads, C), v (batch, time, heads, D), and the rotary table still to
        be applied by the op."""
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.norm is not None:
            (v,) = wide(v)  # undivided sums over an utterance leave float16's range
        table = rotary_table(x.shape[1], q.shape[-1], start, device=x.device) if self.rotary else None
        if self.map.op == "identity":
            q, k, table = turn(q, table), turn(k, table), None
        return *self.map(q, k), v, table

    def _out(self, y: Tensor) -> Tensor:
        y = y if self.norm is None else self.norm(y)
        return self.output(y.flatten(2).to(self.output.weight.dtype))
