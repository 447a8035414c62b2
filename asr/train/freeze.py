"""Parameters that a training leaves as they are."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from asr.errors import RecipeError


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Switch off the gradients of all parameters whose name fits a pattern, such as `frontend.*`; their numbers in all.

    Raises:
        RecipeError: a pattern fits no name, or nothing is left to train.
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        fitting = [name for name in named if fnmatchcase(name, pattern)]
        if not fitting:
            raise RecipeError(
                f"training.freeze: {pattern!r} fits no parameter; names are such as {', '.join(list(named)[:3])}"
            )
        for name in fitting:
            named[name].requires_grad_(False)
    frozen = [p for p in named.values() if not p.requires_grad]
    if len(frozen) == len(named):
        raise RecipeError("training.freeze: all parameters fit, so there is nothing to train")
    return sum(p.numel() for p in frozen)
