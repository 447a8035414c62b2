"""LSH attention (Reformer): each frame looks only at frames whose shared query-key vector hashes near its own.

Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2; `asr.kernels.lsh` defines every
step. The result is exact softmax attention over the union of the pairs that the rounds let meet.

Cost O(rounds · N · bucket_size · D) per head. The number of buckets follows from each utterance's own length, and
chunks are cut from its own frames, so that padding changes nothing.

`rounds`, `bucket_size` and `seed` are no part of the weights: a trained model runs with others. Its limit, where every
pair meets, is softmax attention with `shared_qk: true`, which has the same weights.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer, MixerConfig
from asr.attention.softmax import SoftmaxConfig
from asr.kernels import lsh_attention, prepare, rotary_table
from asr.kernels.features import turn
from asr.kernels.lsh import MAX_COLUMNS


class LshConfig(MixerConfig):
    """`attention: {kind: lsh}` in a recipe. `causal: true` does not stream: hashing needs the whole utterance.

    No weight depends on rounds, bucket_size or seed: a trained model takes others, and more of the first two come
    nearer to attention to all frames.
    """

    turns: ClassVar[bool] = True

    kind: Literal["lsh"] = "lsh"
    rounds: int = Field(4, ge=1, le=64)  # independent hashings; more rounds miss fewer of the frames that matter
    bucket_size: int = Field(32, ge=1)  # frames per bucket on average, and per chunk
    seed: int = Field(0, ge=0, lt=2**32)  # of the rotations
    # Queries are the keys. false: keys of their own, which a model trained with softmax attention has; slower, since
    # only PyTorch computes it, and not causal.
    shared_qk: bool = True

    @model_validator(mode="after")
    def _check(self) -> LshConfig:
        if self.causal and not self.shared_qk:
            raise ValueError("causal: true needs shared_qk: true: a query may otherwise meet no key before it")
        return self

    def meaning(self) -> dict[str, Any]:
        return SoftmaxConfig(causal=self.causal, shared_qk=self.shared_qk).meaning()  # the limit of many rounds

    def build(self, dim: int, heads: int, rotary: bool = False) -> LshAttention:
        return LshAttention(dim, heads, self.causal, self.rounds, self.bucket_size, self.seed, rotary, self.shared_qk)


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
        shared_qk: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.bucket_size, self.rotary = heads, causal, bucket_size, rotary
        self.parts = 2 if shared_qk else 3
        self.project = nn.Linear(dim, self.parts * dim)
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
        *qk, v = self.project(x).unflatten(-1, (self.parts, self.heads, -1)).unbind(2)
        if self.rotary:
            table = rotary_table(x.shape[1], v.shape[-1], device=x.device)
            qk = [turn(t, table) for t in qk]
        columns = min(MAX_COLUMNS, -(-x.shape[1] // (2 * self.bucket_size)))
        rotation = self.rotation[..., :columns]
        if self.training:
            rotation = torch.randn_like(rotation)
        y = lsh_attention(qk[0], v, lengths, rotation, self.bucket_size, self.causal, *qk[1:])
        return self.output(y.flatten(2).to(x.dtype))
