"""Dropout, and the sum of a residual with a branch that is subject to it."""

from __future__ import annotations

from torch import Tensor, nn

from asr.encoder.depth import StochasticDepth
from asr.kernels import add_dropout, dropout
from asr.kernels.dropout import ACTIVATIONS


class Dropout(nn.Module):
    """Srivastava et al. 2014: in training each element becomes 0 with probability p, the others grow by 1 / (1 − p).

    Args:
        activation: what comes before; one of `asr.kernels.dropout.ACTIVATIONS`.
    """

    def __init__(self, p: float, activation: str = "identity") -> None:
        super().__init__()
        self.p, self.activation = p, activation

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.p:
            return dropout(x, self.p, self.activation)
        return ACTIVATIONS[self.activation](x)


class Residual(nn.Module):
    """x + weight · dropout(y), of which in training an utterance's y may be left out whole; see `StochasticDepth`."""

    def __init__(self, p: float, left_out: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.depth = Dropout(p), StochasticDepth(left_out)

    def forward(self, x: Tensor, y: Tensor, weight: float = 1.0) -> Tensor:
        if self.training and self.dropout.p and not self.depth.p:
            return add_dropout(x, y, self.dropout.p, weight)
        return x.add(self.depth(self.dropout(y)), alpha=weight)
