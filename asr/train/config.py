"""`training:` in a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from asr.config import Config, RecipePath


class OptimiserConfig(Config):
    name: Literal["radam", "adam", "adamw", "sgd"] = "radam"
    lr: float = Field(1e-4, gt=0)
    weight_decay: float = Field(0.0, ge=0)  # of adam and sgd a term of the gradient, of the others decoupled from it
    betas: tuple[float, float] = (0.9, 0.999)  # of the Adam family
    momentum: float = Field(0.9, ge=0, lt=1)  # of sgd, in Nesterov's form


class ConstantConfig(Config):
    kind: Literal["constant"] = "constant"
    warmup: int = Field(0, ge=0)  # optimiser steps over which the rate rises linearly from 0


class PlateauConfig(Config):
    """The paper's rule: halve the rate when the validation error stops decreasing."""

    kind: Literal["plateau"] = "plateau"
    warmup: int = Field(0, ge=0)
    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(1, ge=0)  # epochs without a better dev PER before the rate is halved
    min_lr: float = Field(1e-7, ge=0)


class StepConfig(Config):
    """The rate is cut once, after so many optimiser steps."""

    kind: Literal["step"] = "step"
    warmup: int = Field(0, ge=0)
    after: int = Field(ge=1)  # optimiser steps at the full rate, warm-up included
    factor: float = Field(0.1, gt=0, lt=1)


class CosineConfig(Config):
    kind: Literal["cosine"] = "cosine"
    warmup: int = Field(500, ge=0)
    final: float = Field(0.01, ge=0, le=1)  # share of the peak rate left at the last step
    by: Literal["steps", "time"] = "steps"  # falls over the steps of all epochs, or over the time of max_minutes


class NoamConfig(Config):
    """Vaswani et al. 2017, section 5.3, with the peak rate in place of a scale by model width."""

    kind: Literal["noam"] = "noam"
    warmup: int = Field(4000, ge=1)  # steps; from there on the rate falls with the square root of the step


class OneCycleConfig(Config):
    """Smith & Topin, "Super-Convergence", 2018: one half wave up to the peak rate and one down to almost nothing."""

    kind: Literal["one_cycle"] = "one_cycle"
    rise: float = Field(0.3, gt=0, lt=1)  # share of the steps that the rate rises
    start: float = Field(0.04, gt=0, le=1)  # share of the peak rate at the first step
    final: float = Field(1e-4, ge=0, le=1)  # and at the last


ScheduleConfig = Annotated[
    ConstantConfig | PlateauConfig | StepConfig | CosineConfig | NoamConfig | OneCycleConfig,
    Field(discriminator="kind"),
]


class NoAverageConfig(Config):
    kind: Literal["none"] = "none"


class EmaConfig(Config):
    """Validation and `best.pt` take a moving average of the weights; see asr.train.ema."""

    kind: Literal["ema"] = "ema"
    decay: float = Field(0.999, gt=0, lt=1)


class EpochAverageConfig(Config):
    """At its end the training averages the weights of some epochs into `averaged.pt`; see asr.train.average."""

    kind: Literal["best", "last"] = "best"  # of the lowest dev PER, or the last; validated ones
    count: int = Field(3, ge=1)


AverageConfig = Annotated[NoAverageConfig | EmaConfig | EpochAverageConfig, Field(discriminator="kind")]


class InterCtcConfig(Config):
    """CTC after inner layers too, through the same output layer; see asr.train.objective."""

    layers: list[Annotated[int, Field(ge=1)]] | None = Field(None, min_length=1)  # from 1; null: the middle one
    weight: float = Field(0.3, gt=0, lt=1)  # of the mean over these layers; the output's own CTC has the rest


class ConsistencyConfig(Config):
    """CR-CTC: two augmented views of every utterance should be recognised alike; see asr.train.objective."""

    weight: float = Field(0.2, gt=0)


Precision = Literal["float32", "bfloat16", "float16"]


class SpecAugmentConfig(Config):
    """SpecAugment (Park et al. 2019) without time warping. Masks are set to the utterance's mean."""

    freq_masks: int = Field(0, ge=0)
    freq_width: int = Field(8, ge=1)  # mel bins at most per mask
    time_masks: int = Field(0, ge=0)
    time_width: int = Field(20, ge=1)  # feature frames at most per mask
    time_share: float = Field(0.2, gt=0, le=1)  # and at most this share of the utterance per mask


