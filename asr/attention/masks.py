"""Which frames of a padded batch are real."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.kernels import zero_padding

__all__ = ["frame_mask", "zero_padding"]


def frame_mask(lengths: Tensor, time: int) -> Tensor:
    """(batch,) → (batch, time) bool, True for real frames.

    Example:
        >>> frame_mask(torch.tensor([2, 0]), 3).tolist()
        [[True, True, False], [False, False, False]]
    """
    return torch.arange(time, device=lengths.device) < lengths[:, None]
