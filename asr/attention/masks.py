"""Which frames of a padded batch are real."""

from __future__ import annotations

import torch
from torch import Tensor


def frame_mask(lengths: Tensor, time: int) -> Tensor:
    """(batch,) → (batch, time) bool, True for real frames.

    Example:
        >>> frame_mask(torch.tensor([2, 0]), 3).tolist()
        [[True, True, False], [False, False, False]]
    """
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, dim) with every frame past its row's length set to 0, whatever stood there (also NaN)."""
    return x.masked_fill(~frame_mask(lengths, x.shape[1])[..., None], 0.0)
