"""The encoder as a stack of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asr.encoder.block import Block, BlockState
from asr.encoder.config import TransformerConfig
from asr.encoder.depth import StochasticDepth, passed_by
from asr.encoder.dropout import Dropout
from asr.encoder.positions import sinusoidal


class EncoderState(NamedTuple):
    """What a streaming encoder remembers: every block's state, from the input up, and the frames seen."""

    blocks: tuple[BlockState, ...]
    time: int = 0


class TransformerEncoder(nn.Module):
    """(batch, time, dim), (batch,) → (batch, time, dim); `width` is dim on both sides.

    Attributes:
        causal: no frame sees a later one: every mixer is causal, and with them the convolutions.
        streams: `step` continues from a state of fixed size: every mixer streams.
        step_frames: pieces given to `step` hold a multiple of this many frames; an utterance's last may be shorter.

    Example:
        >>> encoder = TransformerEncoder(TransformerConfig(attention=LinearConfig(causal=True))).eval()
        >>> y, state = encoder.step(torch.randn(1, 5, 192), encoder.initial_state(1))
        >>> y.shape, state.time
        (torch.Size([1, 5, 192]), 5)
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = config.dim
        self.sinusoidal = config.positions == "sinusoidal"
        self.dropout = Dropout(config.dropout)
        mixers = [mixer.build(config.dim, config.heads, config.positions == "rotary") for mixer in config.mixers]
        looks_back = all(mixer.causal or mixer.streams for mixer in mixers)
        shares = StochasticDepth.linear(config.stochastic_depth, len(mixers))
        self.blocks = nn.ModuleList(Block(config, m, looks_back, p) for m, p in zip(mixers, shares, strict=True))
        self.layer_drop = config.layer_drop
        # A Conformer's block ends with a norm itself, and so does one with `norm: post`.
        ends_raw = config.norm == "pre" and config.block != "conformer"
        self.norm = nn.LayerNorm(config.dim) if ends_raw else nn.Identity()
        self.causal = all(block.causal for block in self.blocks)
        self.streams = all(block.streams for block in self.blocks)
        self.step_frames = math.lcm(*(mixer.step_frames for mixer in mixers))

    def forward(self, x: Tensor, lengths: Tensor, after: Sequence[int] = ()) -> Tensor:
        """`after`: numbers of blocks, from 1 and rising; then (len(after), batch, time, dim), what each would put out
        if it were the last.
        """
        x, outputs = self._positioned(x, 0), []
        for number, block in enumerate(self.blocks, 1):
            if not (self.training and passed_by(self.layer_drop)):
                x = block(x, lengths)
            if number in after:
                outputs.append(self.norm(x))
        return torch.stack(outputs) if after else self.norm(x)

    def initial_state(self, batch: int) -> EncoderState:
        """Before the first frame.

        Raises:
            ValueError: a mixer cannot stream.
        """
        return EncoderState(tuple(block.initial_state(batch) for block in self.blocks))  # type: ignore[operator]

    def step(self, x: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """The next frames, (batch, time, dim), any number of them → the same shape, and the state after them.

        All pieces of an utterance together give what `forward` gives for the whole.
        """
        time = x.shape[1]
        x, states = self._positioned(x, state.time), []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = block.step(x, before)  # type: ignore[operator]
            states.append(after)
        return self.norm(x), EncoderState(tuple(states), state.time + time)

    def _positioned(self, x: Tensor, start: int) -> Tensor:
        if self.sinusoidal:
            x = x + sinusoidal(x.shape[1], x.shape[2], x.device, start).to(x.dtype)
        return self.dropout(x)
