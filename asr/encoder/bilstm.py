"""The paper's recurrent baseline: a stack of bidirectional LSTM layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.attention.directions import reverse
from asr.encoder.config import BilstmConfig
from asr.encoder.dropout import Dropout


class BilstmEncoder(nn.Module):
    """(batch, time, input), (batch,) → (batch, time, 2 · hidden).

    Each direction is an LSTM of its own; the backward one runs over rows reversed within their own length, so that it
    starts at each utterance's own last frame. Packed sequences would do the same, but torch's backward pass over rows
    of unequal length takes time quadratic in their length on a CPU.
    """

    def __init__(self, config: BilstmConfig, input_dim: int) -> None:
        super().__init__()
        self.width = 2 * config.hidden
        inputs = [input_dim] + [self.width] * (config.layers - 1)
        self.ahead = nn.ModuleList(nn.LSTM(dim, config.hidden, batch_first=True) for dim in inputs)
        self.back = nn.ModuleList(nn.LSTM(dim, config.hidden, batch_first=True) for dim in inputs)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if x.shape[0] == 0 or x.shape[1] == 0:
            return x.new_zeros(x.shape[0], x.shape[1], self.width)
        for ahead, back in zip(self.ahead, self.back, strict=True):
            y = reverse(back(reverse(x, lengths))[0], lengths)
            x = torch.cat([ahead(x)[0], y], -1)
            x = self.dropout(x)
        return x
