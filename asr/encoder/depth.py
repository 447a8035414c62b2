"""Depth that varies in training: whole blocks, or single utterances in them, are passed by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.upload import upload


class StochasticDepth(nn.Module):
    """Huang et al., "Deep Networks with Stochastic Depth", 2016: in training a residual branch is left out for an
    utterance with probability p, and else grows by 1 / (1 − p), so that its expectation is the branch itself.

    (batch, …) → the same shape. `linear` gives the p of every block: it grows from the input up to the p of the last.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @staticmethod
    def linear(p: float, blocks: int) -> list[float]:
        return [p * number / blocks for number in range(1, blocks + 1)]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = torch.rand(len(x), device="cpu") >= self.p  # on the CPU: the same draws wherever x lies
        return x * upload((keep / (1 - self.p)).to(x.dtype), x.device).view(-1, *[1] * (x.dim() - 1))


def passed_by(p: float) -> bool:
    """Whether a block is left out of this step, for the whole batch, with probability p.

    LayerDrop: Fan et al., "Reducing Transformer Depth on Demand with Structured Dropout", 2020. For training only.
    """
    return p > 0.0 and float(torch.rand((), device="cpu")) < p
