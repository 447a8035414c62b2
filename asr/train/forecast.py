"""How long a training has still to go."""

from __future__ import annotations

import math
from typing import NamedTuple

from asr.train.state import State


class Forecast(NamedTuple):
    """Seconds left, None before the first step of an epoch: of the epoch's steps; of the whole training."""

    epoch: float | None
    training: float | None


def forecast(state: State, steps: int) -> Forecast:
    """Within an epoch of so many steps.

    An epoch takes as long as the earlier ones on average, validation and checkpoints included; the first, which has
    none before it, as long as its steps alone. `training.max_minutes` counts as the loop does: the epoch that passes it
    is the last. When `early_stop` will end a training nobody knows.
    """
    counters, config = state.counters, state.recipe.training
    if not counters.group:
        return Forecast(None, None)
    rest = state.train_seconds / counters.group * (steps - counters.group)
    here = sum(state.seconds.values())
    whole = counters.elapsed / counters.epoch if counters.epoch else here + rest
    this = max(rest, whole - here)
    more = config.epochs - counters.epoch - 1
    if config.max_minutes is not None and whole > 0:
        unspent = 60 * config.max_minutes - state.elapsed - this
        more = min(more, max(0, math.ceil(unspent / whole)))
    return Forecast(rest, this + more * whole)


def spell(seconds: float) -> str:
    """`48 s`, `12 min`, `3 h 05 min`, `2 d 7 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
