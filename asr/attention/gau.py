"""Gated attention unit (FLASH): weak attention, gated by the frame itself; exact nearby and linear far away.

    out = W_o (u ⊙ y)      u = silu(W_u x)      v = silu(W_v x)      z = silu(W_z x)      q, k = γ ⊙ z + β

    all pairs       y_i = 1/n Σ_j relu²(q_iᵀk_j / √s) v_j
    mixed groups    y_i = 1/c Σ_{j in i's group} relu²(q_iᵀk_j / √s) v_j + 1/n Σ_j (q'_iᵀk'_j / √s) v_j

n and c count the real frames of the row and of the group. Causal: j ≤ i, c those of the group up to i, and the linear
sum runs over the n frames of the groups before i's. γ, β are vectors, one per head, for each of q, k, q', k'.

Hua, Dai, Liu, Le, "Transformer Quality in Linear Time", ICML 2022, equations 1-8. The paper's unit has one head and
starts from γ near 0; here `heads` counts, and γ starts normal, so that the scores of a new layer are about 1. Its
relative position bias is left out: rotary positions turn all of q, k, q' and k', as they do there.

Cost O(N · (group + s) · expansion · dim), of all pairs O(N² · expansion · dim). State when causal: z and v of the
current group and the linear sums, group · (s + expansion · dim) + s · expansion · dim floats.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.attention.masks import frame_mask, zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.kernels import rotary_table
from asr.kernels.features import turn, wide


class GauConfig(MixerConfig):
    """`attention: {kind: gau}` in a recipe. `causal: true` streams where there are groups."""

    turns: ClassVar[bool] = True

    kind: Literal["gau"] = "gau"
    group: int | None = Field(64, ge=1)  # frames among which attention is exact, part of the model; null: all pairs
    expansion: int = Field(2, ge=1)  # width of values and gate, in model widths
    width: int = Field(64, ge=1)  # s, of queries and keys

    @model_validator(mode="after")
    def _check(self) -> GauConfig:
        if self.causal and self.group:
            self.remember("group", self.group)
        return self

    def check(self, dim: int, heads: int, rotary: bool) -> None:
        super().check(dim, heads, rotary=False)
        if rotary and self.width % 2:
            raise ValueError(f"rotary positions need an even width, got {self.width}")

    def pair_bytes(self, heads: int, frames: int) -> int:
        together = min(self.group or frames, frames)
        return 8 * heads * frames * together  # float32, two stages of the scores at once (measured)

    def build(self, dim: int, heads: int, rotary: bool = False) -> GatedAttentionUnit:
        return GatedAttentionUnit(dim, heads, self.causal, self.group, self.expansion, self.width, rotary)


class GauState(NamedTuple):
    """What a causal layer remembers: `z` (batch, group, s) and `v` (batch, group, heads, D) of the current group, of
    which time mod group are filled; `kv` (batch, heads, s, D), the sum of k' vᵀ over the groups before; frames seen."""

    z: Tensor
    v: Tensor
    kv: Tensor
    time: int = 0


