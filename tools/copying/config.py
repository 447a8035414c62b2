"""What a recipe of the copy task says: YAML of the form of a speech recipe, with other sections."""

from __future__ import annotations

from pydantic import Field, model_validator

from asr.config import Config
from asr.encoder.config import TransformerConfig
from asr.train.config import ConstantConfig, OptimiserConfig, ScheduleConfig


class TaskConfig(Config):
    """Which sequences: 0 w 0 w, where w is random symbols 1 … `symbols` and 0 separates."""

    symbols: int = Field(10, ge=1)
    # Of a whole sequence, in symbols, separators included; |w| is drawn from max_length / 4 to max_length / 2 - 1.
    max_length: int = Field(128, ge=4)
    batch: int = Field(64, ge=1)  # sequences of an update


class CopyTrainingConfig(Config):
    updates: int = Field(5000, ge=1)
    optimiser: OptimiserConfig = OptimiserConfig(lr=1e-3)
    schedule: ScheduleConfig = ConstantConfig()
    clip: float = Field(1.0, gt=0)  # largest gradient norm
    log_updates: int = Field(20, ge=1)  # a point of the curve is the mean over so many updates
    test_batches: int = Field(16, ge=1)  # of new sequences, the same for every model, scored after the last update


class CopyConfig(Config):
    name: str = Field(min_length=1)  # in tables and plots
    seeds: list[int] = Field([0, 1, 2], min_length=1)
    task: TaskConfig = TaskConfig()
    model: TransformerConfig
    training: CopyTrainingConfig = CopyTrainingConfig()

    @model_validator(mode="after")
    def _check(self) -> CopyConfig:
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError("seeds: must be different numbers >= 0")
        schedule = self.training.schedule
        if schedule.kind == "plateau":
            raise ValueError("training.schedule: plateau needs validations, which this task has none of; take step")
        if schedule.kind == "cosine" and schedule.by == "time":
            raise ValueError("training.schedule: by: time needs a limit of minutes, which this task has none of")
        ahead = [mixer.kind for mixer in self.model.mixers if not mixer.causal]
        if ahead:
            raise ValueError(f"attention kind: {ahead[0]} would see the symbol it must predict; set causal: true")
        return self
