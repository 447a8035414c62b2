"""Sinusoidal positions, added to the frames before the first block (rotary ones are turned inside the mixers)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal(time: int, dim: int, device: torch.device | None = None, start: int = 0) -> Tensor:
    """(time, dim) float32: sin in even columns, cos in odd ones, wavelengths from 2π to 10000·2π frames.

    Row 0 is frame `start` of the utterance. Angles are computed in float64: large ones have few digits after the point.
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    rate = torch.exp(torch.arange(0, dim, 2, device=device, dtype=torch.float64) * (-math.log(10000.0) / dim))
    angle = torch.arange(start, start + time, device=device)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :dim].float()
