"""Sequences 0 w 0 w: what comes first is random, what comes second is known to who remembers the first."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from copying.config import TaskConfig


class Sequences(NamedTuple):
    """A batch, padded with 0 to `max_length` - 1."""

    symbols: Tensor  # (batch, time): the sequences without their last symbol
    lengths: Tensor  # (batch,): 2 |w| + 1
    targets: Tensor  # (batch, time): the symbol after each
    second: Tensor  # (batch, time) bool: where the target belongs to the second w


def draw(task: TaskConfig) -> Sequences:
    """New sequences, from torch's global generator."""
    half = task.max_length // 2 - 1
    lengths = torch.randint(max(1, task.max_length // 4), half + 1, (task.batch, 1))
    word = torch.randint(1, task.symbols + 1, (task.batch, half))
    time = torch.arange(task.max_length)
    place = time % (lengths + 1)  # in 0 w: 0 is the separator
    whole = torch.cat([torch.zeros(task.batch, 1, dtype=torch.long), word], 1).gather(1, place)
    whole = whole.masked_fill(time >= 2 * (lengths + 1), 0)
    second = (time > lengths + 1) & (time < 2 * (lengths + 1))
    return Sequences(whole[:, :-1], 2 * lengths[:, 0] + 1, whole[:, 1:], second[:, 1:])
