"""The paper's recurrent baseline, a stack of bidirectional LSTM layers, and its causal sibling, which streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asr.attention.directions import reverse
from asr.attention.lstm import LstmState, advance, lstm_state, run
from asr.encoder.config import BilstmConfig
from asr.encoder.dropout import Dropout


class BilstmEncoder(nn.Module):
    """(batch, time, input), (batch,) → (batch, time, 2 · hidden); `kind: lstm` gives (batch, time, hidden).

    Each direction is an LSTM of its own; the backward one runs over rows reversed within their own length, so that it
    starts at each utterance's own last frame. Packed sequences would do the same, but torch's backward pass over rows
    of unequal length takes time quadratic in their length on a CPU. `kind: lstm` has only the forward ones.

    Attributes: `causal`, `streams` and `step_frames` as those of `TransformerEncoder`.
    """

    step_frames = 1

    def __init__(self, config: BilstmConfig, input_dim: int) -> None:
        super().__init__()
        self.causal = self.streams = config.kind == "lstm"
        self.width = config.hidden if self.causal else 2 * config.hidden
        inputs = [input_dim] + [self.width] * (config.layers - 1)

        def stack(inputs: list[int]) -> Any:  # mypy knows no ModuleList of nn.LSTM
            return nn.ModuleList(nn.LSTM(dim, config.hidden, batch_first=True) for dim in inputs)

        self.ahead, self.back = stack(inputs), stack([] if self.causal else inputs)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor, after: Sequence[int] = ()) -> Tensor:
        """`after`: numbers of layers, from 1 and rising; then (len(after), batch, time, width), the output of each."""
        outputs = []
        for number, ahead in enumerate(self.ahead, 1):
            y = run(ahead, x)  # of the causal stack too: padding comes after every real frame, which never sees it
            if not self.causal:
                y = torch.cat([y, reverse(run(self.back[number - 1], reverse(x, lengths)), lengths)], -1)
            x = self.dropout(y)
            if number in after:
                outputs.append(x)
        return torch.stack(outputs) if after else x

    def initial_state(self, batch: int) -> tuple[LstmState, ...]:
        """What the causal stack remembers before the first frame, layer by layer.

        Raises:
            ValueError: the stack is bidirectional.
        """
        if not self.causal:
            raise ValueError("a Bi-LSTM cannot stream; encoder kind: lstm can")
        return tuple(lstm_state(layer, batch) for layer in self.ahead)

    def step(self, x: Tensor, state: tuple[LstmState, ...]) -> tuple[Tensor, tuple[LstmState, ...]]:
        """The next frames, (batch, time, input), any number of them → (batch, time, hidden), and the state after them.

        Raises:
            ValueError: the stack is bidirectional.
        """
        if not self.causal:
            raise ValueError("a Bi-LSTM cannot stream; encoder kind: lstm can")
        after = []
        for layer, before in zip(self.ahead, state, strict=True):
            x, now = advance(layer, x, before)
            x = self.dropout(x)
            after.append(now)
        return x, tuple(after)
