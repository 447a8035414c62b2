"""`asr bench train`: where the time of a training goes, measured in the training's own steps.

Utterances are noise with the lengths and targets of the recipe's manifest, or of a named distribution. What is timed is
`asr.train.loop` itself: batches, SpecAugment, forward, backward, clipping, optimiser, schedule. Beside it runs the same
model in a loop as one would write it by hand, over batches that lie ready; the two take turns.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from asr.data.batches import padded_frames
from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.report.bare_loop import BareLoop, Batch, Group, why_not
from asr.report.bench_kernels import gemm_rate
from asr.report.flops import count_flops
from asr.report.made_up_set import corpus, made_up
from asr.report.operators import HEAVY, operator_seconds, timed
from asr.train import loop
from asr.train.auto_batch.plan import find_batch_frames
from asr.train.checkpoint import save_checkpoint
from asr.train.freeze import freeze
from asr.train.precision import DTYPES
from asr.train.prepare import fresh_state
from asr.train.sets import keep_trainable
from asr.train.state import State
from asr.train.validate import validate
from asr.train.world import World

TURN = 5  # steps of a turn; those of the first also show the operators


class Figure(NamedTuple):
    part: str  # data, speed, step, operators, model, bare loop, epoch
    name: str
    value: float
    unit: str


def measure(
    recipe: Recipe,
    centiseconds: Sequence[int] | None = None,
    steps: int | None = 40,
    report: Callable[[str], None] = lambda line: None,
) -> list[Figure]:
    """All figures of a training of this recipe on this machine.

    Args:
        centiseconds: lengths of the utterances, in units of 10 ms; None: those of the recipe's manifests.
        steps: optimiser steps to time, after warm-up; None: those of an epoch, then its validation and checkpoint.

    Raises:
        AsrError: a device that cannot be had, or a recipe or manifests that cannot be trained on.
    """
    with World(recipe.training) as world:
        state = _state(recipe, world, centiseconds)
        plan = state.groups(1)  # of an ordinary epoch: the first begins with its largest batches
        chosen = plan if steps is None else plan[:steps]
        state.counters.epoch = 1
        bare = None if (reason := why_not(recipe)) else BareLoop(state)
        report(f"warm-up; {len(chosen)} of an epoch's {len(plan)} steps" + (f"; {reason}" if reason else ""))
        for group in [state.groups(0)[0], *chosen[:2]]:
            _run([group], state)
            if bare:
                bare(bare.ready([group]))
        turns = _take_turns(state, chosen, bare, report)
        few = chosen[:TURN]
        report("operators")
        operators = operator_seconds([partial(_run, [group], state) for group in few], state.device)
        flops = count_flops(lambda: _run(few, state))
        flops_per_frame = flops / sum(_padded(state, group) for group in few)
        figures = _data_figures(state, chosen) + _step_figures(turns) + _shares("operators", operators, "% of a step")
        beside = sum(seconds for kind, seconds in operators.items() if kind not in HEAVY) / sum(operators.values())
        figures += [Figure("operators", f"all but {', '.join(HEAVY)}", 100 * beside, "% of a step")]
        figures += _model_figures(flops_per_frame, turns, len(chosen))
        if bare:
            figures += _bare_figures(turns)
        if steps is None:
            report("validation and checkpoint")
            figures += _epoch_figures(state, turns)
        return figures


class Turn(NamedTuple):
    """Some steps: seconds of all of them, in all and by part, and of the bare loop; the processor's of all threads."""

    steps: int
    frames: int
    padded: int
    seconds: float
    processor: float
    parts: dict[str, float]
    bare_seconds: float
    bare_processor: float
    rate: float  # FLOP/s of torch.mm meanwhile