class PicturesConfig(Config):
    """What TensorBoard shows of some dev utterances; see asr.train.pictures."""

    every: int | None = Field(None, ge=1)  # validations from one time to the next; null: as cheap as a fiftieth
    utterances: int = Field(2, ge=1, le=10)  # the first of the dev set
    layer: int | None = Field(None, ge=1)  # whose attention map, from 1; null: the middle one


class AutoBatchConfig(Config):
    """The largest batch that fits the memory and leaves enough updates; see asr.train.auto_batch."""

    kind: Literal["auto"] = "auto"
    memory_mb: int | None = Field(None, ge=1)  # of each process, in MB of 2^20 bytes; null: what is free at the start
    min_updates: int = Field(100, ge=1)  # optimiser steps that an epoch keeps at least
    max_frames: int | None = Field(60_000, ge=1)  # feature frames of an optimiser step, at most; null: no bound
    found: int | None = Field(None, ge=1)  # the training writes its choice here; where one stands, it is taken as it is


def _way_of(batch_frames: object) -> str:
    return "auto" if isinstance(batch_frames, dict | AutoBatchConfig) else "number"


BatchFrames = Annotated[int, Field(ge=1), Tag("number")] | Annotated[AutoBatchConfig, Tag("auto")]


class TrainingConfig(Config):
    epochs: int = Field(50, ge=1)
    max_minutes: float | None = Field(None, gt=0)  # stop after the epoch that passes this much training time
    early_stop: int | None = Field(None, ge=1)  # validations in a row without a better dev PER that end the training
    batch_frames: BatchFrames = Field(20000, discriminator=Discriminator(_way_of))  # padded feature frames, at most
    accumulate: int = Field(1, ge=1)  # batches per optimiser step
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = PlateauConfig()
    average: AverageConfig = NoAverageConfig()  # of weights, for validation and decoding
    clip: float = Field(1.0, gt=0)  # largest gradient norm
    freeze: list[str] = Field(default_factory=list)  # parameters that stay as they are: names, with * and ?
    inter_ctc: InterCtcConfig | None = None
    consistency: ConsistencyConfig | None = None
    spec_augment: SpecAugmentConfig = SpecAugmentConfig()
    # Speeds of the sound; every epoch each utterance gets one of them. Their features are all computed beforehand.
    speeds: list[Annotated[float, Field(ge=0.5, le=2)]] = Field([1.0], min_length=1)
    init: RecipePath | None = None  # experiment folder or checkpoint whose weights are the first ones, where they fit
    precision: Precision = "float32"  # of matrix products in training; see asr.train.precision
    compile: bool = False  # torch.compile what stands beside the mixers
    device: str = "auto"  # auto: the GPU if there is one
    threads: int = Field(0, ge=0)  # CPU threads; 0: torch's choice
    validate_every: int = Field(1, ge=1)  # epochs between validations (the last epoch is always validated)
    save_minutes: float | None = Field(10.0, gt=0)  # between checkpoints within an epoch; null: at its end alone
    timeout_minutes: float = Field(10.0, gt=0)  # with several processes: one silent for so long ends the training
    max_nonfinite: int = Field(10, ge=1)  # steps in a row without a finite loss and gradient that end the training
    tensorboard: bool = True
    pictures: PicturesConfig | None = PicturesConfig()  # and not only curves; null: none
    ledger: RecipePath | None = None  # file that lists all runs; null: $ASR_LEDGER, or ledger.jsonl beside `exp`

    @property
    def batch_is_open(self) -> bool:
        """Whether `batch_frames` is `auto` and nothing has been found yet."""
        return isinstance(self.batch_frames, AutoBatchConfig) and self.found is None

    @property
    def found(self) -> int | None:
        """What `batch_frames: auto` has found; None: nothing yet, or it is a number."""
        return None if isinstance(self.batch_frames, int) else self.batch_frames.found

    @property
    def frames_per_batch(self) -> int:
        """`batch_frames` as a number, which a training settles before its first step and a checkpoint holds."""
        frames = self.batch_frames if isinstance(self.batch_frames, int) else self.found
        assert frames is not None, "not to be asked while batch_is_open"
        return frames

    @property
    def views(self) -> int:
        """Of every utterance in a batch."""
        return 2 if self.consistency else 1

    @model_validator(mode="after")
    def _check(self) -> TrainingConfig:
        if isinstance(self.schedule, CosineConfig) and self.schedule.by == "time" and self.max_minutes is None:
            raise ValueError("schedule: by: time falls over the time of max_minutes, which is not set")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError("speeds: one is given twice")
        return self
