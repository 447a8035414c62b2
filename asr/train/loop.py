"""Training, from top to bottom: `train` is the loop, `_step` one update, `_end_epoch` what is learnt from an epoch."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import torch

from asr.ctc.loss import reference_tokens
from asr.errors import AsrError
from asr.recipe import Recipe
from asr.train.average import averaged_content, epoch_file, keep, prune
from asr.train.draws import seed_draws
from asr.train.interrupt import StopRequest
from asr.train.measure import peak_memory_mb
from asr.train.memory import memory_for
from asr.train.objective import Losses, losses
from asr.train.prepare import prepare
from asr.train.progress import Progress
from asr.train.run import Onlooker, Run
from asr.train.sets import Batch
from asr.train.state import State
from asr.train.trial import Trial
from asr.train.validate import Validation, merged, validate
from asr.train.world import World

log = logging.getLogger("asr")

PREDICT_AFTER = 50  # steps after which the time of an epoch is predicted


class Interrupted(AsrError):
    """Training was asked to stop; `last.pt` holds everything needed to go on."""

    exit_code = 130


def train(recipe: Recipe, *, resume: bool = False, overwrite: bool = False, trial: Trial | None = None) -> Path:
    """Train a recipe and return its experiment folder.

    Under torchrun all processes call it and make each step together; rank 0 writes the folder. After a restart by
    torchrun it goes on from the latest checkpoint.

    Raises:
        AsrError: bad data, a folder in use, a full disk, `training.max_nonfinite` non-finite steps in a row.
        Interrupted: SIGINT or SIGTERM, to any of the processes; a checkpoint was saved.
        LostProcess: another process of this training ended or did not answer in time.
    """
    with (
        World(recipe.training) as world,
        (Run if world.first else Onlooker)(recipe, resume, overwrite, world.restarted) as run,
    ):
        state = prepare(recipe, run, world, trial)
        counters = state.counters
        with StopRequest() as stop, Progress(state, shown=world.first) as progress:
            while (reason := state.end()) is None:
                plan = state.groups(counters.epoch)
                progress.epoch(len(plan))
                for group in plan[counters.group :]:
                    if world.any(stop.requested):
                        _interrupt(run, state)
                    _step(group, state)
                    state.keep_within_memory()
                    progress.step()
                    if trial:
                        trial.after_step(counters.epoch + 1, counters.group, len(plan))
                    if state.save_due:
                        _save(run, state)
                    if counters.epoch == 0 and counters.group == PREDICT_AFTER < len(plan):
                        _predict(state)
                _end_epoch(run, state, stop)
                state.keep_within_memory()
            if counters.kept:
                _average(run, state, stop)
        run.event("end", reason=reason, best_epoch=counters.best_epoch, best_per=counters.best_per)
        if counters.best_epoch:
            log.info("done: best dev PER %.2f %% in epoch %d, %s", counters.best_per, counters.best_epoch, run.best)
        else:
            log.warning("done, but no validation was finite: there is no %s", run.best)
    return run.folder


def _step(group: list[list[int]], state: State) -> None:
    """One optimiser step over the batches of a group, whose losses share one divisor."""
    config, counters, watch = state.recipe.training, state.counters, state.watch
    divisor = reference_tokens([state.train.targets[row] for rows in group for row in rows])
    world = state.world
    world.place = f"epoch {counters.epoch + 1}, step {counters.group + 1}"
    seed_draws(state.recipe.seed, counters.epoch, counters.group, world.rank)
    part, found, frames = world.part(group), list[Losses](), 0
    draws = state.draws(counters.epoch)
    for number, rows in enumerate(part, 1):
        if number == len(part):
            state.exchange.before_last_backward()
        with watch("data"):
            batch = state.train.batch(rows, config.spec_augment, draws, config.views, state.device)
        with memory_for(batch.ids, batch.frames, state.recipe):
            found.append(_accumulate(batch, divisor, state))
        frames += sum(batch.frames) // config.views
    spent = state.spent
    if world.size > 1:
        with watch("exchange"):
            loss_sum, frames, spent, terms = _exchange(state, *_read(found), frames, spent)
    counters.frames += frames
    with watch("optimiser"):
        state.mixed.unscale(state.optimiser)
        clipped = torch.nn.utils.clip_grad_norm_(state.model.parameters(), config.clip)
        if world.size == 1:  # all gradients are asked for by now: here a GPU is waited for, and nowhere before
            loss_sum, terms = _read(found)
        norm = float(clipped)
        state.schedule.apply(state.optimiser, spent)
        finite = math.isfinite(norm) and math.isfinite(loss_sum)
        overflowed = math.isfinite(loss_sum) and state.mixed.overflowed(norm)
        if finite:
            state.optimiser.step()
            if state.ema:
                state.ema.update()
            counters.bad_steps = 0
            counters.add(loss_sum, terms, divisor, norm)
        state.mixed.update()
        state.optimiser.zero_grad(set_to_none=True)
    counters.group += 1
    if overflowed:
        counters.overflows += 1
    elif not finite:
        rows = [row for rows in part for row in rows]
        _skip(state, [state.train.ids[row] for row in rows], [loss for one in found for loss in one.total.tolist()])


def _read(found: list[Losses]) -> tuple[float, dict[str, float]]:
    """The sums of the losses of several batches, and of their terms by name."""
    terms: dict[str, float] = {}
    for one in found:
        for name, values in one.parts.items():
            terms[name] = terms.get(name, 0.0) + float(values.sum())
    return sum((float(one.total.sum()) for one in found), 0.0), terms


def _exchange(
    state: State, loss_sum: float, terms: dict[str, float], frames: int, spent: float
) -> tuple[float, int, float, dict[str, float]]:
    """Gradients, losses and frames of all processes together, and the clock of rank 0, which all rates follow."""
    state.exchange.finish()  # first: what it sends comes in one order with all other messages
    losses, frame_counts, clocks, parts = zip(*state.world.gather((loss_sum, frames, spent, terms)), strict=True)
    names = {name: None for part in parts for name in part}
    return sum(losses), sum(frame_counts), clocks[0], {n: sum(part.get(n, 0.0) for part in parts) for n in names}


def _accumulate(batch: Batch, divisor: int, state: State) -> Losses:
    """Add a batch's share to the gradients; the losses of each of its utterances, in nats."""
    with state.watch("forward"), state.mixed.forward():
        found = losses(state.model, batch, state.recipe, state.tokens.blank)
    with state.watch("backward"):
        state.mixed.backward(found.total.sum() / divisor)
    return Losses(found.total.detach(), {name: values.detach() for name, values in found.parts.items()})


