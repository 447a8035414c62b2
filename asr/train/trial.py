"""A training cut short, to try out a recipe on its own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """Epochs of at most `steps` optimiser steps, validated on the first `dev_utterances`.

    `after_step(epoch, step, of)` is called when a step is made and before it is saved; all count from 1.
    """

    steps: int
    dev_utterances: int
    after_step: Callable[[int, int, int], None] = lambda epoch, step, of: None
