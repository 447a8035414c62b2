"""A manifest made ready for training or scoring: features, targets, and the list of what had to be left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio.cmvn import Cmvn
from asr.data.feasible import split_feasible
from asr.data.manifest import Utterance, read_manifest
from asr.data.store import FeatureStore
from asr.data.tokens import TokenTable, encode_all
from asr.errors import DataError
from asr.recipe import Recipe
from asr.train.config import SpecAugmentConfig
from asr.train.spec_augment import spec_augment


@dataclass(frozen=True)
class Batch:
    """features (batch, frames, dim), lengths (batch,) in feature frames, and the target ids of every row."""

    ids: list[str]
    features: Tensor
    lengths: Tensor
    targets: list[list[int]]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids, self.features.to(device), self.lengths.to(device), self.targets)


@dataclass
class LoadedSet:
    """The usable utterances of one manifest. `dropped` (id → reason) holds all the others of it."""

    name: str
    utterances: list[Utterance]
    targets: list[list[int]]
    store: FeatureStore
    cmvn: Cmvn
    dropped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frames = [self.store.frames(u.id) for u in self.utterances]
        self.ids = [u.id for u in self.utterances]

    def first(self, count: int) -> LoadedSet:
        """Its first utterances alone, at least one with tokens among them where there is one."""
        count = max(count, next((i + 1 for i, target in enumerate(self.targets) if target), 0))
        return replace(self, utterances=self.utterances[:count], targets=self.targets[:count])

    def batch(self, rows: Sequence[int], augment: SpecAugmentConfig | None = None, seed: str = "") -> Batch:
        """The utterances of these rows, normalised, padded with 0. The draws of SpecAugment follow from seed and id."""
        features = []
        for row in rows:
            x = self.cmvn.apply(self.store[self.ids[row]], self.utterances[row].speaker)
            if augment is not None and (augment.freq_masks or augment.time_masks):
                x = spec_augment(x, augment, random.Random(f"{seed}/{self.ids[row]}"))
            features.append(x)
        lengths = torch.tensor([len(x) for x in features])
        return Batch(
            [self.ids[r] for r in rows],
            pad_sequence(features, batch_first=True),
            lengths,
            [self.targets[r] for r in rows],
        )

    def batches_by_length(self, batch_frames: int) -> list[list[int]]:
        """Rows in batches of at most `batch_frames` padded frames (a longer utterance is alone), longest first."""
        order = sorted(range(len(self.frames)), key=lambda r: -self.frames[r])
        batches: list[list[int]] = []
        for row in order:
            if batches and self.frames[batches[-1][0]] * (len(batches[-1]) + 1) <= batch_frames:
                batches[-1].append(row)
            else:
                batches.append([row])
        return batches


def load_set(
    recipe: Recipe, name: str, manifest: Path, tokens: TokenTable, cmvn: Cmvn | None = None, dither: bool = False
) -> LoadedSet:
    """Read a manifest, compute (or re-use) its features and encode its transcripts.

    cmvn: statistics of the training set; None estimates them here. Per-speaker statistics are always taken from the
    set itself, whose speakers are its own. dither: add the noise `features.dither` asks for; the set is trained on.

    Raises:
        DataError: nothing usable is left, or words without pronunciation under `oov: error`.
    """
    utterances = read_manifest(manifest)
    assert recipe.data.features is not None, "load_recipe fills data.features"
    store = FeatureStore.build(recipe.data.features, utterances, recipe.features, recipe.data.workers, dither)
    encoded = encode_all(tokens, utterances)
    dropped = {**store.failed, **encoded.dropped}
    kept = [u for u in utterances if u.id not in dropped]
    if not kept:
        raise DataError(f"{manifest}: no usable utterance; the first reason: {next(iter(dropped.items()))}")
    if cmvn is None or recipe.features.cmvn == "speaker":
        cmvn = Cmvn.estimate(store, kept, recipe.features)
    return LoadedSet(name, kept, [encoded.targets[u.id] for u in kept], store, cmvn, dropped)


def keep_trainable(data: LoadedSet, recipe: Recipe, output_length: Callable[[int], int]) -> LoadedSet:
    """Leave out what cannot or should not be trained on: too short, too long, or too few frames for its tokens."""
    config, dropped = recipe.data, dict(data.dropped)
    limit = recipe.training.batch_frames
    for utterance, frames in zip(data.utterances, data.frames, strict=True):
        seconds = frames * recipe.features.hop_ms / 1000
        if not config.min_seconds <= seconds <= config.max_seconds:
            dropped[utterance.id] = f"{seconds:.2f} s, outside {config.min_seconds:g}..{config.max_seconds:g} s"
        elif frames > limit:
            dropped[utterance.id] = f"{frames} frames, more than training.batch_frames {limit}"
    targets = dict(zip(data.ids, data.targets, strict=True))
    frames_of = dict(zip(data.ids, data.frames, strict=True))
    _, infeasible = split_feasible(targets, frames_of, output_length)
    dropped = {**infeasible, **dropped}
    kept = [u for u in data.utterances if u.id not in dropped]
    if not kept:
        raise DataError(f"{data.name}: no trainable utterance; the first reason: {next(iter(dropped.items()))}")
    return LoadedSet(data.name, kept, [targets[u.id] for u in kept], data.store, data.cmvn, dropped)
