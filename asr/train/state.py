"""Everything a training works on, and how it goes into a checkpoint and comes back."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from asr.data.batches import plan_batches
from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.recipe_loader import recipe_to_dict
from asr.train.average import Kept
from asr.train.ema import Ema
from asr.train.exchange import GradientExchange
from asr.train.measure import Stopwatch, give_back_freed_memory, own_memory_mb
from asr.train.optimise import Schedule
from asr.train.precision import Mixed
from asr.train.run import versions
from asr.train.sets import LoadedSet
from asr.train.world import World


@dataclass
class Counters:
    """Where the run stands: all that is needed, beside weights and optimiser, to go on as if it had never stopped."""

    epoch: int = 0  # epochs finished
    group: int = 0  # steps made in the current epoch
    bad_steps: int = 0  # non-finite losses or gradients in a row
    skipped: int = 0  # and in all
    overflows: int = 0  # steps left out because float16's loss scale was too large
    best_per: float = math.inf
    best_loss: float = math.inf
    best_epoch: int = 0
    waited: int = 0  # validations since the best one
    kept: Kept = field(default_factory=list)  # epochs whose weights are there to be averaged
    elapsed: float = 0.0  # seconds of training and validation in the epochs finished
    loss_sum: float = 0.0  # of the current epoch, as are all below
    tokens: int = 0
    frames: int = 0
    grad_norm: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)  # the terms of the loss, as loss_sum
    seconds: dict[str, float] = field(default_factory=dict)  # before the latest checkpoint

    @property
    def loss(self) -> float:
        """Nats per reference token over the current epoch's steps; NaN before the first that was finite."""
        return self.loss_sum / self.tokens if self.tokens else math.nan

    def add(self, loss_sum: float, parts: dict[str, float], tokens: int, grad_norm: float) -> None:
        """What a step that was made has to say."""
        self.loss_sum += loss_sum
        self.tokens += tokens
        self.grad_norm += grad_norm
        self.parts = {name: self.parts.get(name, 0.0) + value for name, value in parts.items()}

    def new_epoch(self) -> None:
        self.group = self.tokens = self.frames = 0
        self.loss_sum = self.grad_norm = 0.0
        self.seconds, self.parts = {}, {}


@dataclass
class State:
    """What the loop works on. `steps` limits an epoch to its first steps, where a recipe is only tried."""

    recipe: Recipe
    world: World
    device: torch.device
    tokens: TokenTable
    train: LoadedSet
    dev: LoadedSet
    model: CtcModel
    optimiser: torch.optim.Optimizer
    schedule: Schedule
    counters: Counters
    watch: Stopwatch
    mixed: Mixed
    ema: Ema | None = None
    steps: int | None = None
    limit_mb: float | None = None  # of memory on a CPU, where `training.batch_frames` is `auto`
    saved_at: float = field(default_factory=lambda: time.monotonic())

    @cached_property
    def exchange(self) -> GradientExchange:
        """Of the model's gradients, between the processes."""
        return GradientExchange(self.world, self.model.parameters())

    def groups(self, epoch: int) -> list[list[list[int]]]:
        """The batches of an epoch in groups of `accumulate`, one optimiser step each; the last may be smaller."""
        config = self.recipe.training
        frames = self.train.frames_of(self.draws(epoch))
        batches = plan_batches(frames, config.frames_per_batch // config.views, self.recipe.seed, epoch, self.train.ids)
        return [batches[i : i + config.accumulate] for i in range(0, len(batches), config.accumulate)][: self.steps]

    def draws(self, epoch: int) -> str:
        """What the augmentation of an epoch follows from, beside the utterance; see `asr.train.draws`."""
        return f"{self.recipe.seed}/{epoch}"

    def end(self) -> str | None:
        """Why the training ends before another epoch; None: it goes on."""
        config, counters = self.recipe.training, self.counters
        if counters.epoch >= config.epochs:
            return "finished"
        if config.early_stop is not None and counters.waited >= config.early_stop:
            return "early_stop"
        return "max_minutes" if self.out_of_time(counters.elapsed) else None

    def out_of_time(self, elapsed: float) -> bool:
        """Whether so many seconds of training are all that it may take."""
        minutes = self.recipe.training.max_minutes
        return minutes is not None and elapsed >= 60 * minutes

    @property
    def seconds(self) -> dict[str, float]:
        """Of the current epoch, by name."""
        before, now = self.counters.seconds, self.watch.seconds
        return {k: before.get(k, 0.0) + now.get(k, 0.0) for k in {**before, **now}}

    @property
    def train_seconds(self) -> float:
        """Of the current epoch, in training steps alone: no validation, no checkpoints."""
        return sum(v for k, v in self.seconds.items() if k not in ("validation", "checkpoints"))

    @property
    def elapsed(self) -> float:
        """Seconds of training, validation and checkpoints so far; nothing between a stop and `--resume`."""
        return self.counters.elapsed + sum(self.seconds.values())

    @property
    def spent(self) -> float:
        """The share of `max_minutes` that has gone; 0 where there is no limit."""
        minutes = self.recipe.training.max_minutes
        return self.elapsed / (60 * minutes) if minutes else 0.0

    @property
    def frames_per_second(self) -> float:
        return self.counters.frames / self.train_seconds if self.train_seconds else 0.0

    @property
    def save_due(self) -> bool:
        minutes = self.recipe.training.save_minutes
        return minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes

    def saved(self) -> None:
        """A checkpoint was written now."""
        self.saved_at = time.monotonic()

    def keep_within_memory(self) -> None:
        """Freed memory is kept for the next step, but fragments of many shapes add up; at the limit it is given back.

        What a step itself takes stays within the limit, as `auto` has measured.
        """
        if self.limit_mb is not None and own_memory_mb() > self.limit_mb:
            give_back_freed_memory()

    def decoding_weights(self) -> AbstractContextManager[None]:
        """Within the block the model has the weights that validate and decode: the moving average, if there is one."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def content(self) -> dict[str, Any]:
        """What a checkpoint needs so that others can decode with it."""
        return {
            "recipe": recipe_to_dict(self.recipe),
            "tokens": self.tokens.state(),
            "cmvn": self.train.cmvn.state_dict(),
            "model": self.model.state_dict(),
            "epoch": self.counters.epoch,
            "dev_per": self.counters.best_per,
            "weights": f"{'moving average' if self.ema else 'weights'} of epoch {self.counters.epoch}",
            "versions": versions(),
        }

    def resumable_content(self) -> dict[str, Any]:
        """`content`, and what going on needs. Of randomness there is nothing to keep, see `asr.train.draws`."""
        self.watch.settle()
        training = {
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "counters": {**vars(self.counters), "seconds": self.seconds},
            "data": [self.train.fingerprint, self.dev.fingerprint],
            "ema": self.ema.state_dict() if self.ema else None,
            "mixed": self.mixed.state_dict(),
        }
        return {**self.content(), "training": training}

    def restore(self, saved: dict[str, Any]) -> None:
        training = saved["training"]
        self.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(training["optimiser"])
        self.schedule.load_state_dict(training["schedule"])
        self.counters = Counters(**training["counters"])
        self.mixed.load_state_dict(training.get("mixed", {}))
        if self.ema:
            self.ema.load_state_dict(training["ema"])
