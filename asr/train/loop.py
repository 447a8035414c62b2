"""Training, from top to bottom: `train` is the loop, `_step` one update, `_end_epoch` what is learnt from an epoch."""

from __future__ import annotations

import logging
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from asr.audio.cmvn import Cmvn
from asr.ctc.loss import ctc_loss_sum, reference_tokens
from asr.data.batches import plan_batches
from asr.data.manifest import read_manifest
from asr.data.tokens import TokenTable, build_tokens
from asr.encoder.model import CtcModel
from asr.errors import AsrError, DataError
from asr.recipe import Recipe
from asr.recipe_loader import recipe_to_dict
from asr.train.checkpoint import load_checkpoint, save_checkpoint
from asr.train.interrupt import StopRequest
from asr.train.measure import Stopwatch, keep_freed_memory, peak_memory_mb, reset_peak_memory
from asr.train.optimise import Schedule, build_optimiser
from asr.train.progress import Progress
from asr.train.run import Run, pick_device, versions
from asr.train.sets import LoadedSet, keep_trainable, load_set
from asr.train.validate import Validation, validate

log = logging.getLogger("asr")

MAX_BAD_STEPS = 10  # non-finite gradients in a row after which training gives up
PREDICT_AFTER = 50  # steps after which the time of an epoch is predicted


@dataclass
class Counters:
    """Where the run stands: all that is needed, beside weights and optimiser, to go on as if it had never stopped."""

    epoch: int = 0  # epochs finished
    group: int = 0  # steps made in the current epoch
    bad_steps: int = 0  # non-finite gradients in a row
    skipped: int = 0  # and in all
    best_per: float = math.inf
    best_loss: float = math.inf
    best_epoch: int = 0
    elapsed: float = 0.0  # seconds of training and validation so far
    loss_sum: float = 0.0  # of the current epoch, as are all below
    tokens: int = 0
    frames: int = 0
    grad_norm: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def new_epoch(self) -> None:
        self.group = self.tokens = self.frames = 0
        self.loss_sum = self.grad_norm = 0.0
        self.seconds = {}


class Interrupted(AsrError):
    """Training was asked to stop; `last.pt` holds everything needed to go on."""

    exit_code = 130


