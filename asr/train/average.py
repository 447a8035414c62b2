"""The mean of the weights of several epochs: `averaged.pt`, which decodes in place of `best.pt`.

Izmailov et al., "Averaging Weights Leads to Wider Optima", 2018, and the usual practice of averaging the last or best
checkpoints (Vaswani et al. 2017, section 6.1). The epochs it is made from lie as `epoch-0007.pt` in the experiment
folder. Only parameters are averaged; buffers, such as favor's random directions, are those of the latest epoch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.errors import DataError
from asr.recipe_loader import recipe_from_dict
from asr.train.checkpoint import load_checkpoint, save_checkpoint
from asr.train.config import AverageConfig
from asr.wording import counted

Kept = list[list[Any]]
"""[dev PER, dev loss, epoch] of each epoch whose weights are kept, in the order of epochs; plain, for a checkpoint."""


def epoch_file(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:04d}.pt"


def keep(config: AverageConfig, kept: Kept, per: float, loss: float, epoch: int) -> Kept:
    """What is kept after one more validation."""
    if config.kind == "last":
        return [*kept, [per, loss, epoch]][-config.count :]
    if config.kind == "best" and math.isfinite(per):
        best = sorted([*kept, [per, loss, epoch]])[: config.count]
        return sorted(best, key=lambda one: one[2])
    return kept


def prune(folder: Path, epochs: Collection[int]) -> None:
    """Remove the weights of all epochs but these."""
    wanted = {epoch_file(folder, epoch) for epoch in epochs}
    for file in set(folder.glob("epoch-*.pt")) - wanted:
        file.unlink()


def mean_weights(checkpoints: Sequence[dict[str, Any]], parameters: Collection[str]) -> dict[str, Any]:
    """The `model` of an averaged checkpoint: the mean of the parameters named, the rest from the last checkpoint."""
    mean = dict(checkpoints[-1]["model"])
    for name in parameters:
        total = torch.stack([one["model"][name].double() for one in checkpoints]).mean(0)
        mean[name] = total.to(mean[name].dtype)
    return mean


def averaged_content(folder: Path, epochs: Sequence[int]) -> dict[str, Any]:
    """What `averaged.pt` holds for these epochs.

    Raises:
        DataError: the weights of one are missing or damaged.
    """
    checkpoints = [load_checkpoint(epoch_file(folder, epoch)) for epoch in sorted(epochs)]
    latest = checkpoints[-1]
    recipe = recipe_from_dict(latest["recipe"], str(folder))
    model = CtcModel(recipe.model, recipe.features.dim, len(TokenTable.from_state(latest["tokens"])))
    names = [name for name, _ in model.named_parameters()]
    which = f"average of {'epoch' if len(epochs) == 1 else 'epochs'} {', '.join(map(str, sorted(epochs)))}"
    return {**latest, "model": mean_weights(checkpoints, names), "weights": which, "dev_per": None}


def average_experiment(folder: Path, count: int, by: Literal["best", "last"]) -> str:
    """Write `averaged.pt` from the best or last `count` epochs that the training kept; says which they are.

    Raises:
        DataError: fewer are there.
    """
    epochs = sorted(int(m[1]) for f in folder.glob("epoch-*.pt") if (m := re.fullmatch(r"epoch-(\d+)\.pt", f.name)))
    if len(epochs) < count:
        raise DataError(
            f"{folder}: has the weights of {counted(len(epochs), 'epoch')}, not of {count}; train with "
            f"training.average='{{kind: {by}, count: {count}}}' to keep them"
        )
    if by == "best":
        pers = {epoch: load_checkpoint(epoch_file(folder, epoch))["dev_per"] for epoch in epochs}
        epochs = sorted(epochs, key=lambda epoch: (not math.isfinite(pers[epoch]), pers[epoch], epoch))
        chosen = epochs[:count]
    else:
        chosen = epochs[-count:]
    content = averaged_content(folder, chosen)
    save_checkpoint(folder / "averaged.pt", content)
    return str(content["weights"])
