"""The experiment folder of one training and everything that is written into it while it runs."""

from __future__ import annotations

import json
import logging
import platform
import shutil
import sys
import time
from importlib.metadata import version
from typing import Any

import torch

from asr.errors import AsrError
from asr.recipe import Recipe
from asr.recipe_loader import dump_recipe, recipe_to_dict

log = logging.getLogger("asr")

# What may differ between a run and its resumption: where it lies and runs, how long it goes on, how it is reported.
FREE_ON_RESUME = {
    "name", "exp", "published", "scoring", "data.test", "data.features", "data.workers", "training.epochs",
    "training.max_minutes", "training.tensorboard", "training.threads", "training.device",
}  # fmt: skip


class Run:
    """Opens the folder, copies log lines into train.log, writes log.jsonl and TensorBoard.

    Nothing of an earlier training is touched before `begin`, so that a recipe or data in error costs no result.

    Raises:
        AsrError: the folder holds another training and neither `resume` nor `overwrite` was asked for, it holds
            somebody else's recipe.yaml, or it cannot be written.
    """

    def __init__(self, recipe: Recipe, resume: bool, overwrite: bool) -> None:
        assert recipe.exp is not None, "load_recipe fills exp"
        self.recipe, self.folder = recipe, recipe.exp
        self.last, self.best = self.folder / "last.pt", self.folder / "best.pt"
        self.events = self.folder / "log.jsonl"
        self.resuming = resume and self.last.exists()
        trained = self.last.exists() or self.best.exists()
        if trained and not self.resuming and not overwrite:
            raise AsrError(f"{self.folder} holds a training already; add --resume, --overwrite or another exp=DIR")
        self.copy = self.folder / "recipe.yaml"
        if self.copy.exists() and not trained and not self.events.exists():
            raise AsrError(f"{self.copy} is not from a training and would be overwritten; choose another exp=DIR")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handler = logging.FileHandler(
                self.folder / "train.log", mode="a" if self.resuming else "w", encoding="utf-8"
            )
        except OSError as error:
            raise AsrError(f"{self.folder}: cannot be used as experiment folder ({error.strerror})") from None
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._board: Any = None

    def __enter__(self) -> Run:
        self._level = log.level
        if not log.isEnabledFor(logging.INFO):  # train.log is the same for a caller without logging of their own
            log.setLevel(logging.INFO)
        log.addHandler(self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:  # the terminal shows it, so the log does
            reason = f"{error}" if isinstance(error, AsrError) else repr(error)
            self._handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, reason, (), None))
        log.removeHandler(self._handler)
        log.setLevel(self._level)
        self._handler.close()
        if self._board is not None:
            self._board.close()

    def begin(self) -> None:
        """Recipe and data are good: make room for this training, or make ready what is to be continued."""
        if self.resuming:
            # A line cut off by a kill would swallow the next one.
            whole, newline, _ = (self.events.read_bytes() if self.events.exists() else b"").rpartition(b"\n")
            self.events.write_bytes(whole + newline)
        else:
            for stale in (self.last, self.best, self.events, *self.folder.glob("results/*.*")):
                stale.unlink(missing_ok=True)
            shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
            self.events.touch()
        self.copy.write_text(dump_recipe(self.recipe), encoding="utf-8")
        if self.recipe.training.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder / "tensorboard"))

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
                f"{self.last}: was trained with another recipe; these keys differ: {', '.join(different)}; "
                "put them back, or start anew with --overwrite"
            )


def _differences(new: Any, old: Any, path: str = "") -> list[str]:
    if path in FREE_ON_RESUME:
        return []
    if isinstance(new, dict) and isinstance(old, dict):
        keys = sorted(new.keys() | old.keys())
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