def train(recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train a recipe and return its experiment folder.

    Raises:
        AsrError: bad data, a folder in use, ten non-finite steps in a row.
        Interrupted: SIGINT or SIGTERM; a checkpoint was saved.
    """
    with Run(recipe, resume, overwrite) as run:
        state = _prepare(recipe, run)
        config, counters = recipe.training, state.counters
        with StopRequest() as stop, Progress(config.epochs) as progress:
            while counters.epoch < config.epochs and not _out_of_time(config.max_minutes, counters.elapsed):
                plan = state.groups(counters.epoch)
                progress.epoch(counters.epoch + 1, len(plan), done=counters.group)
                for group in plan[counters.group :]:
                    if stop.requested:
                        _interrupt(run, state)
                    _step(group, state)
                    progress.step(counters.loss_sum / max(1, counters.tokens), state.frames_per_second)
                    if counters.epoch == 0 and counters.group == PREDICT_AFTER < len(plan):
                        seconds = sum(state.train.frames) / state.frames_per_second
                        log.info("an epoch will take about %.0f s (%.0f frames/s)", seconds, state.frames_per_second)
                _end_epoch(run, state, stop)
        reason = "finished" if counters.epoch >= config.epochs else "max_minutes"
        run.event("end", reason=reason, best_epoch=counters.best_epoch, best_per=counters.best_per)
        log.info("done: best dev PER %.2f %% in epoch %d, %s", counters.best_per, counters.best_epoch, run.best)
    return run.folder


@dataclass
class State:
    """Everything the loop works on."""

    recipe: Recipe
    device: torch.device
    tokens: TokenTable
    train: LoadedSet
    dev: LoadedSet
    model: CtcModel
    optimiser: torch.optim.Optimizer
    schedule: Schedule
    counters: Counters
    watch: Stopwatch

    def groups(self, epoch: int) -> list[list[list[int]]]:
        """The batches of an epoch in groups of `accumulate`, one optimiser step each; the last may be smaller."""
        config = self.recipe.training
        batches = plan_batches(self.train.frames, config.batch_frames, self.recipe.seed, epoch, self.train.ids)
        return [batches[i : i + config.accumulate] for i in range(0, len(batches), config.accumulate)]

    @property
    def frames_per_second(self) -> float:
        spent = sum(self.watch.seconds.values()) + sum(self.counters.seconds.values())
        return self.counters.frames / spent if spent else 0.0

    def content(self) -> dict[str, Any]:
        """What a checkpoint needs so that others can decode with it."""
        return {
            "recipe": recipe_to_dict(self.recipe),
            "tokens": self.tokens.state(),
            "cmvn": self.train.cmvn.state_dict(),
            "model": self.model.state_dict(),
            "epoch": self.counters.epoch,
            "dev_per": self.counters.best_per,
            "versions": versions(),
        }


def _prepare(recipe: Recipe, run: Run) -> State:
    config = recipe.training
    device = pick_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(recipe.seed)
    saved = load_checkpoint(run.last) if run.resuming else None  # on the CPU, where features are normalised
    if saved:
        if "training" not in saved:
            raise DataError(f"{run.last}: has weights only (a best.pt?) and cannot be resumed; start with --overwrite")
        run.check_same(saved["recipe"])

    tokens = (
        TokenTable.from_state(saved["tokens"])
        if saved
        else build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    )
    model = CtcModel(recipe.model, recipe.features.dim, len(tokens)).to(device)
    cmvn = Cmvn.from_state(saved["cmvn"]) if saved else None
    train_set = load_set(recipe, "train", recipe.data.train, tokens, cmvn, dither=True)
    train_set = keep_trainable(train_set, recipe, model.output_length)
    dev_set = load_set(recipe, "dev", recipe.data.dev, tokens, train_set.cmvn)
    if not any(dev_set.targets):
        raise DataError(f"{recipe.data.dev}: no utterance with tokens, so there is nothing to validate on")
    if saved and saved["training"]["data"] != _fingerprint(train_set):
        raise DataError(
            f"{run.last}: the training data have changed since; put them back, or start anew with --overwrite"
        )
    run.begin()
    for data in (train_set, dev_set):
        run.list_dropped(data.name, data.dropped)

    optimiser = build_optimiser(config.optimiser, model)
    state = State(
        recipe, device, tokens, train_set, dev_set, model, optimiser,
        Schedule(config.schedule, config.optimiser.lr, 0), Counters(), Stopwatch(device),
    )  # fmt: skip
    state.schedule.total_steps = config.epochs * len(state.groups(0))
    if saved:
        _restore(state, saved)
    model.train()
    hours = sum(train_set.frames) * recipe.features.hop_ms / 3.6e6
    log.info(
        "%s: %s parameters, %d tokens, %d utterances (%.2f h) to train on, %d to validate; %s, %d threads, seed %d%s",
        recipe.name, f"{model.parameter_count:,}", len(tokens), len(train_set.ids), hours, len(dev_set.ids),
        device, torch.get_num_threads(), recipe.seed,
        f"; resumed at epoch {state.counters.epoch + 1}, step {state.counters.group}" if saved else "",
    )  # fmt: skip
    run.event(
        "start", name=recipe.name, recipe=recipe_to_dict(recipe), parameters=model.parameter_count,
        threads=torch.get_num_threads(), device=str(device), versions=versions(), utterances=len(train_set.ids),
        frames=sum(train_set.frames), resumed=bool(saved),
    )  # fmt: skip
    if device.type == "cpu":
        keep_freed_memory()
    reset_peak_memory(device)
    return state


def _step(group: list[list[int]], state: State) -> None:
    """One optimiser step over the batches of a group, whose losses share one divisor."""
    config, counters, watch = state.recipe.training, state.counters, state.watch
    divisor = reference_tokens([state.train.targets[row] for rows in group for row in rows])
    draws = f"{state.recipe.seed}/{counters.epoch}"
    ids: list[str] = []
    loss_sum = 0.0
    for rows in group:
        with watch("data"):
            batch = state.train.batch(rows, config.spec_augment, draws).to(state.device)
        with watch("forward"):
            log_probs, lengths = state.model(batch.features, batch.lengths)
            loss = ctc_loss_sum(log_probs, lengths, batch.targets, state.tokens.blank) / divisor
        with watch("backward"):
            loss.backward()
        loss_sum += float(loss.detach()) * divisor
        counters.frames += int(batch.lengths.sum())
        ids += batch.ids
    with watch("optimiser"):
        norm = float(torch.nn.utils.clip_grad_norm_(state.model.parameters(), config.clip))
        state.schedule.apply(state.optimiser)
        if math.isfinite(norm) and math.isfinite(loss_sum):
            state.optimiser.step()
            counters.bad_steps = 0
            counters.loss_sum += loss_sum
            counters.tokens += divisor
            counters.grad_norm += norm
        else:
            counters.bad_steps += 1
            counters.skipped += 1
            log.warning("step skipped: loss or gradient is not finite; utterances: %s", " ".join(ids))
        state.optimiser.zero_grad(set_to_none=True)
    counters.group += 1
    if counters.bad_steps >= MAX_BAD_STEPS:
        raise AsrError(f"{MAX_BAD_STEPS} steps in a row without a finite gradient; lower training.optimiser.lr")


def _end_epoch(run: Run, state: State, stop: StopRequest) -> None:
    """Validate, log, save `last.pt`, and `best.pt` where the dev PER is better than ever."""
    recipe, counters, watch = state.recipe, state.counters, state.watch
    epoch, steps = counters.epoch + 1, max(1, counters.group)
    spent = {k: counters.seconds.get(k, 0.0) + v for k, v in watch.seconds.items()}
    train_seconds = sum(spent.values())
    out_of_time = _out_of_time(recipe.training.max_minutes, counters.elapsed + train_seconds)
    last = epoch == recipe.training.epochs or out_of_time
    result: Validation | None = None
    if epoch % recipe.training.validate_every == 0 or last:
        with watch("validation"):
            result = validate(
                state.model, state.dev, recipe.training.batch_frames, state.device, state.tokens,
                lambda: stop.requested,
            )  # fmt: skip
        if stop.requested:  # the epoch ends again, with a whole validation, when the run is resumed
            watch.seconds.pop("validation")
            _interrupt(run, state)
    spent["validation"] = watch.seconds.get("validation", 0.0)
    spent["total"] = train_seconds + spent["validation"]
    counters.elapsed += spent["total"]
    dev_loss = result.loss if result is not None and math.isfinite(result.loss) else math.inf
    best = result is not None and (result.per, dev_loss) < (counters.best_per, counters.best_loss)
    record: dict[str, Any] = {
        "epoch": epoch, "seconds": {k: round(v, 4) for k, v in spent.items()}, "train_seconds": train_seconds,
        "frames": counters.frames, "frames_per_second": counters.frames / max(train_seconds, 1e-9),
        "loss": counters.loss_sum / max(1, counters.tokens), "lr": state.optimiser.param_groups[0]["lr"],
        "grad_norm": counters.grad_norm / steps, "skipped_steps": counters.skipped,
        "peak_memory_mb": peak_memory_mb(state.device), "elapsed": counters.elapsed, "best": best,
    }  # fmt: skip
    if result is not None:
        record |= {
            "dev_loss": result.loss, "dev_per": result.per,
            "dev_sdi": [result.substitutions, result.deletions, result.insertions],
            "dev_tokens": result.reference_tokens, "blank_share": result.blank_share,
            "length_ratio": result.length_ratio,
        }  # fmt: skip
        if state.schedule.observe(result.per):
            log.info("dev PER stopped decreasing: learning rate %.2e from here", state.schedule.lr())
    counters.epoch = epoch
    counters.new_epoch()
    watch.seconds.clear()
    if best:
        assert result is not None
        counters.best_per, counters.best_loss, counters.best_epoch = result.per, dev_loss, epoch
        save_checkpoint(run.best, state.content())
    # Before last.pt: killed in between, the epoch stands in the log twice, where readers take the second, not never.
    run.event("epoch", **record)
    log.info("%s", describe(record))
    _save_last(run, state)


def describe(record: dict[str, Any]) -> str:
    """One line for an epoch's record."""
    text = f"epoch {record['epoch']}: loss {record['loss']:.3f}"
    if "dev_per" in record:
        s, d, i = record["dev_sdi"]
        text += (
            f", dev loss {record['dev_loss']:.3f}, dev PER {record['dev_per']:.2f} % (S {s} D {d} I {i} of "
            f"{record['dev_tokens']}), blanks {record['blank_share']:.0%}, length {record['length_ratio']:.2f}"
        )
    text += f"; {record['train_seconds']:.1f} s, {record['frames_per_second']:.0f} frames/s, lr {record['lr']:.2e}"
    return text + (" *" if record["best"] else "")


def _out_of_time(minutes: float | None, elapsed: float) -> bool:
    return minutes is not None and elapsed >= 60 * minutes


def _interrupt(run: Run, state: State) -> None:
    for name, seconds in state.watch.seconds.items():
        state.counters.seconds[name] = state.counters.seconds.get(name, 0.0) + seconds
    state.watch.seconds.clear()
    _save_last(run, state)
    raise Interrupted(f"stopped in epoch {state.counters.epoch + 1}; saved {run.last}; go on with --resume")


def _save_last(run: Run, state: State) -> None:
    training = {
        "optimiser": state.optimiser.state_dict(),
        "schedule": state.schedule.state_dict(),
        "counters": vars(state.counters).copy(),
        "data": _fingerprint(state.train),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state(state.device) if state.device.type == "cuda" else None,
    }
    save_checkpoint(run.last, {**state.content(), "training": training})


def _fingerprint(data: LoadedSet) -> int:
    """Changes with the ids, lengths and targets that an epoch consists of."""
    return zlib.crc32(repr((data.ids, data.frames, data.targets)).encode())


def _restore(state: State, saved: dict[str, Any]) -> None:
    training = saved["training"]
    state.model.load_state_dict(saved["model"])
    state.optimiser.load_state_dict(training["optimiser"])
    state.schedule.load_state_dict(training["schedule"])
    state.counters = Counters(**training["counters"])
    torch.set_rng_state(training["random"].cpu())
    if training["random_cuda"] is not None and state.device.type == "cuda":
        torch.cuda.set_rng_state(training["random_cuda"].cpu(), state.device)
