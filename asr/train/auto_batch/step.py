"""One optimiser step on batches of given shapes, with the recipe's own model, and the memory that it takes.

On a GPU the step is made in this process, which survives an allocation that fails. On a CPU it is made in a child: a
lack of memory may kill that, its peak is its own, and whatever it does leaves the training's memory and random numbers
as they were. There an allocation beyond the limit fails before the machine runs out of memory.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch

from asr.ctc.loss import reference_tokens
from asr.encoder.model import CtcModel
from asr.errors import AsrError
from asr.recipe import Recipe
from asr.recipe_loader import recipe_from_dict, recipe_to_dict
from asr.train.compile import compile_blocks
from asr.train.ema import Ema
from asr.train.freeze import freeze
from asr.train.measure import (
    give_back_freed_memory,
    keep_freed_memory,
    own_memory_mb,
    peak_memory_mb,
    reset_peak_memory,
)  # fmt: skip
from asr.train.memory import lacks_memory
from asr.train.objective import losses
from asr.train.optimise import build_optimiser
from asr.train.precision import Mixed
from asr.train.sets import Batch

SLACK_MB = 512  # over the limit, which address space reaches before memory: heaps grow ahead of what is used


@dataclass(frozen=True)
class Shape:
    """A batch as far as memory is concerned: feature frames and target of every row."""

    lengths: list[int]
    targets: list[list[int]]


class Trials(Protocol):
    """A context manager."""

    def peak_mb(self, shapes: list[Shape]) -> float | None:
        """MB at the worst moment of a step over these batches, weights and optimiser included; None: not enough."""

    def __enter__(self) -> Trials: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Nothing of the trials stays in memory."""


class TrialModel:
    """Weights, optimiser and moving average as the training will have them, to be thrown away."""

    def __init__(self, recipe: Recipe, tokens: int, blank: int, device: torch.device) -> None:
        config = recipe.training
        self.recipe, self.blank, self.device = recipe, blank, device
        self.model = CtcModel(recipe.model, recipe.features.dim, tokens).to(device).train()
        freeze(self.model, config.freeze)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.mixed = Mixed(config.precision, device)
        self.optimiser = build_optimiser(config.optimiser, self.model)
        self.ema = Ema(self.model, config.average.decay) if config.average.kind == "ema" else None
        if config.compile:
            compile_blocks(self.model)

    def _start(self) -> None:
        """Make a step without a batch: from the first one on an optimiser has its state."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def step(self, shapes: list[Shape]) -> None:
        """A step of one batch after the other; of all together where steps accumulate, so that gradients are there."""
        if not self.optimiser.state:
            self._start()
        for shape in shapes:
            views = self.recipe.training.views
            frames = shape.lengths * views
            size = (len(frames), max(frames), self.recipe.features.dim)
            features = torch.randn(size, generator=torch.Generator().manual_seed(0))
            batch = Batch([], features, torch.tensor(frames), frames, shape.targets * views, views).to(self.device)
            with self.mixed.forward():
                found = losses(self.model, batch, self.recipe, self.blank)
            self.mixed.backward(found.total.sum() / max(1, reference_tokens(shape.targets)))
            del found, batch, features
            if self.recipe.training.accumulate == 1:
                self._update()
        if self.recipe.training.accumulate > 1:
            self._update()

    def _update(self) -> None:
        self.mixed.unscale(self.optimiser)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.training.clip)
        self.optimiser.step()
        if self.ema:
            self.ema.update()
        self.mixed.update()
        self.optimiser.zero_grad(set_to_none=True)

    def tried(self, shapes: list[Shape]) -> bool:
        """Whether there was memory enough for a step. Nothing of it is left but what any step leaves."""
        try:
            self.step(shapes)
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            return False
        finally:
            self.optimiser.zero_grad(set_to_none=True)
            gc.collect()
        return True


class DeviceTrials:
    """On a GPU, beside the weights of the training itself, which are there already."""

    def __init__(self, recipe: Recipe, tokens: int, blank: int, device: torch.device) -> None:
        self._arguments, self.device = (recipe, tokens, blank, device), device

    def __enter__(self) -> Trials:
        before = torch.cuda.memory_allocated(self.device)
        with torch.random.fork_rng([self.device]):
            self.trial = TrialModel(*self._arguments)
        self._twice = torch.cuda.memory_allocated(self.device) - before
        return self

    def peak_mb(self, shapes: list[Shape]) -> float | None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        with torch.random.fork_rng([self.device]):
            fits = self.trial.tried(shapes)
        return (torch.cuda.max_memory_allocated(self.device) - self._twice) / 2**20 if fits else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        del self.trial
        gc.collect()
        torch.cuda.empty_cache()


class ChildTrials:
    """On a CPU; what is measured comes on top of `own_mb`, the memory that the training's process has by now.

    Args:
        limit_mb: how much an allocation may reach, on top of which nothing is tried.

    Raises:
        AsrError: the step failed for another reason than memory.
    """

    def __init__(self, recipe: Recipe, tokens: int, blank: int, own_mb: float, limit_mb: float) -> None:
        self.own_mb = own_mb
        self._child: subprocess.Popen[str] | None = None
        self._hello: dict[str, Any] = {
            "recipe": recipe_to_dict(recipe), "tokens": tokens, "blank": blank, "room_mb": limit_mb - own_mb,
            "threads": torch.get_num_threads(),
        }  # fmt: skip

    def __enter__(self) -> Trials:
        return self

    def peak_mb(self, shapes: list[Shape]) -> float | None:
        if self._hello["room_mb"] <= 0:
            return None
        if self._child is None:
            command = [sys.executable, "-m", "asr.train.auto_batch.step"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._say(self._hello)
        self._say([vars(shape) for shape in shapes])
        assert self._child.stdout is not None
        answer = self._child.stdout.readline()
        if answer:
            grown = json.loads(answer)
            return None if grown is None else self.own_mb + grown
        code, self._child = self._child.wait(), None
        if code in (-signal.SIGKILL, -signal.SIGABRT):  # by the system, or by C++ whose allocation failed in a thread
            return None
        raise AsrError(f"training.batch_frames: auto: a trial step ended with exit code {code}, see above")

    def _say(self, value: Any) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # its exit code says why
            self._child.stdin.write(json.dumps(value) + "\n")
            self._child.stdin.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()


def _child() -> None:
    """Answer every line of shapes on stdin with the MB that a step takes, or null; see `ChildTrials`."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, this is what to kill
    hello = json.loads(sys.stdin.readline())
    torch.set_num_threads(hello["threads"])
    keep_freed_memory()
    device = torch.device("cpu")
    trial = TrialModel(recipe_from_dict(hello["recipe"]), hello["tokens"], hello["blank"], device)
    before = own_memory_mb("VmRSS")
    most = int((own_memory_mb("VmData") + hello["room_mb"] + SLACK_MB) * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    for line in sys.stdin:
        give_back_freed_memory()  # of the trial before, which would count as this one's
        reset_peak_memory(device)
        fits = trial.tried([Shape(**shape) for shape in json.loads(line)])
        peak = peak_memory_mb(device)
        assert peak is not None
        print(json.dumps(peak - before if fits else None), flush=True)


if __name__ == "__main__":
    _child()
