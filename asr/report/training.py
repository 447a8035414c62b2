"""Trains one recipe of a comparison in a process of its own, as `asr train` would be called by hand.

A fresh process makes peak memory and warm-up the model's own, and a crash of one training leaves the others alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from asr.errors import AsrError

if TYPE_CHECKING:
    from asr.report.experiments import Experiment


GRACE = 120.0  # seconds that an interrupted training has to finish its step and save


class TrainingFailed(AsrError):
    """One training of a comparison ended with an error; its own message stands above on stderr."""


def train(experiment: Experiment, retrain: bool = False) -> None:
    """Run `asr train` on the recipe, resuming where an earlier run was stopped.

    Raises:
        TrainingFailed: the process ended with another code than 0.
        KeyboardInterrupt: this process or the training was interrupted; the training has saved and ended by then.
    """
    options = ["--overwrite"] if retrain else ["--resume"] if experiment.resumable else []
    _asr_train(experiment, options, f"training of {experiment.name}", f"see {experiment.exp}/train.log")


def find_batch(experiment: Experiment) -> int:
    """The frames per batch that `training.batch_frames: auto` finds for the recipe; nothing is trained.

    Raises:
        TrainingFailed, KeyboardInterrupt: as `train`.
    """
    return int(_asr_train(experiment, ["--find-batch"], f"the search for {experiment.name}'s batch", "see above"))


def _asr_train(experiment: Experiment, options: list[str], what: str, where: str) -> str:
    """What the command prints; `what` it does and `where` its error stands are for our own."""
    command = [sys.executable, "-m", "asr", "train", str(experiment.recipe_file), *experiment.overrides, *options]
    # A terminal's Ctrl-C reaches every process of the foreground group. The training would count two, ours and the
    # terminal's, and stop without saving; in a session of its own it hears only what is passed on below.
    previous = signal.signal(signal.SIGTERM, _interrupt)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate()
        code = process.returncode
    except KeyboardInterrupt:
        _stop(process)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise TrainingFailed(f"{what} failed with exit code {code}; {where}")
    return printed


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _stop(process: subprocess.Popen[str]) -> None:
    """Let the training save; when its time is up, or at a second interrupt, kill it and whatever it started.

    SIGTERM, not SIGINT: a shell starts background jobs deaf to SIGINT, and so would the training be until its loop
    begins.
    """
    try:
        process.terminate()
        process.wait(GRACE)
    except (KeyboardInterrupt, subprocess.TimeoutExpired) as reason:
        _kill(process)
        if isinstance(reason, KeyboardInterrupt):
            raise


def _kill(process: subprocess.Popen[str]) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
