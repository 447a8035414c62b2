"""Rotary positions: a query and a key are turned by angles that grow with their time, so that only the lag counts.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equations 14-16 and 34.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, start: int = 0, base: float = 10000.0) -> Tensor:
    """(…, time, D) → the same shape, each pair (x_i, x_{i + D/2}) turned by (start + t) · base^(−2i/D).

    D must be even. Angles are computed in float32 whatever the dtype of x.
    """
    time, half = x.shape[-2], x.shape[-1] // 2
    rate = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(start, start + time, device=x.device, dtype=torch.float32)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
