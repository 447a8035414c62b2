"""The sequence mixers of a model, one by one, and what each of them gets as input for one utterance."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from asr.attention.directions import BothDirections
from asr.attention.lstm import run
from asr.attention.mixer import Mixer
from asr.encoder.bilstm import BilstmEncoder
from asr.encoder.model import CtcModel


@dataclass(frozen=True)
class Layer:
    """One mixer, or one direction of a mixer that runs in two; the backward one's time runs from the end.

    Attributes:
        number: from 1, as in the encoder.
        kind: the name of its class.
    """

    number: int
    module: Mixer | nn.LSTM
    direction: Literal["forward", "backward"] | None = None

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    @property
    def causal(self) -> bool:
        return isinstance(self.module, nn.LSTM) or self.module.causal

    @property
    def label(self) -> str:
        return f"{self.number}" + {None: "", "forward": " →", "backward": " ←"}[self.direction]

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, time, in) → (batch, time, out), every row of full length."""
        if isinstance(self.module, nn.LSTM):
            return run(self.module, x)
        return self.module(x, torch.full((len(x),), x.shape[1], device=x.device))  # type: ignore[no-any-return]

    def in_time(self, weights: Tensor) -> Tensor:
        """(heads, queries, keys) in the layer's own order → in the order of time."""
        return weights.flip(1, 2) if self.direction == "backward" else weights


def layers_of(model: CtcModel) -> list[Layer]:
    """From the input up; forward before backward."""
    encoder = model.encoder
    if isinstance(encoder, BilstmEncoder):
        pairs: list[tuple[Any, ...]] = list(zip(encoder.ahead, encoder.back, strict=True)) if encoder.back else []
        pairs = pairs or [(one,) for one in encoder.ahead]
    else:
        mixers = [block.mixer for block in encoder.blocks]
        pairs = [(m.ahead, m.back) if isinstance(m, BothDirections) else (m,) for m in mixers]
    found = []
    for number, modules in enumerate(pairs, 1):
        if len(modules) == 1:
            found.append(Layer(number, modules[0]))
        else:
            found += [Layer(number, modules[0], "forward"), Layer(number, modules[1], "backward")]
    return found


@torch.inference_mode()
def run_through(model: CtcModel, layers: Sequence[Layer], features: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Normalised features of one utterance, (frames, dim) → log-probabilities (time, tokens), and each layer's input.

    An input is (1, time, width), in the layer's own order of time.
    """
    inputs: dict[int, Tensor] = {}

    def keep(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            inputs[index] = args[0]

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            stack.enter_context(layer.module.register_forward_pre_hook(keep(index)))
        log_probs, lengths = model(features[None], torch.tensor([len(features)], device=features.device))
    return log_probs[0, : int(lengths[0])].clone(), [inputs[index].clone() for index in range(len(layers))]
