"""Cepstral mean and variance normalisation (the field's name for it; here of log-mel features)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from asr.audio.config import FeaturesConfig
from asr.errors import DataError

if TYPE_CHECKING:
    from asr.data.store import FeatureStore

# Natural-log mel bands of speech have a variance of 5 to 20; a band below this is silent or pinned at the log's floor.
VARIANCE_FLOOR = 1e-3


class _Spoken(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def speaker(self) -> str: ...


class Cmvn:
    """Brings every feature column to mean 0 and variance 1; `kind` says over what.

    `none`: leaves features alone. `utterance`: over the utterance itself. `global`: over the training set. `speaker`:
    over everything the set given to `estimate` has of that speaker; a speaker not in it (or None) is normalised over
    the utterance itself. For offline evaluation, estimate on the evaluation set: its speakers are new.

    Variances are population variances about the mean in two passes, never below VARIANCE_FLOOR: a constant column
    becomes 0, and so does an utterance of one frame.
    """

    def __init__(self, kind: str, statistics: dict[str, tuple[Tensor, Tensor]] | None = None) -> None:
        """`statistics`: speaker (global: "") → mean (dim,) and inverse standard deviation (dim,), float32."""
        self.kind = kind
        self.statistics = statistics or {}

    @classmethod
    def estimate(cls, store: FeatureStore, utterances: Iterable[_Spoken], config: FeaturesConfig) -> Cmvn:
        """Statistics from the features of these utterances; those the store failed on are left out.

        Raises DataError if none is left and statistics are needed.
        """
        if config.cmvn not in ("global", "speaker"):
            return cls(config.cmvn)
        moments: dict[str, _Moments] = {}
        for utterance in utterances:
            if utterance.id not in store.failed:
                key = utterance.speaker if config.cmvn == "speaker" else ""
                moments.setdefault(key, _Moments()).add(store[utterance.id])
        if not moments:
            raise DataError(f"features.cmvn: {config.cmvn}: no utterance with features to take statistics from")
        return cls(config.cmvn, {key: moment.normaliser() for key, moment in moments.items()})

    def apply(self, features: Tensor, speaker: str | None = None) -> Tensor:
        """(frames, dim) → (frames, dim), a new tensor unless `kind` is "none"."""
        if self.kind == "none":
            return features
        known = self.statistics.get("" if self.kind == "global" else speaker or "")
        if known is not None:
            mean, inverse = known
            return (features - mean) * inverse
        if self.kind == "global":
            raise DataError("features.cmvn: global: there are no statistics; make them with Cmvn.estimate")
        centred = features - features.mean(dim=0)
        variance = centred.square().mean(dim=0)
        return centred.mul_(variance.clamp_(min=VARIANCE_FLOOR).rsqrt_())

    def state_dict(self) -> dict[str, Any]:
        """Plain types and tensors: `kind`, `speakers` (names), `mean` and `inverse` (speakers, dim)."""
        return {
            "kind": self.kind,
            "speakers": list(self.statistics),
            "mean": torch.stack([mean for mean, _ in self.statistics.values()]) if self.statistics else None,
            "inverse": torch.stack([inverse for _, inverse in self.statistics.values()]) if self.statistics else None,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Cmvn:
        """The inverse of `state_dict`."""
        rows = zip(state["mean"], state["inverse"], strict=True) if state["speakers"] else ()
        return cls(state["kind"], dict(zip(state["speakers"], rows, strict=True)))


class _Moments:
    """Count, mean and sum of squared deviations, merged utterance by utterance in float64.

    Source: Chan, Golub, LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, features: Tensor) -> None:
        features = features.double()
        count, mean = len(features), features.mean(dim=0)
        total = self.count + count
        shift = mean - self.mean
        self.squares = (
            self.squares + (features - mean).square().sum(dim=0) + shift.square() * (self.count * count / total)
        )
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def normaliser(self) -> tuple[Tensor, Tensor]:
        variance = torch.as_tensor(self.squares) / self.count
        return torch.as_tensor(self.mean).float(), variance.clamp(min=VARIANCE_FLOOR).rsqrt().float()