def _skip(state: State, ids: list[str], each: list[float]) -> None:
    """Count a step that changed no weight, and name the utterances it came from.

    Raises:
        AsrError: it is the last of `training.max_nonfinite` in a row.
    """
    counters, most = state.counters, state.recipe.training.max_nonfinite
    everywhere = [pair for pairs in state.world.gather(list(zip(ids, each, strict=True))) for pair in pairs]
    not_finite = [id for id, loss in everywhere if not math.isfinite(loss)]
    counters.bad_steps += 1
    counters.skipped += 1
    cause = (
        f"the loss of {' '.join(not_finite)}"
        if not_finite
        else f"the gradient of {' '.join(id for id, _ in everywhere)}"
    )
    where = f"epoch {counters.epoch + 1}, step {counters.group}"
    log.warning("%s skipped: %s is not finite", where, cause)
    if counters.bad_steps >= most:
        raise AsrError(
            f"{most} steps in a row were not finite (training.max_nonfinite), the last by {cause}; "
            "lower training.optimiser.lr, or look at these utterances"
        )


def _end_epoch(run: Run, state: State, stop: StopRequest) -> None:
    """Validate, log, save `last.pt`, and `best.pt` where the dev PER is better than ever."""
    config, counters = state.recipe.training, state.counters
    epoch = counters.epoch + 1
    world = state.world
    world.place = f"end of epoch {epoch}"
    state.watch.settle()  # on a GPU the time spent is known late
    last = epoch == config.epochs or world.from_first(lambda: state.out_of_time(state.elapsed))
    result: Validation | None = None
    if epoch % config.validate_every == 0 or last:
        result = _validate(state, stop)
        if world.any(stop.requested):  # the epoch ends again, with a whole validation, when the run is resumed
            state.watch.settle()
            state.watch.seconds.pop("validation", None)
            _interrupt(run, state)
    state.watch.settle()
    counters.elapsed = world.from_first(lambda: state.elapsed)
    dev_loss = result.loss if result is not None and math.isfinite(result.loss) else math.inf
    best = result is not None and (result.per, dev_loss) < (counters.best_per, counters.best_loss)
    record = {"epoch": epoch, **_record(state, result), "best": best}
    if result is not None:
        if result.not_finite:
            log.warning("no dev PER: the output is not finite for %s", " ".join(result.not_finite))
        if state.schedule.observe(result.per):
            log.info("dev PER stopped decreasing: learning rate %.2e from here", state.schedule.lr())
        counters.waited = 0 if best else counters.waited + (not result.not_finite)
    counters.epoch = epoch
    counters.new_epoch()
    state.watch.seconds.clear()
    if best:
        assert result is not None
        counters.best_per, counters.best_loss, counters.best_epoch = result.per, dev_loss, epoch
        with state.decoding_weights():
            run.save(run.best, state.content())
    if result is not None:
        counters.kept = keep(config.average, counters.kept, result.per, result.loss, epoch)
    if any(kept[-1] == epoch for kept in counters.kept):
        assert result is not None
        run.save(epoch_file(run.folder, epoch), {**state.content(), "dev_per": result.per})
    # Before last.pt: killed in between, the line is taken back when the run is resumed, and is never missing.
    run.event("epoch", **record)
    log.info("%s", describe(record))
    _save(run, state)
    if world.first:
        prune(run.folder, [kept[-1] for kept in counters.kept])  # after last.pt, whose epochs they are
    if result is not None:
        run.show(state)
        world.wait()  # for rank 0, however long it draws


