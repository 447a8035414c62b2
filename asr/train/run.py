"""The experiment folder of one training and everything that is written into it while it runs."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import shutil
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from asr.errors import AsrError, DataError
from asr.files import append_line, write_atomically
from asr.recipe import Recipe
from asr.recipe_loader import dump_recipe, load_recipe, recipe_from_dict, recipe_to_dict
from asr.train.average import prune
from asr.train.board import Board
from asr.train.checkpoint import load_newest, save_checkpoint
from asr.train.ledger import LedgerEntry
from asr.train.lock import FolderLock
from asr.train.pictures import Pictures
from asr.wording import counted

if TYPE_CHECKING:
    from asr.train.state import State

log = logging.getLogger("asr")

# What may differ between a run and its resumption: where it lies and runs, how long it goes on, how it is reported.
FREE_ON_RESUME = {
    "name", "exp", "published", "scoring", "data.test", "data.features", "data.workers", "training.epochs",
    "training.max_minutes", "training.early_stop", "training.tensorboard", "training.threads", "training.device",
    "training.ledger", "training.pictures", "training.save_minutes", "training.max_nonfinite",
    "training.timeout_minutes",
}  # fmt: skip


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Run:
    """Holds the folder, copies log lines into train.log, writes log.jsonl and TensorBoard. A context manager.

    `restarted`: torchrun started the processes anew; then a training that it began is gone on with.
    Nothing of an earlier training is touched before `begin`, so that a recipe or data in error costs no result.

    Raises:
        AsrError: another training is running in the folder; it holds a training and neither `resume` nor `overwrite`
            was asked for; it holds somebody else's recipe.yaml; it cannot be written, then or later.
    """

    def __init__(self, recipe: Recipe, resume: bool, overwrite: bool, restarted: bool = False) -> None:
        assert recipe.exp is not None, "load_recipe fills exp"
        self.recipe, self.folder = recipe, recipe.exp
        self.last, self.previous, self.best = (self.folder / f"{name}.pt" for name in ("last", "previous", "best"))
        self.averaged = self.folder / "averaged.pt"
        self.events, self.copy = self.folder / "log.jsonl", self.folder / "recipe.yaml"
        self.resuming, self._resume, self._overwrite, self._restarted = False, resume, overwrite, restarted
        self._begun = self.folder / ".begun"
        self._damaged = False
        self._board: Board | None = None
        self._pictures: Pictures | None = None

    def __enter__(self) -> Run:
        trained = resumable(self.folder) or self.best.exists()
        if self.copy.exists() and not trained and not self.events.exists():
            raise AsrError(f"{self.copy} is not from a training and would be overwritten; choose another exp=DIR")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.folder)
            try:
                self.resuming = resumable(self.folder) and (self._resume or self._begun_before_restart())
                if trained and not self.resuming and not self._overwrite:
                    raise AsrError(
                        f"{self.folder} holds a training already; add --resume, --overwrite or another exp=DIR"
                    )
                self._handler = _LogFile(self.folder / "train.log", "a" if self.resuming else "w", encoding="utf-8")
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise AsrError(f"{self.folder}: cannot be used as experiment folder ({error.strerror})") from None
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._level = log.level
        if not log.isEnabledFor(logging.INFO):  # train.log is the same for a caller without logging of their own
            log.setLevel(logging.INFO)
        log.addHandler(self._handler)
        self._entry = LedgerEntry(self.recipe, decisive(recipe_to_dict(self.recipe)), versions())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        if full:
            error = AsrError(f"{self.folder}: cannot be written ({error}); make room, then go on with --resume")
        if error is not None:  # the terminal shows it, so the log does
            reason = f"{error}" if isinstance(error, AsrError) else repr(error)
            self._handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, reason, (), None))
        self._entry.close(error)
        log.removeHandler(self._handler)
        log.setLevel(self._level)
        with suppress(OSError):  # what a full disk did not take
            self._handler.close()
        if self._board is not None:
            self._board.close()
        self._lock.release()
        if full and error is not None:
            raise error from None

    def _begun_before_restart(self) -> bool:
        """Whether torchrun started this process anew and what is in the folder is its training, not an earlier one.

        A first start that was told to overwrite, or refused to, may have ended before it cleared the folder.
        """
        if not self._restarted:
            self._begun.unlink(missing_ok=True)
        return self._begun.exists() and self._begun.read_text(encoding="utf-8") == launch()

    def load(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of the training to continue; None where there is none to continue.

        From here on `recipe` has the batch that this training found, where it was stopped before its first checkpoint
        too.

        Raises:
            AsrError: none is whole, it cannot be resumed, or it was trained with another recipe.
        """
        if not self.resuming:
            ours = self._resume or (self._restarted and self._begun_before_restart())
            if ours and self.copy.exists():
                begun = load_recipe(self.copy)
                settled = self.recipe.settled(begun.training.found)
                self.recipe = self.recipe if _differences(settled, begun) else settled
            return None
        path, saved, damaged = load_newest((self.last, self.previous))
        self._damaged = bool(damaged)
        for reason in damaged:
            log.warning("%s; going on from the one before it, %s", reason, path)
        if "training" not in saved:
            raise DataError(f"{path}: has weights only (a best.pt?) and cannot be resumed; start with --overwrite")
        self._check_same(path, saved["recipe"])
        self._entry.resumed(saved["training"]["counters"])
        return saved

    def begin(self, epochs_done: int = 0) -> None:
        """Recipe and data are good: make room for this training, or make ready what is to be continued."""
        for unfinished in self.folder.glob(".*.tmp"):  # left by a kill
            unfinished.unlink()
        self.averaged.unlink(missing_ok=True)  # made anew at the end
        if self.resuming:
            if self._damaged:  # it must not take the place of the whole one when the next is saved
                os.replace(self.last, self.last.with_suffix(".damaged"))
            self._rewind(epochs_done)
        else:
            old = (self.last, self.previous, self.best, self.last.with_suffix(".damaged"), self.events)
            for stale in (*old, *self.folder.glob("results/*.*")):
                stale.unlink(missing_ok=True)
            prune(self.folder, ())
            shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
            self.events.touch()
            if launch():
                write_atomically(self._begun, launch())
        write_atomically(self.copy, dump_recipe(self.recipe))
        if self.recipe.training.tensorboard:
            self._board = Board(self.folder / "tensorboard", first=epochs_done + 1)

    def _rewind(self, epochs_done: int) -> None:
        """Take back what log.jsonl says of later epochs, which are trained again, and a line cut off by a kill."""
        lines = self.events.read_bytes().split(b"\n")[:-1] if self.events.exists() else []
        kept = [line for line in lines if _epoch(line) <= epochs_done]
        write_atomically(self.events, "".join(line.decode("utf-8") + "\n" for line in kept))

    def event(self, kind: str, **values: Any) -> None:
        """Append one line to log.jsonl; numbers of an epoch also become TensorBoard curves."""
        line = json.dumps({"event": kind, "time": time.time(), **values}, ensure_ascii=False)
        append_line(self.events, line)  # on the disk before a checkpoint says that the epoch is over
        self._entry.follow(kind, values)
        if kind == "epoch" and self._board is not None:
            self._board.epoch(values)

    def show(self, state: State) -> None:
        """After a validation: what the model makes of some utterances, into TensorBoard, where that is due."""
        config = self.recipe.training.pictures
        if self._board is None or config is None:
            return
        if self._pictures is None:
            self._pictures = Pictures(config, self._board)
        if (seconds := self._pictures.after_validation(state)) is not None:
            self.event("pictures", epoch=state.counters.epoch, seconds=round(seconds, 3))

    def save(self, path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
        """Write a checkpoint of the folder, see `save_checkpoint`."""
        save_checkpoint(path, content, keep)

    def list_dropped(self, name: str, dropped: dict[str, str]) -> None:
        """Write ids and reasons of what a set leaves out to `dropped-NAME.tsv`, and say how many there are."""
        path = self.folder / f"dropped-{name}.tsv"
        if not dropped:
            path.unlink(missing_ok=True)
            return
        path.write_text("".join(f"{id}\t{why}\n" for id, why in sorted(dropped.items())), encoding="utf-8")
        id, why = next(iter(dropped.items()))
        log.warning(
            "%s: %s left out, listed in %s; the first: %s: %s", name, counted(len(dropped), "utterance"), path, id, why
        )

    def _check_same(self, path: Path, saved: dict[str, Any]) -> None:
        then = recipe_from_dict(saved, str(path))  # with the defaults of keys that are newer than it
        self.recipe = self.recipe.settled(then.training.found)
        if different := _differences(self.recipe, then):
            raise AsrError(
                f"{path}: was trained with another recipe; these keys differ: {', '.join(different)}; "
                "put them back, or start anew with --overwrite"
            )


class Onlooker(Run):
    """The run as the processes other than rank 0 have it: its names, and not a file written or read."""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, epochs_done: int = 0) -> None:
        pass

    def event(self, kind: str, **values: Any) -> None:
        pass

    def show(self, state: State) -> None:
        pass

    def save(self, path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
        pass

    def list_dropped(self, name: str, dropped: dict[str, str]) -> None:
        pass


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk loses a line that the terminal has; the next checkpoint says so once, not every line again."""


def resumable(folder: Path) -> bool:
    """Whether a training in the folder can be gone on with."""
    return any((folder / name).exists() for name in ("last.pt", "previous.pt"))


def launch() -> str:
    """What torchrun calls all of its starts and restarts of one training; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def _epoch(line: bytes) -> int:
    """The epoch that a line of log.jsonl closes, or 0."""
    try:
        return int(json.loads(line).get("epoch", 0))
    except (ValueError, AttributeError, TypeError):
        return 0  # not ours to judge: the reader names the line


def _differences(new: Recipe, old: Recipe) -> list[str]:
    return differences(recipe_to_dict(new), recipe_to_dict(old))


def differences(new: Any, old: Any, path: str = "") -> list[str]:
    """The key paths in which two recipes differ, but for what may differ between a run and its resumption."""
    if path in FREE_ON_RESUME:
        return []
    if isinstance(new, dict) and isinstance(old, dict):
        keys = sorted(new.keys() | old.keys())
        return [d for k in keys for d in differences(new.get(k), old.get(k), f"{path}.{k}" if path else k)]
    return [] if new == old else [path]


def decisive(tree: Any, path: str = "") -> Any:
    """A recipe's values without those that may differ between a run and its resumption."""
    if not isinstance(tree, dict):
        return tree
    paths = {key: f"{path}.{key}" if path else key for key in tree}
    return {key: decisive(value, paths[key]) for key, value in tree.items() if paths[key] not in FREE_ON_RESUME}


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
