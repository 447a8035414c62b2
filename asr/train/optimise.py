"""Optimisers by name, and the learning rate of every step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from asr.train.config import OneCycleConfig, OptimiserConfig, ScheduleConfig

OPTIMISERS: dict[str, Any] = {
    "radam": torch.optim.RAdam,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def build_optimiser(config: OptimiserConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay is for matrices: not for biases, the scales of norms, or what a module names in `undecayed`."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "undecayed", ())}
    decayed = [p for p in parameters if p.dim() > 1 and id(p) not in spared]
    spared = {id(p) for p in parameters} - {id(p) for p in decayed}
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if id(p) in spared], "weight_decay": 0.0},
    ]
    extra: dict[str, Any] = {"betas": config.betas, "fused": True}
    if config.name == "radam":  # of which torch has no fused form
        extra = {"betas": config.betas, "foreach": True, "decoupled_weight_decay": bool(config.weight_decay)}
    elif config.name == "sgd":
        extra = {"momentum": config.momentum, "nesterov": config.momentum > 0, "fused": True}
    return OPTIMISERS[config.name](groups, lr=config.lr, **extra)


class Schedule:
    """Sets the learning rate before every step: peak rate × warm-up × the schedule's own factor.

    Args:
        total_steps: optimiser steps of the whole run (cosine and one_cycle end there, or cosine with `by: time` where
            `spent` is 1).

    With `by: time` all models of a comparison end their schedule after the same time, however slow a step is. Two such
    runs are as equal as their clocks.
    """

    def __init__(self, config: ScheduleConfig, peak: float, total_steps: int) -> None:
        self.config, self.peak, self.total_steps = config, peak, total_steps
        self.step = 0
        self.factor = 1.0  # plateau: product of the cuts so far
        self.best = math.inf
        self.bad_epochs = 0

    def lr(self, spent: float = 0.0) -> float:
        """The rate of the step about to be made; `spent` is the share of `max_minutes` that has gone."""
        c = self.config
        if c.kind == "one_cycle":
            return self.peak * _cycle(c, self.step, self.total_steps)
        rise = min(1.0, (self.step + 1) / c.warmup) if c.warmup else 1.0
        if c.kind == "cosine":
            done = spent if c.by == "time" else (self.step - c.warmup) / max(1, self.total_steps - c.warmup)
            return self.peak * rise * _half_wave(1.0, c.final, done)
        if c.kind == "plateau":
            return max(c.min_lr, self.peak * rise * self.factor)
        if c.kind == "noam" and self.step >= c.warmup:
            return self.peak * math.sqrt(c.warmup / (self.step + 1))
        if c.kind == "step" and self.step >= c.after:
            rise *= c.factor
        return self.peak * rise

    def apply(self, optimiser: torch.optim.Optimizer, spent: float = 0.0) -> float:
        rate = self.lr(spent)
        for group in optimiser.param_groups:
            group["lr"] = rate
        self.step += 1
        return rate

    def observe(self, error: float) -> bool:
        """The dev error of a validation. Returns True when the rate is cut now. NaN and inf are no news."""
        if self.config.kind != "plateau" or not math.isfinite(error):
            return False
        if error < self.best:
            self.best, self.bad_epochs = error, 0
            return False
        self.bad_epochs += 1
        if self.bad_epochs <= self.config.patience:
            return False
        self.factor *= self.config.factor
        self.bad_epochs = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("step", "factor", "best", "bad_epochs")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)


def _half_wave(start: float, end: float, done: float) -> float:
    """From `start` to `end` along half a cosine; `done` below 0 or above 1 stays at the nearer of them."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, done))))


def _cycle(c: OneCycleConfig, step: int, total: int) -> float:
    """The share of the peak rate at a step; `step` counts from 0."""
    top = c.rise * total - 1
    if step < top:
        return _half_wave(c.start, 1.0, step / top)
    return _half_wave(1.0, c.final, (step - top) / max(1.0, total - 1 - top))
