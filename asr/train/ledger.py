"""The ledger: one file in which every run of a training is written down, whatever becomes of the run.

A run is several lines of JSON with one `run`: `begin` before its data are read, `start` when it begins to train, `end`.
A line is added under a lock and never changed, so that processes of many machines can share the file, and a run that is
killed is one without `end`. `asr.report.runs` puts the lines together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import torch

from asr.errors import AsrError
from asr.files import append_line
from asr.recipe import Recipe
from asr.train.energy import EnergyMeter
from asr.train.machine import code_version, machine
from asr.train.measure import peak_memory_mb

NAME = "ledger.jsonl"
INTERRUPTED = 130

log = logging.getLogger("asr")


def ledger_path(recipe: Recipe) -> Path | None:
    """`training.ledger`, else the environment's ASR_LEDGER (empty: no ledger), else beside the experiment folder."""
    if recipe.training.ledger is not None:
        return recipe.training.ledger
    if (named := os.environ.get("ASR_LEDGER")) is not None:
        return Path(named).expanduser() if named else None
    assert recipe.exp is not None, "load_recipe fills exp"
    return recipe.exp.absolute().parent / NAME


def fingerprint(decisive: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits, equal where these keys of a recipe are."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


class LedgerEntry:
    """One run's lines. A ledger that cannot be written is a warning, and the training goes on without.

    Args:
        decisive: of the recipe all that decides what is trained.
    """

    def __init__(self, recipe: Recipe, decisive: dict[str, Any], versions: dict[str, str]) -> None:
        self._path = ledger_path(recipe)
        self._run = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        self._began = time.monotonic()
        self._resumed_from: dict[str, int] | None = None
        self._found: dict[str, Any] = {"epochs": 0, "best_epoch": None, "best_per": None, "train_seconds": 0.0}
        self._reason, self._peak = "", 0.0
        self._device: torch.device | None = None
        self._meter: EnergyMeter | None = None
        if self._path is not None:
            self._add(
                "begin", name=recipe.name, exp=str(recipe.exp), recipe_hash=fingerprint(decisive), seed=recipe.seed,
                command=sys.argv, pid=os.getpid(), code=code_version(), versions=versions, **machine(),
            )  # fmt: skip

    def resumed(self, counters: dict[str, Any]) -> None:
        """The run goes on from a checkpoint with these counters."""
        self._resumed_from = {"epoch": counters["epoch"], "step": counters["group"]}
        self._found |= {"epochs": counters["epoch"], "train_seconds": counters["elapsed"]}
        self._best(counters["best_epoch"], counters["best_per"])

    def follow(self, kind: str, values: dict[str, Any]) -> None:
        """What log.jsonl is told: the start becomes a line, epochs are kept in mind for the end."""
        if self._path is None:
            return
        if kind == "start":
            self._device = torch.device(values["device"])
            self._meter = EnergyMeter(self._device)
            planned = values["recipe"]["training"]["epochs"]
            kept = {key: values[key] for key in ("device", "threads", "processes", "parameters", "utterances")}
            self._add("start", resumed_from=self._resumed_from, planned_epochs=planned, **kept)
        elif kind == "epoch":
            self._found |= {"epochs": values["epoch"], "train_seconds": values["elapsed"]}
            self._peak = max(self._peak, values["peak_memory_mb"] or 0.0)
            if values["best"]:
                self._best(values["epoch"], values["dev_per"])
        elif kind == "average":
            self._found["averaged_per"] = values["dev_per"] if math.isfinite(values["dev_per"]) else None
        elif kind == "end":
            self._reason = values["reason"]

    def close(self, error: BaseException | None = None) -> None:
        """The run's last line."""
        if self._path is None:
            return
        reason, text = self._reason, None
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, AsrError) and error.exit_code == INTERRUPTED):
            reason = "interrupted"
        elif error is not None:
            reason, text = "error", str(error) if isinstance(error, AsrError) else repr(error)
        if self._device is not None:
            self._peak = max(self._peak, peak_memory_mb(self._device) or 0.0)
        self._add(
            "end", reason=reason, error=text, wall_seconds=round(time.monotonic() - self._began, 3), **self._found,
            peak_memory_mb=self._peak or None, energy_joules=self._meter.stop() if self._meter else None,
        )  # fmt: skip

    def _best(self, epoch: int, per: float) -> None:
        if math.isfinite(per):
            self._found |= {"best_epoch": epoch, "best_per": per}

    def _add(self, event: str, **values: Any) -> None:
        assert self._path is not None
        line = json.dumps({"run": self._run, "event": event, "time": time.time(), **values}, ensure_ascii=False)
        try:
            append_line(self._path, line)
        except (OSError, ValueError) as error:  # ValueError: a command line that is not UTF-8
            reason = getattr(error, "strerror", None) or error
            log.warning("%s: the run is not written down there (%s)", self._path, reason)
            self._path = None
