"""`log.jsonl` of an experiment: what the training wrote, read back as one object."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import DataError


@dataclass(frozen=True)
class TrainingLog:
    """The events of one training, a resumed one as if it had never stopped."""

    start: dict[str, Any]  # the latest start event
    epochs: list[dict[str, Any]]  # by epoch number, each once
    finished: bool  # False: stopped or still running
    averaged_per: float | None = None  # dev PER of the mean of several epochs, in percent

    @property
    def timed(self) -> list[dict[str, Any]]:
        """Epochs that count as timing: all but the first, which pays for the warm-up, unless it is the only one."""
        return self.epochs[1:] or self.epochs

    @property
    def epoch_seconds(self) -> float | None:
        """Median seconds of training per epoch, validation not included."""
        return _median([e["train_seconds"] for e in self.timed])

    @property
    def frames_per_second(self) -> float | None:
        """Median of feature frames trained per second of training."""
        return _median([e["frames"] / e["train_seconds"] for e in self.timed if e["train_seconds"]])

    @property
    def best_per(self) -> float | None:
        """The dev PER of the weights that decode, in percent: of the mean of several epochs, else of the best."""
        if self.averaged_per is not None:
            return self.averaged_per
        return min((e["dev_per"] for e in self.validated if math.isfinite(e["dev_per"])), default=None)

    @property
    def validated(self) -> list[dict[str, Any]]:
        """Epochs that ended with a validation."""
        return [e for e in self.epochs if e.get("dev_per") is not None]

    @property
    def minutes(self) -> float | None:
        """Wall-clock minutes of training, validation included."""
        return self.epochs[-1]["elapsed"] / 60 if self.epochs else None

    @property
    def peak_memory_mb(self) -> float | None:
        return max((e["peak_memory_mb"] for e in self.epochs if e.get("peak_memory_mb") is not None), default=None)


def read_log(exp: Path) -> TrainingLog:
    """Read `exp/log.jsonl`. A missing file is an empty log; a last line cut off by a kill is left out.

    Raises:
        DataError: a line before the last is not a JSON object.
    """
    path = exp / "log.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    start: dict[str, Any] = {}
    epochs: dict[int, dict[str, Any]] = {}
    finished, averaged = False, None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise DataError(f"{path}:{number}: not a JSON object with `event`; the log is damaged") from error
        if kind == "start":
            start, finished, averaged = event, False, None
        elif kind == "epoch":
            epochs[event["epoch"]] = event  # an epoch done again after a resume replaces its first try
        elif kind == "average":
            averaged = event["dev_per"] if math.isfinite(event["dev_per"]) else None
        elif kind == "end":
            finished = True
    return TrainingLog(start, [epochs[n] for n in sorted(epochs)], finished, averaged)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
