"""Rotary positions: a query and a key are turned by angles that grow with their time, so that only the lag counts.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equations 14-16 and 34.
"""

from __future__ import annotations

from torch import Tensor

from asr.kernels.features import rotary_table, turn


def rotate(x: Tensor, start: int = 0, base: float = 10000.0) -> Tensor:
    """(…, time, D) → the same shape, each pair (x_i, x_{i + D/2}) turned by (start + t) · base^(−2i/D).

    D must be even. Cosines and sines are float32 whatever the dtype of x.
    """
    table = rotary_table(x.shape[-2], x.shape[-1], start, base, device=x.device)
    return turn(x.unsqueeze(-2), table).squeeze(-2)
