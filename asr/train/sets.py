"""A manifest made ready for training or scoring: features, targets, and the list of what had to be left out."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from sys import intern

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio.cmvn import Cmvn
from asr.data.compact import Names, Ragged
from asr.data.feasible import why_infeasible
from asr.data.manifest import Utterance, read_manifest
from asr.data.store import FeatureStore
from asr.data.store_plan import StorePlan, plan_store
from asr.data.tokens import TokenTable, encode_all
from asr.errors import DataError
from asr.recipe import Recipe
from asr.train.config import SpecAugmentConfig
from asr.train.spec_augment import spec_augment
from asr.upload import upload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """features (batch, frames, dim), lengths (batch,) in feature frames, and the target ids of every row.

    `frames` are the lengths once more, for the host: to ask a GPU for them is to wait until it has done its work.
    With two `views` the rows are those of all utterances of the first and then all of the second.
    """

    ids: list[str]
    features: Tensor
    lengths: Tensor
    frames: list[int]
    targets: list[list[int]]
    views: int = 1

    def to(self, device: torch.device) -> Batch:
        return replace(self, features=upload(self.features, device), lengths=upload(self.lengths, device))


@dataclass
class LoadedSet:
    """The usable utterances of one manifest. `dropped` (id → reason) holds all the others of it.

    Every process of a training holds it, so that it keeps what a step needs, in arrays, and no `Utterance`.
    """

    name: str
    ids: Sequence[str]
    speakers: list[str]  # each name is one object, however often it stands here
    targets: Sequence[list[int]]
    store: FeatureStore
    cmvn: Cmvn
    dropped: dict[str, str] = field(default_factory=dict)
    speeds: dict[float, FeatureStore] = field(default_factory=dict)  # what is trained on; empty: `store`

    @classmethod
    def of(
        cls,
        name: str,
        utterances: Sequence[Utterance],
        targets: Sequence[list[int]],
        store: FeatureStore,
        cmvn: Cmvn,
        dropped: dict[str, str] | None = None,
        speeds: dict[float, FeatureStore] | None = None,
    ) -> LoadedSet:
        """The set of these utterances, with a target for each."""
        ids, speakers = Names(u.id for u in utterances), [intern(u.speaker) for u in utterances]
        return cls(name, ids, speakers, Ragged(targets), store, cmvn, dropped or {}, speeds or {})

    @cached_property
    def frames(self) -> Sequence[int]:
        """Feature frames of every utterance."""
        return self.store.lengths(self.ids)

    @cached_property
    def fingerprint(self) -> int:
        """Changes with the ids, lengths and targets."""
        return zlib.crc32(repr((list(self.ids), list(self.frames), list(self.targets))).encode())

    def only(self, rows: Sequence[int], dropped: dict[str, str] | None = None) -> LoadedSet:
        """The set of these rows."""
        ids, speakers = Names(self.ids[row] for row in rows), [self.speakers[row] for row in rows]
        targets, dropped = Ragged([self.targets[row] for row in rows]), self.dropped if dropped is None else dropped
        return replace(self, ids=ids, speakers=speakers, targets=targets, dropped=dropped)

    def first(self, count: int) -> LoadedSet:
        """Its first utterances alone, at least one with tokens among them where there is one."""
        count = max(count, next((i + 1 for i, target in enumerate(self.targets) if target), 0))
        return self.only(range(min(count, len(self.ids))))

    def frames_of(self, seed: str) -> list[int]:
        """Feature frames of every utterance at the speed that it gets with this seed."""
        return [self._drawn(id, seed).frames(id) for id in self.ids] if self.speeds else list(self.frames)

    def batch(
        self,
        rows: Sequence[int],
        augment: SpecAugmentConfig | None = None,
        seed: str = "",
        views: int = 1,
        device: torch.device = CPU,
    ) -> Batch:
        """The utterances of these rows, normalised, padded with 0.

        Args:
            augment: the set is trained on; then each utterance has a speed, and masks that differ by view.
            seed: what the draws follow from, with the utterance's id.
        """
        ids = [self.ids[row] for row in rows]
        stores = [self.store if augment is None else self._drawn(id, seed) for id in ids]
        features = [self.cmvn.apply(s[i], self.speakers[r]) for s, i, r in zip(stores, ids, rows, strict=True)]
        frames = [len(x) for x in features] * views
        batch = Batch(
            ids * views,
            pad_sequence(features * views, batch_first=True),
            torch.tensor(frames),
            frames,
            [self.targets[row] for row in rows] * views,
            views,
        )
        moved = batch.to(device)
        if augment is None or not (augment.freq_masks or augment.time_masks):
            return moved
        places = [f"{seed}/{id}" + (f"/{view}" if view else "") for view in range(views) for id in ids]
        draws = [random.Random(place) for place in places]
        return replace(moved, features=spec_augment(moved.features, frames, augment, draws))

    def _drawn(self, id: str, seed: str) -> FeatureStore:
        """Where the utterance lies at the speed that it gets with this seed."""
        if not self.speeds:
            return self.store
        return self.speeds[random.Random(f"{seed}/{id}/speed").choice(list(self.speeds))]

    def batches_by_length(self, batch_frames: int) -> list[list[int]]:
        """Rows in batches of at most `batch_frames` padded frames (a longer utterance is alone), longest first."""
        frames = self.frames
        order = sorted(range(len(frames)), key=lambda r: -frames[r])
        batches: list[list[int]] = []
        for row in order:
            if batches and frames[batches[-1][0]] * (len(batches[-1]) + 1) <= batch_frames:
                batches[-1].append(row)
            else:
                batches.append([row])
        return batches


def plan_stores(
    recipe: Recipe, utterances: Sequence[Utterance], dither: bool = False, speeds: Sequence[float] = (1.0,)
) -> dict[float, StorePlan]:
    """The feature stores of a set by speed: the first is that of speed 1, from which statistics are taken.

    Raises:
        DataError: ids repeat, or there are no utterances.
    """
    assert recipe.data.features is not None, "load_recipe fills data.features"
    return {
        speed: plan_store(recipe.data.features, utterances, recipe.features, dither, speed)
        for speed in {1.0: None, **dict.fromkeys(speeds)}
    }


def load_set(
    recipe: Recipe,
    name: str,
    manifest: Path,
    tokens: TokenTable,
    cmvn: Cmvn | None = None,
    dither: bool = False,
    speeds: Sequence[float] = (1.0,),
    share: tuple[int, int] = (0, 1),
) -> LoadedSet:
    """Read a manifest, compute (or re-use) its features and encode its transcripts.

    cmvn: statistics of the training set; None estimates them here. Per-speaker statistics are always taken from the
    set itself, whose speakers are its own. dither: add the noise `features.dither` asks for; the set is trained on.
    speeds: at which it is trained on; statistics are those of speed 1. share: (rank, size), of the processes that load
    it together, and compute its features together.

    Raises:
        DataError: nothing usable is left, or words without pronunciation under `oov: error`.
    """
    utterances = read_manifest(manifest)
    stores = {
        speed: FeatureStore.of(plan, recipe.data.workers, share)
        for speed, plan in plan_stores(recipe, utterances, dither, speeds).items()
    }
    store = stores[1.0]
    encoded = encode_all(tokens, utterances)
    failed = {id: why for one in stores.values() for id, why in one.failed.items()}
    dropped = {**failed, **encoded.dropped}
    kept = [u for u in utterances if u.id not in dropped]
    if not kept:
        raise DataError(f"{manifest}: no usable utterance; the first reason: {next(iter(dropped.items()))}")
    if cmvn is None or recipe.features.cmvn == "speaker":
        cmvn = Cmvn.estimate(store, kept, recipe.features)
    perturbed = {speed: stores[speed] for speed in speeds} if list(speeds) != [1.0] else {}
    return LoadedSet.of(name, kept, [encoded.targets[u.id] for u in kept], store, cmvn, dropped, perturbed)


def keep_trainable(data: LoadedSet, recipe: Recipe, output_length: Callable[[int], int]) -> LoadedSet:
    """Leave out what cannot or should not be trained on: too short, too long, or too few frames for its tokens.

    With several speeds, what is so at any of them. A batch that is still to be found will hold the longest utterance.
    """
    config, dropped = recipe.data, dict(data.dropped)
    training = recipe.training
    whole, views = None if training.batch_is_open else training.frames_per_batch, training.views
    at_speeds: list[Sequence[int]] = [store.lengths(data.ids) for store in data.speeds.values()] or [data.frames]
    rows: list[int] = []
    for row, (id, target, frames, *lengths) in enumerate(
        zip(data.ids, data.targets, data.frames, *at_speeds, strict=True)
    ):
        seconds, fewest, most = frames * recipe.features.hop_ms / 1000, min(lengths), max(lengths)
        infeasible = why_infeasible(target, fewest, output_length)
        if not config.min_seconds <= seconds <= config.max_seconds:
            dropped[id] = f"{seconds:.2f} s, outside {config.min_seconds:g}..{config.max_seconds:g} s"
        elif whole is not None and most > whole // views:
            shared = f", shared by {views} views" if views > 1 else ""
            dropped[id] = f"{most} frames, more than training.batch_frames {whole}{shared}"
        elif infeasible:
            dropped[id] = infeasible
        else:
            rows.append(row)
    if not rows:
        raise DataError(f"{data.name}: no trainable utterance; the first reason: {next(iter(dropped.items()))}")
    return data.only(rows, dropped)
