"""What a training minimises: CTC at the output, and what a recipe puts beside it. In nats, summed over an utterance.

    L = (1 − w)·CTC + w·mean of CTC after inner layers        inter_ctc: Lee & Watanabe, 2021, equations 10-11
    L = mean of L over two views + weight·½·Σ_t [KL(p_b‖p_a) + KL(p_a‖p_b)]      consistency: Yao et al., CR-CTC, 2024

The inner layers share the output layer, and with it the last norm. Of each KL the first distribution is a target,
through which no gradient goes. Sums over the frames and tokens of an utterance, as CTC itself is; the loop divides all
by the reference tokens of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asr.attention.masks import frame_mask
from asr.ctc.loss import ctc_losses
from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.train.sets import Batch


class Losses(NamedTuple):
    """`total` (utterances,) is what is minimised; `parts` are its terms before they are weighted, the same shape."""

    total: Tensor
    parts: dict[str, Tensor]


def losses(model: CtcModel, batch: Batch, recipe: Recipe, blank: int) -> Losses:
    """Of every utterance of a batch, whose rows are all utterances of one view and then all of the next."""
    inter, consistency = recipe.training.inter_ctc, recipe.training.consistency
    after = (*recipe.inter_layers, recipe.model.encoder.depth) if inter else ()
    log_probs, lengths = model(batch.features, batch.lengths, after)
    outputs = log_probs if after else log_probs[None]  # (layers, rows, time, tokens)
    layers = len(outputs)
    known = torch.tensor(
        [model.output_length(n) for n in batch.frames]
    )  # `lengths`, without asking the device for them
    ctc = ctc_losses(outputs.flatten(0, 1), known.repeat(layers), batch.targets * layers, blank)
    ctc = ctc.unflatten(0, (layers, batch.views, -1)).mean(1)
    total, parts = ctc[-1], {"ctc": ctc[-1]}
    if inter:
        parts["inter_ctc"] = ctc[:-1].mean(0)
        total = (1 - inter.weight) * total + inter.weight * parts["inter_ctc"]
    if consistency:
        a, b = outputs[-1].unflatten(0, (2, -1))
        parts["consistency"] = symmetric_divergence(a, b, lengths[: len(a)])
        total = total + consistency.weight * parts["consistency"]
    return Losses(total, parts)


def symmetric_divergence(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """½·Σ_t [KL(b‖a) + KL(a‖b)] over the real frames: (batch,). The first of each pair gets no gradient.

    a, b: (batch, time, tokens) natural log. lengths: (batch,).
    """

    def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
        target = target.detach()
        return (target.exp() * (target - log_probs)).sum(-1)

    frames = 0.5 * (divergence(b, a) + divergence(a, b))
    return torch.where(frame_mask(lengths, a.shape[1]), frames, 0.0).sum(1)
