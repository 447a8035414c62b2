"""A training set of noise with the lengths of a real corpus: speed can be measured where there is no audio."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asr.audio.cmvn import Cmvn
from asr.audio.fbank import num_frames
from asr.data.manifest import Utterance, read_manifest
from asr.data.phones import PhoneTable
from asr.data.store import FeatureStore
from asr.data.token_table import BLANK
from asr.data.tokens import TokenTable, build_tokens, encode_all
from asr.errors import DataError
from asr.recipe import Recipe
from asr.train.sets import LoadedSet

PHONES, PER_PHONE = 71, 10  # CMUdict's with stress and a pause; units of 10 ms
BLOCK = 1 << 24  # values of noise, 64 MiB: more than a processor's cache


class NoiseStore(FeatureStore):
    """Gaussian noise in place of features: every utterance is a stretch of one block, so that any number fits."""

    def __init__(self, frames: dict[str, int], dim: int) -> None:
        self.dim, self.failed = dim, {}
        self._counts = frames
        rows = max(BLOCK // dim, 2 * max(frames.values()))
        self._noise = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))

    def frames(self, id: str) -> int:
        return self._counts[id]

    def __getitem__(self, id: str) -> Tensor:
        count = self._counts[id]
        first = zlib.crc32(id.encode()) % (len(self._noise) - count + 1)
        return self._noise[first : first + count]


def corpus(recipe: Recipe, manifest: Path, tokens: TokenTable | None = None) -> tuple[TokenTable, LoadedSet]:
    """The lengths and targets of a manifest, over noise; its audio is not read. `tokens`: made from it if not given.

    Raises:
        DataError: what `build_tokens` and `encode_all` raise, or nothing that can be used is in the manifest.
    """
    utterances = read_manifest(manifest)
    tokens = tokens or build_tokens(recipe.tokens, utterances)
    encoded = encode_all(tokens, utterances)
    kept = [u for u in utterances if u.id in encoded.targets and _frames(recipe, u, 1.0)]
    if not kept:
        raise DataError(f"{manifest}: no usable utterance; the first reason: {next(iter(encoded.dropped.items()), '')}")
    return tokens, _over_noise(recipe, kept, [encoded.targets[u.id] for u in kept])


def made_up(recipe: Recipe, centiseconds: Sequence[int]) -> tuple[TokenTable, LoadedSet]:
    """Utterances of these lengths, in units of 10 ms, each with a random phone for every 0.1 s."""
    draw = np.random.default_rng(0)
    tokens = PhoneTable([BLANK, *(f"p{n}" for n in range(PHONES))], None, {}, "fold", "error")
    utterances, targets = [], []
    for number, length in enumerate(centiseconds):
        seconds = length / 100 + (recipe.features.window_ms - recipe.features.hop_ms) / 1000
        utterances.append(Utterance(f"u{number}", Path("noise"), seconds, f"s{number % 100}", ""))
        targets.append(draw.integers(1, PHONES + 1, length // PER_PHONE).tolist())
    return tokens, _over_noise(recipe, utterances, targets)


def _over_noise(recipe: Recipe, utterances: list[Utterance], targets: list[list[int]]) -> LoadedSet:
    features = recipe.features
    stores: dict[float, FeatureStore] = {
        speed: NoiseStore({u.id: _frames(recipe, u, speed) for u in utterances}, features.dim)
        for speed in {1.0: None, **dict.fromkeys(recipe.training.speeds)}
    }
    plain = (torch.zeros(features.dim), torch.ones(features.dim))
    known = {"global": [""], "speaker": sorted({u.speaker for u in utterances})}
    cmvn = Cmvn(features.cmvn, dict.fromkeys(known.get(features.cmvn, ()), plain))
    speeds = {} if recipe.training.speeds == [1.0] else {s: stores[s] for s in recipe.training.speeds}
    return LoadedSet.of("noise", utterances, targets, stores[1.0], cmvn, {}, speeds)


def _frames(recipe: Recipe, utterance: Utterance, speed: float) -> int:
    return num_frames(round(utterance.duration / speed * recipe.features.sample_rate), recipe.features)
