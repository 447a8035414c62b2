"""`asr train --check-resume`: proof, on the user's own recipe and machine, that a killed training is an unbroken one.

Two short epochs are trained twice, in processes of their own: once unbroken; and once with a SIGKILL in each epoch,
after a step that no checkpoint holds yet, each time resumed by a fresh process. Then the checkpoints are compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import AsrError
from asr.recipe import Recipe
from asr.recipe_loader import dump_recipe, load_recipe
from asr.train.loop import train
from asr.train.same import compare_trainings
from asr.train.trial import Trial

EPOCHS, STEPS, DEV_UTTERANCES = 2, 3, 16
KILLED = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 9


@dataclass(frozen=True)
class Verdict:
    """`different` names what differs, a line each; `noise` is what differs between two *unbroken* runs."""

    values: int
    different: list[str]
    noise: list[str]

    @property
    def exact(self) -> bool:
        return not self.different

    def text(self) -> str:
        if self.exact:
            return f"exact: killed twice and resumed, all {self.values} tensors and values equal the unbroken run's"
        head = f"{len(self.different)} of {self.values} tensors and values differ"
        if self.noise:
            head = (
                f"not decided: this machine does not repeat itself. Killed and resumed, {head}; but so do "
                f"{len(self.noise)} between two unbroken runs. On a GPU some operations add in varying order; "
                "training.device=cpu training.threads=1 decides it"
            )
        else:
            head = f"NOT exact: killed and resumed, {head}; two unbroken runs are equal"
        return "\n".join([head, *(f"  {line}" for line in self.different[:20])])


def check_resume(recipe: Recipe, say: Callable[[str], None] = lambda line: None) -> Verdict:
    """Try it in a folder of its own beside the experiment's, which is removed again; the experiment is left alone.

    `say` is told what is about to run. Features are computed into `data.features` if they are not there yet, as the
    training itself would.

    Raises:
        AsrError: a training failed; its own message stands above on stderr.
    """
    assert recipe.exp is not None, "load_recipe fills exp"
    recipe.exp.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{recipe.exp.name}-check-", dir=recipe.exp.parent) as name:
        unbroken, broken, again = (Path(name) / n for n in ("unbroken", "broken", "again"))
        _run(recipe, unbroken, None, say, f"unbroken: {EPOCHS} epochs of {STEPS} steps")
        # Measured again, the batch that fits the memory might be another; what is resumed has to know by itself.
        found = load_recipe(unbroken / "recipe.yaml").training.found if recipe.training.batch_is_open else None
        _run(recipe.settled(found), broken, (1, 2), say, "killed in epoch 1")
        _run(recipe, broken, (2, 1), say, "resumed, killed in epoch 2")
        _run(recipe, broken, None, say, "resumed, to the end")
        values, different = compare_trainings(unbroken, broken)
        noise: list[str] = []
        if different:
            _run(recipe.settled(found), again, None, say, "unbroken once more: does this machine repeat itself?")
            _, noise = compare_trainings(unbroken, again)
    return Verdict(values, different, noise)


def _run(recipe: Recipe, exp: Path, kill: tuple[int, int] | None, say: Callable[[str], None], what: str) -> None:
    """Train in a fresh process; `kill`: the epoch and the step of it, both from 1, after which it is killed."""
    say(what)
    short: dict[str, Any] = {
        "epochs": EPOCHS, "save_minutes": 1e-9, "max_minutes": None, "validate_every": 1, "tensorboard": False,
        "ledger": None,
    }  # fmt: skip
    if recipe.training.schedule.kind == "cosine":  # over steps: no two runs have the same clock
        short["schedule"] = recipe.training.schedule.model_copy(update={"by": "steps"})
    training = recipe.training.model_copy(update=short)
    file = exp.with_suffix(".yaml")
    file.write_text(dump_recipe(recipe.model_copy(update={"training": training, "exp": exp})), encoding="utf-8")
    command = [sys.executable, "-m", "asr.train.check_resume", str(file), *map(str, kill or ())]
    began = time.perf_counter()
    unlisted = {**os.environ, "ASR_LEDGER": ""}
    code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=unlisted, check=False).returncode
    if code != (KILLED if kill else 0):
        raise AsrError(f"the check's training ({what}) ended with exit code {code}, see above")
    say(f"  {time.perf_counter() - began:.1f} s")


def _child(file: str, epoch: str = "0", step: str = "0") -> None:
    def after_step(*now: int) -> None:
        of = now[2]
        if now == (int(epoch), min(int(step), of), of):
            os.kill(os.getpid(), signal.SIGKILL)

    train(load_recipe(file), resume=True, trial=Trial(STEPS, DEV_UTTERANCES, after_step))


if __name__ == "__main__":
    from asr.cli.stderr import log_to_stderr

    try:
        with log_to_stderr():
            _child(*sys.argv[1:])
    except AsrError as failure:
        sys.exit(f"error: {failure}")
