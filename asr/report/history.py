"""One training as `asr log` prints it: an epoch a line, and where its time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from asr.errors import UsageError
from asr.report.log import TrainingLog, read_log
from asr.train.forecast import spell
from asr.train.lock import in_use
from asr.wording import counted

Epoch = dict[str, Any]


def history(exp: Path) -> tuple[str, TrainingLog, str]:
    """(what was trained, its log, how it stands and where its time went) of an experiment folder.

    Raises:
        UsageError: it has no log.jsonl.
    """
    if not (exp / "log.jsonl").is_file():
        raise UsageError(f"{exp}: no log.jsonl here, so it is not the folder of a training")
    log = read_log(exp)
    return _head(log), log, _foot(exp, log)


def table(epochs: Sequence[Epoch]) -> Table:
    """A row for each epoch; columns that say nothing are left out. `*`: better than ever on dev."""
    found = Table()
    columns = {name: [_cell(epoch, text) for epoch in epochs] for name, text in COLUMNS.items()}
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    for name in kept:
        found.add_column(name, justify="right")
    for cells in zip(*kept.values(), strict=True):
        found.add_row(*cells)
    return found


def _head(log: TrainingLog) -> str:
    start = log.start
    if not start:
        return "not begun: no start in log.jsonl"
    processes = start.get("processes", 1)
    where = f"{counted(processes, 'process')} on {start['device']}" if processes > 1 else f"on {start['device']}"
    return (
        f"{start['name']}: {start['parameters']:,} parameters, {counted(start['utterances'], 'utterance')}; {where}, "
        f"{counted(start['threads'], 'thread')}, torch {start['versions']['torch']}"
        f"{'; resumed' if start['resumed'] else ''}"
    )


def _foot(exp: Path, log: TrainingLog) -> str:
    state = "finished" if log.finished else {True: "running", False: "stopped", None: "not finished"}[in_use(exp)]
    text = f"{state} after {counted(len(log.epochs), 'epoch')}"
    if log.best_per is not None:
        text += f", best dev PER {log.best_per:.2f} %" + (" (averaged weights)" if log.averaged_per is not None else "")
    parts: Counter[str] = Counter()
    for epoch in log.epochs:
        parts.update({name: value for name, value in epoch.get("seconds", {}).items() if name != "total"})
    if total := sum(parts.values()):
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.most_common() if seconds)
        text += f"; {spell(total)}: {shares}"
    return text


def _cell(epoch: Epoch, text: Any) -> str:
    try:
        return str(text(epoch))
    except (KeyError, TypeError):  # not validated, or written by an earlier version
        return ""


def _number(key: str, form: str, factor: float = 1.0) -> Any:
    return lambda epoch: "NaN" if math.isnan(epoch[key]) else format(factor * epoch[key], form)


COLUMNS: dict[str, Any] = {
    "epoch": lambda epoch: epoch["epoch"],
    "loss": _number("loss", ".3f"),
    "dev loss": _number("dev_loss", ".3f"),
    "dev PER %": lambda epoch: _number("dev_per", ".2f")(epoch) + (" *" if epoch["best"] else "  "),
    "S/D/I": lambda epoch: "/".join(map(str, epoch["dev_sdi"])),
    "blanks %": _number("blank_share", ".0f", 100),
    "length": _number("length_ratio", ".2f"),
    "rate": _number("lr", ".1e"),
    "gradient": _number("grad_norm", ".2f"),
    "train s": _number("train_seconds", ".1f"),
    "other s": lambda epoch: f"{epoch['seconds']['total'] - epoch['train_seconds']:.1f}",
    "frames/s": _number("frames_per_second", ",.0f"),
    "MB": _number("peak_memory_mb", ",.0f"),
    "skipped": lambda epoch: epoch["skipped_steps"] or "",
}
