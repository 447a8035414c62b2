"""One block of the encoder: mixer, optional gated depth-wise convolution, feed-forward; each has a residual and a norm.

`block: transformer` (Vaswani et al., 2017) has these three. `macaron` (Lu et al., "Understanding and Improving
Transformer From a Multi-Particle Dynamic System Point of View", 2019) has a feed-forward on both sides, each with half
its weight. `conformer` (Gulati et al., "Conformer", 2020, section 2.4) is that with the convolution and a last norm:

    x ← x + ½ FFN(x);   x ← x + mixer(x);   x ← x + convolution(x);   x ← x + ½ FFN(x);   layer norm
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from asr.attention.mixer import Mixer
from asr.encoder.config import TransformerConfig
from asr.encoder.convolution import GatedConvolution
from asr.encoder.dropout import Dropout, Residual


class BlockState(NamedTuple):
    """What a streaming block remembers: its mixer's state, and its convolution's last inputs if it has one."""

    mixer: Any
    convolution: Tensor | None


class Block(nn.Module):
    """(batch, time, dim), (batch,) → (batch, time, dim).

    `norm: pre` is x + f(norm(x)) (Xiong et al. 2020), `post` is norm(x + f(x)) (Vaswani et al. 2017).

    Args:
        looks_back: the convolution sees only the past.
        left_out: probability that a residual branch is left out for an utterance; see `Residual`.

    Attributes:
        causal: no frame sees a later one.
        streams: `step` continues from a state.
    """

    def __init__(
        self, config: TransformerConfig, mixer: Mixer, looks_back: bool = False, left_out: float = 0.0
    ) -> None:
        super().__init__()
        dim = config.dim
        self.pre = config.norm == "pre"
        self.first = None if config.block == "transformer" else _feedforward(config)
        self.mixer = mixer
        self.convolution = GatedConvolution(dim, config.convolution, looks_back) if config.convolution else None
        self.feedforward = _feedforward(config)
        parts = (self.first, self.mixer, self.convolution, self.feedforward)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for part in parts if part is not None)
        self.last = nn.LayerNorm(dim) if config.block == "conformer" else nn.Identity()
        self.residual = Residual(config.dropout, left_out)
        sees_ahead = self.convolution is not None and not looks_back
        self.causal, self.streams = mixer.causal and not sees_ahead, mixer.streams and not sees_ahead

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        convolution = self.convolution
        return self._through(
            x,
            lambda t: self.mixer(t, lengths),
            None if convolution is None else lambda t: convolution(t, lengths),
        )

    def initial_state(self, batch: int) -> BlockState:
        convolution = None if self.convolution is None else self.convolution.initial_state(batch)
        return BlockState(self.mixer.initial_state(batch), convolution)

    def step(self, x: Tensor, state: BlockState) -> tuple[Tensor, BlockState]:
        """The next frames, (batch, time, dim), any number of them → the same shape, and the state after them."""
        mixed, convolved = state

        def mix(t: Tensor) -> Tensor:
            nonlocal mixed
            t, mixed = self.mixer.step(t, mixed)
            return t

        def convolve(t: Tensor) -> Tensor:
            nonlocal convolved
            t, convolved = self.convolution.step(t, convolved)  # type: ignore[union-attr, arg-type]
            return t

        x = self._through(x, mix, None if self.convolution is None else convolve)
        return x, BlockState(mixed, convolved)

    def _through(
        self, x: Tensor, mix: Callable[[Tensor], Tensor], convolve: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        half = 1.0 if self.first is None else 0.5
        parts = [(self.first, half), (mix, 1.0), (convolve, 1.0), (self.feedforward, half)]
        present = [(part, weight) for part, weight in parts if part is not None]
        for (part, weight), norm in zip(present, self.norms, strict=True):
            if self.pre:
                x = self.residual(x, part(norm(x)), weight)
            else:
                x = norm(self.residual(x, part(x), weight))
        return self.last(x)


def _feedforward(config: TransformerConfig) -> nn.Module:
    parts = {  # named as checkpoints have them: the activation, once a part of its own, was the second
        "0": nn.Linear(config.dim, config.feedforward),
        "2": Dropout(config.dropout, config.activation),
        "3": nn.Linear(config.feedforward, config.dim),
    }
    return nn.Sequential(OrderedDict(parts))
