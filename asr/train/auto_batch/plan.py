"""Finds `training.batch_frames: auto`: what bounds it, which sizes are tried, and what all processes agree on.

From below a batch is bounded by the longest utterance; from above by memory, and by two things that have nothing to do
with memory. A batch that is larger than the memory's limit fails, but one that is larger than learning needs is worse:
it trains to the end and learns less, since an epoch has fewer updates. `min_updates` protects small corpora, where the
whole set may fit the memory, and `max_frames` large ones.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch

from asr.data.tokens import TokenTable
from asr.errors import AsrError
from asr.recipe import Recipe
from asr.train.auto_batch.available import SPARE, limit_mb
from asr.train.auto_batch.search import Try, search
from asr.train.auto_batch.step import ChildTrials, DeviceTrials, Shape, Trials
from asr.train.auto_batch.worst import worst_batches
from asr.train.config import AutoBatchConfig
from asr.train.measure import own_memory_mb
from asr.train.sets import LoadedSet
from asr.train.world import World

log = logging.getLogger("asr")


@dataclass(frozen=True)
class Found:
    """`frames` is what `training.batch_frames` will be; `bound` what kept it from being more."""

    frames: int
    bound: str
    limit_mb: float  # of this process, `SPARE` of the memory left free
    tried: list[Try]
    seconds: float

    def record(self) -> dict[str, Any]:
        """Plain types, for log.jsonl."""
        return {**vars(self), "tried": [vars(one) for one in self.tried]}


def find_batch_frames(recipe: Recipe, world: World, train: LoadedSet, tokens: TokenTable) -> Found:
    """The largest batch that fits every process, within the recipe's bounds. All processes call it together.

    On GPUs each process tries its own; of processes that share a machine's memory the first tries for all.

    Raises:
        AsrError: not even the longest utterance fits, alone; the system does not tell how much memory there is.
    """
    world.place = "finding training.batch_frames"
    began = time.perf_counter()
    found: Found | None = None
    if world.device.type == "cuda" or world.local_rank == 0:
        found = _Finder(recipe, world, train, tokens).find()
    world.wait()
    everybody = [one for one in world.gather(found) if one is not None]
    frames, bound = min((one.frames, one.bound) for one in everybody)
    mine = found or everybody[0]
    log.info(
        "training.batch_frames: auto is %s frames, bounded by %s; found in %.0f s",
        f"{frames:,}", bound, time.perf_counter() - began,
    )  # fmt: skip
    return Found(frames, bound, mine.limit_mb, mine.tried, time.perf_counter() - began)


class _Finder:
    """Of one process."""

    def __init__(self, recipe: Recipe, world: World, train: LoadedSet, tokens: TokenTable) -> None:
        config = recipe.training
        assert isinstance(config.batch_frames, AutoBatchConfig)
        self.recipe, self.auto, self.train, self.tokens, self.world = recipe, config.batch_frames, train, tokens, world
        self.views = config.views
        stores = list(train.speeds.values()) or [train.store]
        at_speeds = [store.lengths(train.ids) for store in stores]
        self.frames = list(map(max, zip(*at_speeds, strict=True)))
        self.labels = [len(target) for target in train.targets]
        # Fewer batches than processes: each gets its part of every batch. More: it may get a whole one (`World.part`).
        self.parts = 1 if config.accumulate >= world.size else world.size
        self.least = max(self.frames) * self.views
        all_frames = min(map(sum, at_speeds)) * self.views
        bounds = {f"min_updates: {self.auto.min_updates}": all_frames // (self.auto.min_updates * config.accumulate)}
        if self.auto.max_frames is not None:
            bounds[f"max_frames: {self.auto.max_frames}"] = self.auto.max_frames // config.accumulate
        self.bound, self.most = min(bounds.items(), key=lambda item: item[1])
        if self.most < self.least:
            self.bound, self.most = f"the longest utterance, which is over {self.bound}", self.least

    def find(self) -> Found:
        limit, trials = self._limit()
        log.info(
            "training.batch_frames: auto looks from %s to %s frames (%s) for what takes at most %s MB",
            f"{self.least:,}", f"{self.most:,}", self.bound, f"{limit:,.0f}",
        )  # fmt: skip
        began = time.perf_counter()
        with trials as ready:
            frames, tried = search(lambda size: self._peak(ready, size), self.least, self.most, limit)
        if frames is None:
            raise AsrError(self._too_long(tried[0], limit))
        bound = self.bound if frames >= self.most else "memory"
        return Found(frames, bound, limit, tried, time.perf_counter() - began)

    def _limit(self) -> tuple[float, Trials]:
        """What may be used at most, in MB, and how to measure what is."""
        device, arguments = self.world.device, (self.recipe, len(self.tokens), self.tokens.blank)
        if device.type == "cuda":
            room = (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)) / 2**20
            return (1 - SPARE) * (self.auto.memory_mb or room), DeviceTrials(*arguments, device)
        try:
            own, limit = own_memory_mb(), limit_mb(self.auto)
        except OSError:
            raise AsrError(
                "training.batch_frames: auto reads the memory from /proc, which this system lacks; give a number"
            ) from None
        return limit, ChildTrials(*arguments, own, limit)

    def _peak(self, trials: Trials, size: int) -> float | None:
        batches = worst_batches(self.frames, self.labels, size // self.views)
        parts = [rows[:: self.parts] for rows in batches]
        shapes = [Shape([self.frames[r] for r in rows], [self.train.targets[r] for r in rows]) for rows in parts]
        peak = trials.peak_mb(shapes)
        sizes = ", ".join(f"{len(s.lengths)} × {s.lengths[0]}" for s in shapes)
        log.info("  %s frames: %s (%s)", f"{size:,}", "not enough" if peak is None else f"{peak:,.0f} MB", sizes)
        return peak

    def _too_long(self, tried: Try, limit: float) -> str:
        row = max(range(len(self.frames)), key=lambda r: self.frames[r])
        seconds = self.frames[row] * self.recipe.features.hop_ms / 1000
        takes = "takes more" if tried.peak_mb is None else f"takes {tried.peak_mb:,.0f} MB"
        given = f"{1 - SPARE:.0%} of " + ("what is free" if self.auto.memory_mb is None else "memory_mb")
        return (
            f"training.batch_frames: auto: nothing fits: a step on the longest utterance alone, {self.train.ids[row]} "
            f"({seconds:.1f} s), {takes}, and {limit:,.0f} MB may be used ({given}); lower data.max_seconds, or "
            "take a smaller model or another mixer"
        )
