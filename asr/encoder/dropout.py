"""Dropout whose random bits are cheap on a CPU.

torch's CPU generator spends a whole draw on every element, which makes dropout a tenth of a training step. Here eight
elements share one 64-bit draw, so that the probability is rounded to a multiple of 1/256.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        return x * keep_mask(x, self.p)


def keep_mask(x: Tensor, p: float) -> Tensor:
    """A tensor like x of zeros (share p, to the nearest 1/256) and 1 / (1 − p), from torch's global generator."""
    dropped = min(255, max(1, round(p * 256)))
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return keep.to(x.dtype).mul_(256 / (256 - dropped))
