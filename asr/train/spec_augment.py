"""SpecAugment: bands of frequency and stretches of time hidden from the encoder during training.

Park et al., "SpecAugment", 2019, without time warping; time masks limited to a share of the utterance (its adaptive
form, Park et al. 2020).
"""

from __future__ import annotations

import random

from torch import Tensor

from asr.train.config import SpecAugmentConfig


def spec_augment(x: Tensor, config: SpecAugmentConfig, draws: random.Random) -> Tensor:
    """(frames, dim) → a copy with masks set to the utterance's mean. All randomness comes from `draws`."""
    frames, dim = x.shape
    fill = x.mean()
    x = x.clone()
    for _ in range(config.freq_masks):
        width = draws.randint(0, min(config.freq_width, dim))
        start = draws.randint(0, dim - width)
        x[:, start : start + width] = fill
    for _ in range(config.time_masks):
        width = draws.randint(0, min(config.time_width, int(frames * config.time_share)))
        start = draws.randint(0, frames - width)
        x[start : start + width] = fill
    return x
