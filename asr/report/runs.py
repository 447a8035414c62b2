"""The ledger read back: every run that was ever begun, its lines put together, as a table."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.table import Table

from asr.errors import DataError, UsageError
from asr.report.log import read_log
from asr.train.forecast import spell
from asr.train.ledger import NAME
from asr.train.lock import in_use
from asr.wording import counted

DEPTH = 4  # folders below the one given in which ledgers are looked for
Run = dict[str, Any]


def find_ledgers(place: Path | None) -> list[Path]:
    """Of a ledger, an experiment folder, or a folder somewhere above; None: $ASR_LEDGER, else the current folder.

    Raises:
        UsageError: there is none.
    """
    named = os.environ.get("ASR_LEDGER")
    if place is None:
        place = Path(named).expanduser() if named else Path()
    if place.is_file():
        return [place]
    if (place / "log.jsonl").is_file():  # an experiment folder
        place = place.absolute().parent
    found = [path for depth in range(DEPTH) for path in sorted(place.glob("*/" * depth + NAME))]
    if not found:
        raise UsageError(f"{place}: no {NAME} here or in the folders below; a training writes it beside its folder")
    return found


def read_runs(ledgers: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """(runs, oldest first; a note for each ledger with lines that are none).

    A run has the values of all its lines, `began` and `ended` (seconds since 1970) and `state`: the reason of its end,
    or `running`, `killed`, or `no end` where nobody can tell. One without an end has the epochs of its log.
    """
    runs: dict[str, Run] = {}
    notes = []
    for path in ledgers:
        damaged = []
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line) if line.strip() else None
                if event is not None:
                    run = runs.setdefault(event["run"], {"ledger": str(path)})
                    kind, when = event.pop("event"), event.pop("time")
                    run |= {"began" if kind == "begin" else kind: when} | event
            except (ValueError, KeyError, TypeError):
                damaged.append(str(number))
        if damaged:
            notes.append(f"{path}: left out, cut off by a kill or damaged: line {', '.join(damaged)}")
    ordered = sorted((run for run in runs.values() if "began" in run), key=lambda run: run["began"])
    latest = {run["exp"]: run["run"] for run in ordered}
    for run in ordered:
        run["ended"] = run.pop("end", None)
        run["state"] = run.get("reason") if run["ended"] else "killed"
        if not run["ended"] and latest[run["exp"]] == run["run"]:
            try:
                _look(run)
            except DataError as error:  # its log is damaged; the other runs are still to be seen
                notes.append(str(error))
    return ordered, notes


def _look(run: Run) -> None:
    """Fill in what the folder of a run without an end, the last in it, says about it."""
    folder = Path(run["exp"])
    used = in_use(folder)
    run["state"] = "no end" if used is None else "running" if used else "killed"
    if "start" in run and folder.is_dir():
        log = read_log(folder)
        finite = [epoch for epoch in log.validated if math.isfinite(epoch["dev_per"])]
        best = min(finite, key=lambda epoch: epoch["dev_per"], default=None)
        run["epochs"] = log.epochs[-1]["epoch"] if log.epochs else 0
        if best is not None:
            run |= {"best_epoch": best["epoch"], "best_per": best["dev_per"]}


def chosen(runs: Sequence[Run], filters: Sequence[str]) -> list[Run]:
    """Those whose values fit every `key=pattern`, as file names do: `name=lsh*`, `state=finished`.

    Raises:
        UsageError: not of that form, or a key that no run has.
    """
    for one in filters:
        key, equals, pattern = one.partition("=")
        if not equals or not any(key in run for run in runs):
            keys = ", ".join(sorted({key for run in runs for key in run}))
            raise UsageError(f"{one}: is no KEY=PATTERN of a run; keys are {keys}")
        runs = [run for run in runs if fnmatchcase(str(run.get(key)), pattern)]
    return list(runs)


def table(runs: Sequence[Run]) -> Table:
    """A row for each run; columns that say nothing are left out."""
    found = Table(title="Runs")
    columns = {name: [text(run) for run in runs] for name, text in COLUMNS.items()}
    kept = {name: texts for name, texts in columns.items() if any(texts)}
    for name in kept:
        found.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for cells in zip(*kept.values(), strict=True):
        found.add_row(*(cell or "–" for cell in cells))
    return found


def remarks(runs: Sequence[Run]) -> list[str]:
    """What does not fit into a table: the errors."""
    return [f"{run['name']}, {_when(run)}: {run['error']}" for run in runs if run.get("error")]


def _when(run: Run) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run["began"]))


def _folder(run: Run) -> str:
    try:
        return str(Path(run["exp"]).relative_to(Path.cwd()))
    except ValueError:
        return str(run["exp"])


def _end(run: Run) -> str:
    again = run.get("resumed_from")
    return str(run["state"]) + (f" (resumed in epoch {again['epoch'] + 1})" if again else "")


def _epochs(run: Run) -> str:
    return f"{run.get('epochs', 0)}/{run['planned_epochs']}" if "planned_epochs" in run else ""


def _per(run: Run) -> str:
    if run.get("averaged_per") is not None:
        return f"{run['averaged_per']:.2f} (averaged)"
    return f"{run['best_per']:.2f} ({run['best_epoch']})" if run.get("best_per") is not None else ""


def _wall(run: Run) -> str:
    seconds = run.get("wall_seconds")
    return "" if seconds is None else spell(seconds)


def _device(run: Run) -> str:
    if "device" not in run:
        return ""
    on_gpu = run["device"].startswith("cuda") and run["gpus"]
    name = run["gpus"][0] if on_gpu else f"{run['device']}, {counted(run['threads'], 'thread')}"
    return (f"{run['processes']} × " if run["processes"] > 1 else "") + name


def _code(run: Run) -> str:
    code = run.get("code")
    return code["commit"][:8] + ("+" if code["dirty"] else "") if code else ""


def _energy(run: Run) -> str:
    return ", ".join(f"{joules / 1000:.1f} {source}" for source, joules in (run.get("energy_joules") or {}).items())


COLUMNS = {
    "began": _when,
    "run": lambda run: run["name"],
    "folder": _folder,
    "end": _end,
    "epochs": _epochs,
    "best dev PER % (epoch)": _per,
    "time": _wall,
    "peak MB": lambda run: f"{run['peak_memory_mb']:,.0f}" if run.get("peak_memory_mb") else "",
    "kJ": _energy,
    "parameters": lambda run: f"{run['parameters']:,}" if "parameters" in run else "",
    "device": _device,
    "host": lambda run: run["host"],
    "code": _code,
}
NUMBERS = ("epochs", "best dev PER % (epoch)", "time", "peak MB", "kJ", "parameters")
