"""Dropout whose random bits are cheap on a CPU.

torch's CPU generator spends a whole draw on every element, which makes dropout a tenth of a training step. Here eight
elements share one 64-bit draw, so that the probability is rounded to a multiple of 1/256.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.kernels import dropout


class Dropout(nn.Module):
    """Srivastava et al. 2014: in training each element becomes 0 with probability p, the others grow by 1 / (1 − p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        return dropout(x, draws, min(255, max(1, round(self.p * 256))))
