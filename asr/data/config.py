"""`data:` and `tokens:` in a recipe: which utterances, and what the encoder is asked to emit for them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from asr.config import Config, RecipePath


class DataConfig(Config):
    """Manifests (JSON lines, see asr.data.manifest) and the filters every set goes through."""

    train: RecipePath
    dev: RecipePath
    test: dict[str, RecipePath] = Field(default_factory=dict)
    features: RecipePath | None = None  # folder of the feature stores; None: `features` beside the train manifest
    min_seconds: float = Field(0.0, ge=0)  # shorter training utterances are listed and left out
    max_seconds: float = Field(36.0, gt=0)  # longer training utterances are listed and left out
    workers: int = Field(0, ge=0)  # processes that compute features; 0: one per core

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.min_seconds >= self.max_seconds:
            raise ValueError("min_seconds must be below max_seconds")
        return self


class PhonesConfig(Config):
    """Words become phones through a lexicon; manifests that carry `phones` are used as they are."""

    kind: Literal["phones"] = "phones"
    lexicon: RecipePath | None = None  # None: every utterance must carry `phones`
    stress: Literal["keep", "fold"] = "fold"  # one switch for lexicon, targets and scoring: AH0 AH1 AH2, or AH
    oov: Literal["error", "unk", "drop"] = "error"  # a word not in the lexicon: stop, `<unk>`, or drop the utterance
    silence: str | None = None  # a token put between words and at both ends; None: none


class SubwordsConfig(Config):
    """sentencepiece units learnt from the training transcripts."""

    kind: Literal["subwords"] = "subwords"
    size: int = Field(500, ge=8)
    model: Literal["unigram", "bpe"] = "unigram"


class CharactersConfig(Config):
    """The characters of the training transcripts; the space between words is the token `▁`."""

    kind: Literal["characters"] = "characters"


TokensConfig = Annotated[PhonesConfig | SubwordsConfig | CharactersConfig, Field(discriminator="kind")]
