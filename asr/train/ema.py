"""An exponential moving average of the weights, which is what validates and decodes while the raw weights train.

    ema ← d·ema + (1 − d)·w  after every step,   d = min(decay, (1 + t) / (10 + t))  for t averages so far

Polyak & Juditsky 1992; the growing d, which forgets the first weights sooner, is that of TensorFlow's
ExponentialMovingAverage. Only parameters are averaged: a buffer, such as the random directions of favor, is what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Ema:
    """Holds the average of a model's parameters; `update` takes in their present values."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        named = dict(model.named_parameters())
        self._names, self._live = list(named), [p.detach() for p in named.values()]
        self._mean = [p.clone() for p in self._live]

    def update(self) -> None:
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._mean, self._live, 1 - d)
        self.updates += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model has the averaged weights, after it its own again."""
        own = [p.clone() for p in self._live]
        torch._foreach_copy_(self._live, self._mean)
        try:
            yield
        finally:
            torch._foreach_copy_(self._live, own)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "mean": dict(zip(self._names, self._mean, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        torch._foreach_copy_(self._mean, [state["mean"][name] for name in self._names])