def _validate(state: State, stop: StopRequest) -> Validation:
    with state.watch("validation"), state.decoding_weights():
        frames = state.recipe.training.frames_per_batch
        share = (state.world.rank, state.world.size)
        part = validate(state.model, state.dev, frames, state.device, state.tokens, lambda: stop.requested, share)
        return merged(state.world.gather(part))


def _average(run: Run, state: State, stop: StopRequest) -> None:
    """Write `averaged.pt` from the epochs kept, and say how good it is."""
    world = state.world
    content = world.from_first(lambda: averaged_content(run.folder, [kept[-1] for kept in state.counters.kept]))
    state.model.load_state_dict(content["model"])  # the training is over
    result = _validate(state, stop)
    if world.any(stop.requested):
        raise Interrupted(f"stopped before {run.averaged} was made; go on with --resume")
    run.save(run.averaged, {**content, "dev_per": result.per})
    run.event("average", weights=content["weights"], dev_per=result.per, dev_loss=result.loss)
    log.info("%s: dev PER %.2f %%, dev loss %.3f, %s", content["weights"], result.per, result.loss, run.averaged)


def _record(state: State, result: Validation | None) -> dict[str, Any]:
    """What log.jsonl keeps of an epoch."""
    counters = state.counters
    parts = {"validation": 0.0, "checkpoints": 0.0, **state.seconds}
    record: dict[str, Any] = {
        "seconds": {k: round(v, 4) for k, v in {**parts, "total": sum(parts.values())}.items()},
        "train_seconds": state.train_seconds, "frames": counters.frames,
        "frames_per_second": counters.frames / max(state.train_seconds, 1e-9),
        "loss": counters.loss, "lr": state.optimiser.param_groups[0]["lr"],
        "grad_norm": counters.grad_norm / max(1, counters.group), "skipped_steps": counters.skipped,
        "peak_memory_mb": peak_memory_mb(state.device), "elapsed": counters.elapsed,
    }  # fmt: skip
    if len(counters.parts) > 1:
        record["loss_parts"] = {name: total / max(1, counters.tokens) for name, total in counters.parts.items()}
    if state.mixed.scaler.is_enabled():
        record |= {"overflows": counters.overflows, "loss_scale": state.mixed.scaler.get_scale()}
    if result is not None:
        record |= {
            "dev_loss": result.loss, "dev_per": result.per,
            "dev_sdi": [result.substitutions, result.deletions, result.insertions],
            "dev_tokens": result.reference_tokens, "blank_share": result.blank_share,
            "length_ratio": result.length_ratio,
        }  # fmt: skip
    return record


def describe(record: dict[str, Any]) -> str:
    """One line for an epoch's record."""
    text = f"epoch {record['epoch']}: loss {record['loss']:.3f}"
    if "dev_per" in record:
        s, d, i = record["dev_sdi"]
        text += (
            f", dev loss {record['dev_loss']:.3f}, dev PER {record['dev_per']:.2f} % (S {s} D {d} I {i} of "
            f"{record['dev_tokens']}), blanks {record['blank_share']:.0%}, length {record['length_ratio']:.2f}"
        )
    if "loss_parts" in record:
        text += "; " + ", ".join(f"{name} {value:.3f}" for name, value in record["loss_parts"].items())
    text += f"; {record['train_seconds']:.1f} s, {record['frames_per_second']:.0f} frames/s, lr {record['lr']:.2e}"
    return text + (" *" if record["best"] else "")


def _predict(state: State) -> None:
    seconds = sum(state.train.frames) / state.frames_per_second
    log.info("an epoch will take about %.0f s (%.0f frames/s)", seconds, state.frames_per_second)


def _interrupt(run: Run, state: State) -> None:
    _save(run, state)
    state.world.wait()  # torchrun ends all as soon as one has ended
    raise Interrupted(f"stopped in epoch {state.counters.epoch + 1}; saved {run.last}; go on with --resume")


def _save(run: Run, state: State) -> None:
    """Write `last.pt`; the one before goes on as `previous.pt`."""
    with state.watch("checkpoints"):
        run.save(run.last, state.resumable_content(), keep=run.previous)
    state.saved()
