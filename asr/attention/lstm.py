"""LSTM as a mixer: a gated recurrence, one frame after the other, and a linear layer back to the model's width.

    i, f, o = σ(W x_t + U h_{t-1} + b)      g = tanh(…)      c_t = f ⊙ c_{t-1} + i ⊙ g      h_t = o ⊙ tanh(c_t)

Hochreiter, Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers et al. 2000.

Cost O(N·hidden·(dim + hidden)), in N steps that cannot run side by side. State: 2 · hidden floats, whatever the length.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.attention.directions import DirectionalConfig
from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer


class LstmConfig(DirectionalConfig):
    """`attention: {kind: lstm}` in a recipe; the paper's stack is encoder kind `bilstm`."""

    kind: Literal["lstm"] = "lstm"
    hidden: int | None = Field(None, ge=1)  # cells of each direction; null: as many as the model is wide

    def build_causal(self, dim: int, heads: int, rotary: bool) -> LstmMixer:
        return LstmMixer(dim, self.hidden or dim)


class LstmState(NamedTuple):
    """What a layer remembers: its output `h` and its cells `c`, (batch, hidden) each."""

    h: Tensor
    c: Tensor


class LstmMixer(Mixer):
    """One causal LSTM layer over padded batches.

    Args:
        dim: model width.
        hidden: cells.

    Example:
        >>> LstmMixer(dim=192, hidden=64)(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    causal = streams = True

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.output = nn.Linear(hidden, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        # Padding comes after every real frame, so no real frame ever sees it.
        return self.output(run(self.lstm, zero_padding(x, lengths)))

    def initial_state(self, batch: int) -> LstmState:
        return lstm_state(self.lstm, batch)

    def step(self, x: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        y, state = advance(self.lstm, x, state)
        return self.output(y), state


def lstm_state(lstm: nn.LSTM, batch: int) -> LstmState:
    """The state of one layer before the first frame."""
    zeros = next(lstm.parameters()).new_zeros(batch, lstm.hidden_size)
    return LstmState(zeros, zeros)


def advance(lstm: nn.LSTM, x: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
    """One layer: the next frames, (batch, time, input), → (batch, time, hidden), and the state after them."""
    if x.shape[0] == 0 or x.shape[1] == 0:  # which torch refuses
        return x.new_zeros(*x.shape[:2], lstm.hidden_size), state
    with torch.autocast("cpu", enabled=False):  # few processors have a bfloat16 LSTM; torch stops on the others
        y, (h, c) = lstm(x.to(state.h.dtype), (state.h[None], state.c[None]))
    return y, LstmState(h[0].to(state.h.dtype), c[0].to(state.c.dtype))


def run(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """One layer from its first frame on: (batch, time, input) → (batch, time, hidden)."""
    return advance(lstm, x, lstm_state(lstm, x.shape[0]))[0]
