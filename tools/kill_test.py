"""The kill test: a training killed by SIGKILL at random moments, again and again, must equal the unbroken one.

    python tools/kill_test.py RECIPE [KEY=VALUE ...] --kills 50

Trains the recipe twice as `asr train` would: once unbroken, and once killed KILLS times, each time resumed by a new
process. Three of four kills come at a random moment of the training, the fourth while the program still starts and
reads the checkpoint. In the end the checkpoints must be equal, bit for bit, and log.jsonl must have each epoch once,
with the same numbers. The experiment folder of the recipe is left alone; the two trainings go into a folder that is
removed again, or into --out.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from asr.errors import AsrError
from asr.recipe import Recipe
from asr.recipe_loader import dump_recipe, load_recipe
from asr.report.log import read_log
from asr.train.checkpoint import load_newest
from asr.train.run import resumable
from asr.train.same import compare_trainings

SAME_IN_LOG = ("epoch", "frames", "loss", "lr", "grad_norm", "skipped_steps", "dev_loss", "dev_per", "dev_sdi", "best")


started: list[subprocess.Popen[bytes]] = []


class Process(Protocol):
    def kill(self) -> None: ...
    def wait(self) -> int: ...
    def poll(self) -> int | None: ...


class Ended(AsrError):
    """A training ended before it was killed as often as was asked for, or with an error."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="keep both trainings in this new folder")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        recipe = load_recipe(args.recipe, args.overrides, check_files=True)
        with tempfile.TemporaryDirectory(prefix="kill-test-") as name:
            folder = args.out or Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                different = kill_test(recipe, args.kills, args.seed, folder, start)
            finally:  # leave no training behind
                for process in started:
                    process.kill()
                    process.wait()
    except AsrError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(1 if different else 0)


def kill_test(recipe: Recipe, kills: int, seed: int, folder: Path, start: Callable[[Path, Path], Process]) -> list[str]:
    """Print what happens; one line for each thing that differs in the end.

    Args:
        folder: gets the two experiment folders.
        start: (recipe file, experiment folder) → a process that trains, resuming where there is something to resume.
    """
    whole, broken = folder / "unbroken", folder / "killed"
    starting, training = _unbroken(recipe, whole, start)
    print(f"unbroken: {starting:.1f} s to start, {training:.1f} s of training", flush=True)
    file = _write(recipe, broken, save_minutes=training / kills / 3 / 60)
    steps, where, draws = 0, "nothing yet", random.Random(seed)
    half: set[str] = set()  # what a process was writing when it was killed; its number is in the name
    total = _saved(whole)["schedule"]["step"]
    for number in range(1, kills + 1):
        gap = training * (1 - steps / total) / (kills - number + 2)  # what is left is shared by the kills that are left
        early = number % 4 == 0
        _kill(start(file, broken), broken, number, early, draws.uniform(0, starting if early else gap))
        half |= {path.name for path in broken.glob(".*.pt.*.tmp")}
        if resumable(broken):
            saved = _saved(broken)
            steps, counters = saved["schedule"]["step"], saved["counters"]
            where = f"epoch {counters['epoch'] + 1}, step {counters['group']}"
        print(f"kill {number}: saved up to {where}", flush=True)
    if start(file, broken).wait():
        raise Ended("the last training ended with an error, see above")
    values, different = compare_trainings(whole, broken)
    different += _log_differences(whole, broken)
    verdict = f"{len(different)} differences" if different else "equal to the unbroken training, bit for bit"
    print(
        f"{kills} SIGKILLs, {len(half)} of them while a checkpoint was being written; "
        f"{values} tensors and values: {verdict}",
        flush=True,
    )
    for line in different:
        print(f"  {line}")
    return different


def start(file: Path, exp: Path) -> Process:
    """`asr train` in a process of its own; its log stands in the folder's train.log."""
    command = [sys.executable, "-m", "asr", "train", str(file), "--resume"]
    quiet = subprocess.DEVNULL
    started.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet))
    return started[-1]


def _kill(process: Process, exp: Path, number: int, early: bool, after: float) -> None:
    """`after` so many seconds from the start of the process, or of its training where that is not `early`."""
    if not early:
        _wait_for_start(process, exp, number)
    _sleep(after, process, number)
    process.kill()
    process.wait()


def _unbroken(recipe: Recipe, exp: Path, start: Callable[[Path, Path], Process]) -> tuple[float, float]:
    """Train once: seconds until the training starts, and of the training. The features are computed before that."""
    warm = exp.with_name("features")
    process = start(_write(recipe, warm, save_minutes=None), warm)
    _wait_for_start(process, warm, 0)
    process.kill()
    process.wait()
    file = _write(recipe, exp, save_minutes=recipe.training.save_minutes)
    began = time.monotonic()
    process = start(file, exp)
    _wait_for_start(process, exp, 0)
    started = time.monotonic()
    if process.wait():
        raise Ended(f"the unbroken training failed, see {exp / 'train.log'}")
    return started - began, time.monotonic() - started


def _write(recipe: Recipe, exp: Path, save_minutes: float | None) -> Path:
    training = recipe.training.model_copy(update={"save_minutes": save_minutes, "tensorboard": False})
    file = exp.with_suffix(".yaml")
    file.write_text(dump_recipe(recipe.model_copy(update={"exp": exp, "training": training})), encoding="utf-8")
    return file


def _wait_for_start(process: Process, exp: Path, number: int) -> None:
    """Until the last start in log.jsonl is another one."""
    log = exp / "log.jsonl"
    before = _last_start(log)
    while _last_start(log) in (before, None):
        _sleep(0.005, process, number)


def _last_start(log: Path) -> bytes | None:
    lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
    return next((line for line in reversed(lines) if b'"event": "start"' in line and line.endswith(b"\n")), None)


def _sleep(seconds: float, process: Process, number: int) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if process.poll() is not None:
            raise Ended(f"the training ended before kill {number}; give it more epochs, or see its train.log in --out")
        time.sleep(min(left, 0.02))


def _saved(exp: Path) -> dict[str, Any]:
    return load_newest([exp / "last.pt", exp / "previous.pt"])[1]["training"]


def _log_differences(a: Path, b: Path) -> list[str]:
    raw = [line for line in (b / "log.jsonl").read_text("utf-8").splitlines() if '"event": "epoch"' in line]
    left, right = read_log(a).epochs, read_log(b).epochs
    lines = [] if len(raw) == len(right) == len(left) else [f"log.jsonl: {len(raw)} lines for {len(left)} epochs"]
    for one, other in zip(left, right, strict=False):
        keys = [k for k in SAME_IN_LOG if repr(one.get(k)) != repr(other.get(k))]
        lines += [f"log.jsonl: epoch {one['epoch']}: {key}: {one.get(key)} and {other.get(key)}" for key in keys]
    return lines


if __name__ == "__main__":
    main()
