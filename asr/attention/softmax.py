"""Softmax attention: V' = softmax(Q Kᵀ / √D) V, over all frames or over a pattern of them.

Vaswani et al., "Attention Is All You Need", 2017, equation 1. Cost O(N²·D) time per head over all frames;
`implementation: sdpa` is torch's fused kernel, O(N) memory; `materialised` forms the N×N matrix, as the softmax
baseline of "Transformers are RNNs" (2020) did, so that its ratio of times can be reproduced.

`asr.attention.patterns` has the patterns, each with its paper and cost. State of a causal window [left, 0]:
2 · dim · (left + global_tokens) floats; of chunks 2 · dim · left_chunks · chunk_frames.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.attention.patterns import Band, Full, Materialised, Pattern, SharedQk, Strided
from asr.attention.rotary import rotate

Frames = Annotated[int, Field(ge=0)]


class SoftmaxConfig(MixerConfig):
    """`attention: {kind: softmax}` in a recipe. At most one of window, stride, topk and chunk_frames is set."""

    turns: ClassVar[bool] = True
    computing: ClassVar[frozenset[str]] = frozenset({"implementation"})

    kind: Literal["softmax"] = "softmax"
    implementation: Literal["sdpa", "materialised"] = "sdpa"  # of attention to all frames
    window: tuple[Frames, Frames] | None = None  # [left, right] frames seen beside the own one; causal: [left, 0]
    global_tokens: int = Field(0, ge=0)  # window: the first frames, which see all and are seen by all
    stride: int | None = Field(None, ge=1)  # see frames nearer than this, and every stride-th
    topk: int | None = Field(None, ge=1)  # see the k keys with the highest scores
    chunk_frames: int | None = Field(None, ge=2)  # see the own chunk of this many frames
    left_chunks: int = Field(0, ge=0)  # chunk_frames: and this many chunks before it
    lookahead: int = Field(0, ge=0)  # chunk_frames: and this many frames after it; 0 to stream
    shared_qk: bool = False  # queries are the keys, as in LSH attention, whose limit of many rounds this is

    @model_validator(mode="after")
    def _check(self) -> SoftmaxConfig:
        chosen = [name for name in ("window", "stride", "topk", "chunk_frames") if getattr(self, name) is not None]
        if self.shared_qk and (chosen or self.implementation == "materialised"):
            raise ValueError(f"shared_qk looks at all frames; leave out {chosen[0] if chosen else 'implementation'}")
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} are different patterns: set one of them")
        if chosen and self.implementation == "materialised":
            raise ValueError(f"implementation: materialised is attention to all frames; leave it out with {chosen[0]}")
        for name, needs in (
            ("global_tokens", "window"),
            ("left_chunks", "chunk_frames"),
            ("lookahead", "chunk_frames"),
        ):
            if getattr(self, name) and getattr(self, needs) is None:
                raise ValueError(f"{name} belongs to {needs}, which is not set")
        if self.causal and self.window and self.window[1]:
            left, right = self.window
            raise ValueError(f"window [{left}, {right}] sees {right} later frames; causal: true needs [{left}, 0]")
        if self.causal and self.chunk_frames is not None:
            raise ValueError("the frames of a chunk see each other; for causal: true set window: [left, 0] instead")
        pattern = self._pattern()
        if isinstance(pattern, Band) and pattern.streams:
            self.remember(chosen[0], max(pattern.left, pattern.unit) + pattern.global_tokens)
        return self

    def build(self, dim: int, heads: int, rotary: bool = False) -> SoftmaxAttention:
        return SoftmaxAttention(dim, heads, self._pattern(), rotary, self.shared_qk)

    def pair_bytes(self, heads: int, frames: int) -> int:
        pattern = self._pattern()
        if isinstance(pattern, Materialised):
            return 12 * heads * frames**2  # float32 scores, masked scores and weights live at once (measured)
        if isinstance(pattern, SharedQk):
            return 5 * frames**2  # the mask, bool and as float32
        if isinstance(pattern, Band):
            return 6 * frames * pattern.within(frames).keys_per_frame()  # the mask, bool and as float32
        if isinstance(pattern, Strided):
            stride = max(1, min(pattern.stride, frames))
            return 12 * heads * frames * (3 * stride + frames // stride)  # scores as above
        return 0

    def _pattern(self) -> Pattern:
        if self.window is not None:
            return Band(*self.window, global_tokens=self.global_tokens, causal=self.causal)
        if self.chunk_frames is not None:
            return Band(self.left_chunks * self.chunk_frames, self.lookahead, unit=self.chunk_frames)
        if self.stride is not None:
            return Strided(self.stride, self.causal)
        if self.topk is not None or self.implementation == "materialised":
            return Materialised(self.causal, self.topk or 0)
        return SharedQk(self.causal) if self.shared_qk else Full(self.causal)


class SoftmaxState(NamedTuple):
    """What a streaming layer remembers: the keys and values (batch, heads, frames, D) of the last `left` frames and of
    the first `global_tokens`, and how many frames were seen, which says how many of those are filled."""

    k: Tensor
    v: Tensor
    global_k: Tensor
    global_v: Tensor
    time: int = 0


class SoftmaxAttention(Mixer):
    """Multi-head softmax attention over padded batches.

    Args:
        dim: model width, a multiple of `heads`.
        pattern: which frames a query sees. A causal `Band` streams, and one of chunks without lookahead.
        rotary: turn queries and keys by their time (see asr.attention.rotary).
        shared_qk: one projection for queries and keys.

    Example:
        >>> layer = SoftmaxAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    def __init__(
        self, dim: int, heads: int, pattern: Pattern = Full(), rotary: bool = False, shared_qk: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.pattern, self.rotary = heads, pattern, rotary
        self.parts = 2 if shared_qk else 3
        self.causal = pattern.causal
        self.streams = isinstance(pattern, Band) and pattern.streams
        self.project = nn.Linear(dim, self.parts * dim)
        self.output = nn.Linear(dim, dim)

    @property
    def lookahead_frames(self) -> int | None:
        if self.causal:
            return 0
        return self.pattern.lookahead_frames if isinstance(self.pattern, Band) else None

    @property
    def step_frames(self) -> int:
        return self.pattern.unit if isinstance(self.pattern, Band) else 1

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length are seen by no frame."""
        if x.shape[1] == 0:
            return self.output(x)
        q, k, v = self._qkv(zero_padding(x, lengths))
        return self._out(self.pattern.attend(q, k, v, lengths))

    def initial_state(self, batch: int) -> SoftmaxState:
        band = self._band()
        d = self.output.in_features // self.heads
        k, v, global_k, global_v = (
            self.output.weight.new_zeros(batch, self.heads, frames, d)
            for frames in (band.left, band.left, band.global_tokens, band.global_tokens)
        )
        return SoftmaxState(k, v, global_k, global_v)

    def step(self, x: Tensor, state: SoftmaxState) -> tuple[Tensor, SoftmaxState]:
        """As `Mixer.step`; in chunks all pieces but the last hold whole chunks."""
        band, time = self._band(), x.shape[1]
        if not time:
            return self.output(x), state
        if state.time % band.unit:
            raise ValueError(
                f"only the last piece of an utterance may hold other than whole chunks of {band.unit} frames"
            )
        q, k, v = self._qkv(x, state.time)
        global_k, global_v = (
            torch.cat([old[:, :, : state.time], new, old], dim=2)[:, :, : band.global_tokens]
            for old, new in ((state.global_k, k), (state.global_v, v))
        )
        k, v = torch.cat([state.k.to(k.dtype), k], dim=2), torch.cat([state.v.to(v.dtype), v], dim=2)
        seen = torch.full((x.shape[0],), state.time + time, device=x.device)
        y = band.attend_after(q, k, v, global_k, global_v, seen, start=state.time)
        # Copied, or what is kept would hold on to the whole piece.
        k, v, global_k, global_v = (t.clone() for t in (k[:, :, time:], v[:, :, time:], global_k, global_v))
        return self._out(y), SoftmaxState(k, v, global_k, global_v, state.time + time)

    def _band(self) -> Band:
        if not self.streams or not isinstance(self.pattern, Band):
            raise ValueError(self._why_not())
        return self.pattern

    def _why_not(self) -> str:
        return "softmax attention cannot stream but with causal: true and window, or chunk_frames without lookahead"

    def _qkv(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, dim) → three of (batch, heads, time, D), turned where positions are rotary."""
        parts = self.project(x).unflatten(-1, (self.parts, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[-2], parts[-1]
        return (rotate(q, start), rotate(k, start), v) if self.rotary else (q, k, v)

    def _out(self, y: Tensor) -> Tensor:
        return self.output(y.transpose(1, 2).flatten(2))
