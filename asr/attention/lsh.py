"""LSH attention (Reformer): each frame looks only at frames whose shared query-key vector hashes near its own.

Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2; `asr.kernels.lsh` defines every
step. The result is exact softmax attention over the union of the pairs that the rounds let meet.

Cost O(rounds · N · bucket_size · D) per head. The number of buckets follows from each utterance's own length, and
chunks are cut from its own frames, so that padding changes nothing.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.kernels import lsh_attention, prepare, rotary_table
from asr.kernels.features import turn
from asr.kernels.lsh import MAX_COLUMNS


class LshConfig(MixerConfig):
    """`attention: {kind: lsh}` in a recipe. `causal: true` does not stream: hashing needs the whole utterance."""

    turns: ClassVar[bool] = True

    kind: Literal["lsh"] = "lsh"
    rounds: int = Field(4, ge=1, le=64)  # independent hashings; more rounds miss fewer of the frames that matter
    bucket_size: int = Field(32, ge=1)  # frames per bucket on average, and per chunk
    seed: int = Field(0, ge=0)  # of the rotations

    def build(self, dim: int, heads: int, rotary: bool = False) -> LshAttention:
        return LshAttention(dim, heads, self.causal, self.rounds, self.bucket_size, self.seed, rotary)


class LshAttention(Mixer):
    """Multi-head LSH attention over padded batches of any length.

    In training the rotations are drawn anew at every call, from torch's global generator; in evaluation they are fixed
    by `seed`, so that an utterance always gets the same answer.

    Args:
        dim: model width, a multiple of `heads`.
        rotary: turn the shared query-key vectors by their time before they are hashed and compared.

    Example:
        >>> layer = LshAttention(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    rotation: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool = False,
        rounds: int = 4,
        bucket_size: int = 32,
        seed: int = 0,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.bucket_size, self.rotary = heads, causal, bucket_size, rotary
        self.project = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)
        generator = torch.Generator().manual_seed(seed)
        rotation = torch.randn(rounds, dim // heads, MAX_COLUMNS, generator=generator)
        self.register_buffer("rotation", rotation, persistent=False)
        prepare()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length take no part in any bucket."""
        if x.shape[1] == 0:
            return self.output(x)
        x = zero_padding(x, lengths)
        qk, v = self.project(x).unflatten(-1, (2, self.heads, -1)).unbind(2)
        if self.rotary:
            qk = turn(qk, rotary_table(x.shape[1], qk.shape[-1], device=x.device))
        columns = min(MAX_COLUMNS, -(-x.shape[1] // (2 * self.bucket_size)))
        rotation = self.rotation[..., :columns]
        if self.training:
            rotation = torch.randn_like(rotation)
        y = lsh_attention(qk, v, lengths, rotation, self.bucket_size, self.causal)
        return self.output(y.flatten(2).to(x.dtype))