class GatedAttentionUnit(Mixer):
    """Gated attention unit over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        group: frames of a group; None for attention over all pairs, which does not stream.
        rotary: turn queries and keys by their time.

    Example:
        >>> layer = GatedAttentionUnit(dim=192, heads=1)
        >>> layer(torch.randn(2, 150, 192), torch.tensor([150, 31])).shape
        torch.Size([2, 150, 192])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool = False,
        group: int | None = 64,
        expansion: int = 2,
        width: int = 64,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.group, self.width, self.rotary = heads, causal, group, width, rotary
        self.streams = causal and group is not None
        inner = expansion * dim
        self.sizes = (inner, inner, width)
        self.project = nn.Linear(dim, sum(self.sizes))
        nn.init.normal_(self.project.weight, std=dim**-0.5)  # or the sixth degree in x makes a new layer's result tiny
        nn.init.zeros_(self.project.bias)
        vectors = 4 if group else 2  # q, k and the linear part's
        self.scale = nn.Parameter(torch.randn(vectors, heads, width))
        self.offset = nn.Parameter(torch.zeros(vectors, heads, width))
        self.output = nn.Linear(inner, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length neither give nor receive."""
        if x.shape[1] == 0:
            return self.output(self.project(x)[..., : self.sizes[0]])
        u, v, z = self._uvz(zero_padding(x, lengths))
        v = v * frame_mask(lengths, x.shape[1])[..., None, None]  # no value, nothing given: neither exact nor linear
        return self._out(u, self._mix(z, v, lengths)[0])

    def initial_state(self, batch: int) -> GauState:
        if not self.streams or self.group is None:
            raise ValueError(self._why_not())
        d = self.sizes[0] // self.heads
        zeros = self.scale.new_zeros
        kv = zeros(batch, self.heads, self.width, d, dtype=torch.promote_types(self.scale.dtype, torch.float32))
        return GauState(zeros(batch, self.group, self.width), zeros(batch, self.group, self.heads, d), kv)

    def step(self, x: Tensor, state: GauState) -> tuple[Tensor, GauState]:
        """As `Mixer.step`. The current group is computed anew with each piece, so pieces of a group cost least."""
        if not self.streams or self.group is None:
            raise ValueError(self._why_not())
        u, v, z = self._uvz(x)
        begun = state.time % self.group
        z = torch.cat([state.z[:, :begun], z], dim=1)
        v = torch.cat([state.v[:, :begun], v], dim=1)
        full = z.shape[1] // self.group * self.group
        lengths = torch.full((len(x),), z.shape[1], device=x.device)
        y, sums = self._mix(z, v, lengths, state.time - begun, state.kv)
        z, v = z[:, full:], v[:, full:]
        more = self.group - z.shape[1]
        z, v = F.pad(z, (0, 0, 0, more)), F.pad(v, (0, 0, 0, 0, 0, more))
        return self._out(u, y[:, begun:]), GauState(z, v, sums[:, full // self.group].clone(), state.time + x.shape[1])

    def _why_not(self) -> str:
        return "gau cannot stream" + ("; set causal: true" if self.group else " over all pairs; set group")

    def _uvz(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, dim) → gate (batch, time, expansion · dim), values (…, heads, D), z (…, s)."""
        u, v, z = F.silu(self.project(x)).split(self.sizes, dim=-1)
        return u, v.unflatten(-1, (self.heads, -1)), z

    def _out(self, u: Tensor, y: Tensor) -> Tensor:
        return self.output((u * y.flatten(2)).to(self.output.weight.dtype))

    def _mix(
        self, z: Tensor, v: Tensor, lengths: Tensor, start: int = 0, kv: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """y (batch, time, heads, D) of the equations, and when causal the linear sums before each group and after all.

        The first frame stands at `start`, where a group begins, after frames whose linear sum is `kv`.
        """
        time = z.shape[1]
        size = max(1, min(self.group or time, time))  # a group longer than the row costs no more than the row
        groups = -(-time // size)
        with torch.autocast(z.device.type, enabled=False):  # a polynomial of degree 6 in x: float16 overflows
            z, v, scale, offset = wide(z, v, self.scale, self.offset)
            vectors = [z[:, :, None] * a + b for a, b in zip(scale, offset, strict=True)]  # (batch, time, heads, s)
            if self.rotary:
                table = rotary_table(time, self.width, start, device=z.device)
                vectors = [turn(t, table) for t in vectors]
            (v, q, k), linear = (self._grouped(ts, groups, size) for ts in ([v, *vectors[:2]], vectors[2:]))

            scores = F.relu(q * self.width**-0.5 @ k.mT).square()
            at = torch.arange(groups, device=z.device) * size
            if self.causal:
                scores, count = scores.tril(), torch.arange(1, size + 1, device=z.device)[:, None]
            else:
                count = (lengths[:, None] - at).clamp(1, size)[:, :, None, None, None]
            y, sums = scores @ v / count, v.new_zeros(())
            if linear:
                q, k = linear[0] * self.width**-0.5, linear[1]
                if self.causal:
                    sums = (k.mT @ v).cumsum(1)
                    sums = F.pad(sums, (0, 0, 0, 0, 0, 0, 1, 0))
                    sums = sums if kv is None else sums + kv[:, None]
                    far, seen = sums[:, :groups], (at + start).clamp(min=1)[:, None, None, None]
                else:
                    far = torch.einsum("bghcs,bghcd->bhsd", k, v)[:, None]
                    seen = lengths.clamp(min=1)[:, None, None, None, None]
                y = y + q @ far / seen
            return y.transpose(2, 3).flatten(1, 2)[:, :time], sums

    @staticmethod
    def _grouped(tensors: list[Tensor], groups: int, size: int) -> list[Tensor]:
        """Each (batch, time, heads, D) → (batch, groups, heads, size, D), the last group filled up with 0."""
        more = groups * size - tensors[0].shape[1] if tensors else 0
        return [F.pad(t, (0, 0, 0, 0, 0, more)).unflatten(1, (groups, size)).transpose(2, 3) for t in tensors]
