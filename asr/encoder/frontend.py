"""From feature frames to encoder frames: fewer of them, each of the encoder's width."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.masks import frame_mask, zero_padding
from asr.encoder.config import ConvFrontendConfig, FrontendConfig


class StackFrontend(nn.Module):
    """`factor` neighbouring frames become one vector, then a linear layer. Factor 1 keeps every frame (the paper).

    (batch, frames, features), (batch,) → (batch, ceil(frames / factor), dim), (batch,). The last group is filled up
    with zeros.
    """

    def __init__(self, features: int, dim: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.project = nn.Linear(features * factor, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = F.pad(zero_padding(x, lengths), (0, 0, 0, -x.shape[1] % self.factor))
        return self.project(x.unflatten(1, (-1, self.factor)).flatten(2)), self.output_length(lengths)

    def output_length(self, lengths):  # type: ignore[no-untyped-def]  # an int or a tensor of them
        return -(-lengths // self.factor)


class ConvFrontend(nn.Module):
    """Two-dimensional convolutions over time and frequency, kernel 3, each with stride 2 halves both (rounding up).

    (batch, frames, features), (batch,) → (batch, ceil(frames / factor), dim), (batch,). Padding is set to 0 before
    each convolution, so that an utterance sees the same zeros past its end alone and in a batch.
    """

    def __init__(self, features: int, dim: int, factor: int, channels: int) -> None:
        super().__init__()
        self.factor = factor
        self.steps = int(math.log2(factor))
        sizes = [1] + [channels] * self.steps
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel_size=3, stride=2, padding=1) for a, b in pairwise(sizes)
        )
        for _ in range(self.steps):
            features = -(-features // 2)
        self.project = nn.Linear(channels * features, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # Channels beside each other in memory: on CPUs torch's convolutions and their gradients take half the time.
        x = zero_padding(x, lengths)[:, None].to(memory_format=torch.channels_last)
        for number, convolution in enumerate(self.convolutions):
            if number:
                # Outside autograd: where this makes x 0, the ReLU lets no gradient through.
                x.detach().mul_(frame_mask(lengths, x.shape[2])[:, None, :, None].to(x.dtype))
                x = F.relu_(x)
            x, lengths = convolution(x), -(-lengths // 2)
        return self.project(F.relu_(x.transpose(1, 2).flatten(2))), lengths

    def output_length(self, lengths):  # type: ignore[no-untyped-def]  # an int or a tensor of them
        for _ in range(self.steps):
            lengths = -(-lengths // 2)
        return lengths


def build_frontend(config: FrontendConfig, features: int, dim: int) -> StackFrontend | ConvFrontend:
    if isinstance(config, ConvFrontendConfig):
        return ConvFrontend(features, dim, config.factor, config.channels)
    return StackFrontend(features, dim, config.factor)
