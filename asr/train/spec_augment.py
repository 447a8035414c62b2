"""SpecAugment: bands of frequency and stretches of time hidden from the encoder during training.

Park et al., "SpecAugment", 2019, without time warping; time masks limited to a share of the utterance (its adaptive
form, Park et al. 2020). Where the masks lie is drawn utterance by utterance, and they are laid over the whole batch at
once, on the device where it is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from asr.attention.masks import frame_mask
from asr.train.config import SpecAugmentConfig
from asr.upload import upload


def spec_augment(x: Tensor, frames: Sequence[int], config: SpecAugmentConfig, draws: Sequence[random.Random]) -> Tensor:
    """(batch, time, dim) padded with 0, real frames of every row → a copy with masks set to each utterance's mean.

    All randomness of a row comes from its own of `draws`.
    """
    time, dim = x.shape[1:]
    bands, stretches = [], []
    for count, draw in zip(frames, draws, strict=True):
        bands.append([_mask(draw, dim, config.freq_width) for _ in range(config.freq_masks)])
        widest = min(config.time_width, int(count * config.time_share))
        stretches.append([_mask(draw, count, widest) for _ in range(config.time_masks)])
    lengths = upload(torch.tensor(frames), x.device)
    hidden = _inside(bands, dim, x.device)[:, None, :] | _inside(stretches, time, x.device)[:, :, None]
    hidden = hidden & frame_mask(lengths, time)[..., None]
    mean = x.sum((1, 2)) / (lengths * dim).clamp(min=1)
    return torch.where(hidden, mean[:, None, None].to(x.dtype), x)


def _mask(draw: random.Random, size: int, widest: int) -> tuple[int, int]:
    """Begin and end of a mask of 0 to `widest` places among `size`."""
    width = draw.randint(0, min(widest, size))
    start = draw.randint(0, size - width)
    return start, start + width


def _inside(masks: list[list[tuple[int, int]]], size: int, device: torch.device) -> Tensor:
    """(batch, size): whether a place lies in any of the row's masks."""
    edges = upload(torch.tensor(masks, dtype=torch.long), device).view(len(masks), -1, 2)
    places = torch.arange(size, device=device)
    return ((places >= edges[..., :1]) & (places < edges[..., 1:])).any(1)