def _state(recipe: Recipe, world: World, centiseconds: Sequence[int] | None) -> State:
    config = recipe.training
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(recipe.seed)
    if centiseconds is None:
        tokens, train = corpus(recipe, recipe.data.train)
        dev = corpus(recipe, recipe.data.dev, tokens)[1]
    else:
        tokens, train = made_up(recipe, centiseconds)
        dev = train.first(max(1, len(train.ids) // 20))
    model = CtcModel(recipe.model, recipe.features.dim, len(tokens)).to(world.device)
    freeze(model, config.freeze)
    train = keep_trainable(train, recipe, model.output_length)
    if config.batch_is_open:
        recipe = recipe.settled(find_batch_frames(recipe, world, train, tokens).frames)
    return fresh_state(recipe, world, tokens, model, train, dev)


def _take_turns(
    state: State, groups: Sequence[Group], bare: BareLoop | None, report: Callable[[str], None]
) -> list[Turn]:
    """The training and the bare loop over the same steps, a few each, the one that begins changing every time."""
    device, dtype = state.device, DTYPES[state.recipe.training.precision]
    turns: list[Turn] = []
    for start in range(0, len(groups), TURN):
        few = groups[start : start + TURN]
        batches = bare.ready(few) if bare else []
        before, frames = dict(state.watch.seconds), state.counters.frames

        def ours(few: Sequence[Group] = few) -> None:
            _run(few, state)

        def theirs(batches: list[list[Batch]] = batches) -> None:
            if bare:
                bare(batches)

        first, second = (ours, theirs) if len(turns) % 2 == 0 else (theirs, ours)
        taken = {first: timed(first, device), second: timed(second, device)}
        state.watch.settle()
        parts = {name: seconds - before.get(name, 0.0) for name, seconds in state.watch.seconds.items()}
        padded = sum(_padded(state, group) for group in few)
        rate = gemm_rate(repeats=3, device=device, dtype=dtype)
        turns.append(Turn(len(few), state.counters.frames - frames, padded, *taken[ours], parts, *taken[theirs], rate))
        report(f"step {start + len(few)}: {1e3 * turns[-1].seconds / len(few):.0f} ms a step")
    return turns


def _run(groups: Sequence[Group], state: State) -> None:
    for group in groups:
        loop._step(group, state)


def _padded(state: State, group: Group) -> int:
    return sum(padded_frames(rows, state.train.frames) for rows in group)


def _data_figures(state: State, groups: Sequence[Group]) -> list[Figure]:
    rows = [row for group in groups for batch in group for row in batch]
    frames = [state.train.frames[row] for row in rows]
    padded = sum(_padded(state, group) for group in groups)
    return [
        Figure("data", "utterances of an epoch", len(state.train.ids), ""),
        Figure("data", "frames of an utterance, mean", statistics.mean(state.train.frames), ""),
        Figure("data", "frames of an utterance, longest", max(state.train.frames), ""),
        Figure("data", "tokens of an utterance, mean", statistics.mean(map(len, state.train.targets)), ""),
        Figure("data", "utterances of a step", len(rows) / len(groups), ""),
        Figure("data", "frames of a step with padding", padded / len(groups), ""),
        Figure("data", "padding", 100 * (1 - sum(frames) / padded), "%"),
    ]


def _step_figures(turns: Sequence[Turn]) -> list[Figure]:
    steps, seconds = sum(t.steps for t in turns), sum(t.seconds for t in turns)
    parts = {name: sum(t.parts.get(name, 0.0) for t in turns) for name in turns[0].parts}
    parts["rest"] = seconds - sum(parts.values())
    return [
        Figure("speed", "frames/s", sum(t.frames for t in turns) / seconds, ""),
        Figure("speed", "step", 1e3 * seconds / steps, "ms"),
        Figure("speed", "step, processor", 1e3 * sum(t.processor for t in turns) / steps, "ms"),
        *(Figure("step", name, 1e3 * value / steps, "ms") for name, value in parts.items()),
        *_shares("step", parts, "% of a step"),
    ]


def _shares(part: str, seconds: dict[str, float], unit: str) -> list[Figure]:
    total = sum(seconds.values())
    return [Figure(part, name, 100 * value / total, unit) for name, value in seconds.items()]


def _model_figures(flops_per_frame: float, turns: Sequence[Turn], steps: int) -> list[Figure]:
    """Medians over the turns, each against the rate of its own time."""
    rate = statistics.median(t.rate for t in turns)
    used = statistics.median(flops_per_frame * t.padded / t.seconds / t.rate for t in turns)
    return [
        Figure("model", "GFLOP of a step", flops_per_frame * sum(t.padded for t in turns) / steps / 1e9, ""),
        Figure("model", "torch.mm, GFLOP/s", rate / 1e9, ""),
        Figure("model", "utilisation", 100 * used, "% of torch.mm"),
    ]


def _bare_figures(turns: Sequence[Turn]) -> list[Figure]:
    steps = sum(t.steps for t in turns)
    return [
        Figure("bare loop", "step", 1e3 * sum(t.bare_seconds for t in turns) / steps, "ms"),
        Figure(
            "bare loop", "the training's time", statistics.median(t.seconds / t.bare_seconds for t in turns), "times"
        ),
        Figure(
            "bare loop",
            "the training's processor time",
            statistics.median(t.processor / t.bare_processor for t in turns),
            "times",
        ),
    ]


def _epoch_figures(state: State, turns: Sequence[Turn]) -> list[Figure]:
    def validation() -> None:
        validate(state.model, state.dev, state.recipe.training.frames_per_batch, state.device, state.tokens)

    with tempfile.TemporaryDirectory() as folder:

        def checkpoint() -> None:
            save_checkpoint(Path(folder) / "last.pt", state.resumable_content())

        parts = {
            "training": sum(t.seconds for t in turns),
            "validation": timed(validation, state.device)[0],
            "checkpoint": timed(checkpoint, state.device)[0],
        }
    return [Figure("epoch", name, value, "s") for name, value in parts.items()] + _shares(
        "epoch", parts, "% of an epoch"
    )
