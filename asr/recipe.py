"""The recipe: one typed tree that says everything about a run. `asr.recipe_loader.load_recipe` reads it from YAML."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from asr.audio.config import FeaturesConfig
from asr.config import Config, RecipePath
from asr.data.config import DataConfig, PhonesConfig, TokensConfig
from asr.encoder.config import ModelConfig
from asr.train.config import TrainingConfig


class ScoringConfig(Config):
    # Tokens removed from reference and hypothesis alike before scoring; printed with the rate.
    ignore: list[str] = Field(default_factory=list)
    # What a phone reference is: a word's first pronunciation, as in training, or the one that fits the hypothesis best.
    pronunciations: Literal["first", "best"] = "first"
    bootstrap: int = Field(1000, ge=0)  # resamples of utterances behind the 95 % interval


class PublishedConfig(Config):
    """A result from the literature, printed beside ours by `asr compare`."""

    source: str
    per: float | None = None  # %, on the validation set
    epoch_seconds: float | None = None


class Recipe(Config):
    name: str = ""  # label in tables; empty: the recipe file's stem
    seed: int = Field(0, ge=0, lt=2**32)
    exp: RecipePath | None = None  # experiment folder; None: `exp/<name>` beside the recipe file
    data: DataConfig
    features: FeaturesConfig = FeaturesConfig()
    tokens: TokensConfig = PhonesConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    scoring: ScoringConfig = ScoringConfig()
    published: PublishedConfig | None = None

    def settled(self, found: int | None) -> Recipe:
        """With what `training.batch_frames: auto` has found, where the recipe leaves that open; None: as it is."""
        batch = self.training.batch_frames
        if found is None or isinstance(batch, int) or not self.training.batch_is_open:
            return self
        training = self.training.model_copy(update={"batch_frames": batch.model_copy(update={"found": found})})
        return self.model_copy(update={"training": training})

    @property
    def inter_layers(self) -> tuple[int, ...]:
        """The inner layers, from 1, after which `training.inter_ctc` takes the loss too."""
        inter, depth = self.training.inter_ctc, self.model.encoder.depth
        return () if inter is None else tuple(inter.layers or (depth // 2,))

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        depth, layers = self.model.encoder.depth, self.inter_layers
        if layers and depth == 1:
            raise ValueError("training.inter_ctc: a model of one layer has no inner layers; leave it out")
        if layers and not (all(1 <= n < depth for n in layers) and list(layers) == sorted(set(layers))):
            raise ValueError(
                f"training.inter_ctc.layers: {list(layers)} are not inner layers in rising order; of the model's "
                f"{depth} the last is the output's"
            )
        pictures = self.training.pictures
        if pictures and (pictures.layer or 1) > depth:
            raise ValueError(f"training.pictures.layer: {pictures.layer} is none of the model's {depth}")
        masks = self.training.spec_augment
        alike = not (masks.freq_masks or masks.time_masks or self.model.encoder.dropout)
        if self.training.consistency and alike:
            raise ValueError(
                "training.consistency: without training.spec_augment and dropout both views of an utterance are one"
            )
        return self
