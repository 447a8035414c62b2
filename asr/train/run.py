"""The experiment folder of one training and everything that is written into it while it runs."""

from __future__ import annotations

import json
import logging
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from asr.errors import AsrError
from asr.recipe import Recipe
from asr.recipe_loader import dump_recipe, recipe_to_dict

log = logging.getLogger("asr")

# What may differ between a run and its resumption: where it lies, how long it goes on, how it is reported.
FREE_ON_RESUME = {"name", "exp", "published", "scoring", "epochs", "max_minutes", "tensorboard", "workers", "threads"}


class Run:
    """Opens the folder, copies log lines into train.log, writes log.jsonl and TensorBoard.

    Raises:
        AsrError: the folder holds another training and neither `resume` nor `overwrite` was asked for.
    """

    def __init__(self, recipe: Recipe, resume: bool, overwrite: bool) -> None:
        assert recipe.exp is not None, "load_recipe fills exp"
        self.recipe, self.folder = recipe, recipe.exp
        self.last, self.best = self.folder / "last.pt", self.folder / "best.pt"
        self.events = self.folder / "log.jsonl"
        self.resuming = resume and self.last.exists()
        if self.events.exists() and not self.resuming:
            if not overwrite and self.last.exists():
                raise AsrError(f"{self.folder} holds a training already; add --resume, --overwrite or another exp=DIR")
            for stale in (self.last, self.best, self.events, self.folder / "train.log"):
                stale.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
        self._handler = logging.FileHandler(self.folder / "train.log", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._board: Any = None

    def __enter__(self) -> Run:
        log.addHandler(self._handler)
        if self.recipe.training.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder / "tensorboard"))
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self._handler)
        self._handler.close()
        if self._board is not None:
            self._board.close()

    def event(self, kind: str, **values: Any) -> None:
        """Append one line to log.jsonl; numbers of an epoch also become TensorBoard curves."""
        with open(self.events, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, "time": time.time(), **values}, ensure_ascii=False) + "\n")
        if kind == "epoch" and self._board is not None:
            for key, value in values.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "epoch":
                    self._board.add_scalar(key, value, values["epoch"])
            for key, value in values["seconds"].items():
                self._board.add_scalar(f"seconds/{key}", value, values["epoch"])
            self._board.flush()

    def list_dropped(self, name: str, dropped: dict[str, str]) -> None:
        """Write ids and reasons of what a set leaves out to `dropped-NAME.tsv`, and say how many there are."""
        path = self.folder / f"dropped-{name}.tsv"
        if not dropped:
            path.unlink(missing_ok=True)
            return
        path.write_text("".join(f"{id}\t{why}\n" for id, why in sorted(dropped.items())), encoding="utf-8")
        id, why = next(iter(dropped.items()))
        log.warning("%s: %d utterances left out, listed in %s; the first: %s: %s", name, len(dropped), path, id, why)

    def check_same(self, saved: dict[str, Any]) -> None:
        """Raise AsrError where the recipe to resume with differs from the one in the checkpoint."""
        different = _differences(recipe_to_dict(self.recipe), saved)
        if different:
            raise AsrError(
                f"{self.last}: was trained with another recipe; these keys differ: {', '.join(different)}. "
                "Put them back, or start anew with --overwrite"
            )


def _differences(new: Any, old: Any, path: str = "") -> list[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        keys = sorted((new.keys() | old.keys()) - FREE_ON_RESUME)
        return [d for k in keys for d in _differences(new.get(k), old.get(k), f"{path}.{k}" if path else k)]
    return [] if new == old else [path]


def versions() -> dict[str, str]:
    """Of everything a result may depend on."""
    packages = ("torch", "torchaudio", "numpy", "soundfile", "sentencepiece", "jiwer", "asr")
    return {"python": platform.python_version(), "platform": sys.platform} | {p: version(p) for p in packages}


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one.

    Raises:
        AsrError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise AsrError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device
