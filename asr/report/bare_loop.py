"""The training loop as one would write it by hand around the same model: what the toolkit's own is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.train.compile import compile_blocks
from asr.train.optimise import build_optimiser
from asr.train.precision import DTYPES
from asr.train.state import State

Group = list[list[int]]  # rows of the training set, by batch, of one optimiser step
Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # features, lengths, targets end to end, their sizes


class BareLoop:
    """The model, loss and optimiser of a training, and nothing else: nothing is checked, counted or hidden by masks."""

    def __init__(self, state: State) -> None:
        self.state, config = state, state.recipe.training
        self.model = CtcModel(state.recipe.model, state.recipe.features.dim, len(state.tokens)).to(state.device)
        self.model.load_state_dict(state.model.state_dict())
        if config.compile:
            compile_blocks(self.model)
        self.optimiser = build_optimiser(config.optimiser, self.model)
        self.clip, self.dtype = config.clip, DTYPES[config.precision]

    def ready(self, groups: Sequence[Group]) -> list[list[Batch]]:
        """The batches of every group, on the device."""
        data, device, found = self.state.train, self.state.device, []
        for group in groups:
            batches = [data.batch(rows, device=device) for rows in group]
            found.append(
                [
                    (
                        batch.features,
                        batch.lengths,
                        torch.tensor([t for target in batch.targets for t in target], device=device),
                        torch.tensor([len(target) for target in batch.targets]),
                    )
                    for batch in batches
                ]
            )
        return found

    def __call__(self, groups: Sequence[Sequence[Batch]]) -> None:
        for group in groups:
            tokens = sum(len(targets) for _, _, targets, _ in group)
            for features, lengths, targets, sizes in group:
                with torch.autocast(features.device.type, self.dtype, enabled=self.dtype != torch.float32):
                    log_probs, frames = self.model(features, lengths)
                loss = F.ctc_loss(log_probs.transpose(0, 1), targets, frames, sizes, reduction="sum") / max(1, tokens)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)


def why_not(recipe: Recipe) -> str | None:
    """Why no bare loop stands beside the training: it has the loss of CTC alone, and no scale."""
    config = recipe.training
    named = {"inter_ctc": config.inter_ctc, "consistency": config.consistency, "float16": config.precision == "float16"}
    present = [name for name, value in named.items() if value]
    return f"no bare loop beside a training with {', '.join(present)}" if present else None
