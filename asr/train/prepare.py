"""From a recipe and its experiment folder to the `State` that a training starts from, or goes on from."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import torch

from asr.audio.cmvn import Cmvn
from asr.data.manifest import read_manifest
from asr.data.tokens import TokenTable, build_tokens
from asr.encoder.model import CtcModel
from asr.errors import DataError, UsageError
from asr.recipe import Recipe
from asr.recipe_loader import recipe_to_dict
from asr.train.auto_batch.available import limit_mb
from asr.train.auto_batch.plan import find_batch_frames
from asr.train.compile import compile_blocks
from asr.train.config import AutoBatchConfig
from asr.train.ema import Ema
from asr.train.freeze import freeze
from asr.train.measure import Stopwatch, keep_freed_memory, reset_peak_memory
from asr.train.optimise import Schedule, build_optimiser
from asr.train.precision import Mixed
from asr.train.run import Run, differences, versions
from asr.train.sets import LoadedSet, keep_trainable, load_set
from asr.train.state import Counters, State
from asr.train.trial import Trial
from asr.train.warm_start import warm_start
from asr.train.world import World
from asr.wording import counted

log = logging.getLogger("asr")


def prepare(recipe: Recipe, run: Run, world: World, trial: Trial | None = None) -> State:
    """Read the data, build the model, and restore what is to be continued. `run` writes nothing before all is good.

    Raises:
        AsrError: bad data, another recipe or other data than those of the training to continue or of rank 0.
    """
    saved = world.from_first(run.load)  # on the CPU, where features are normalised
    recipe = recipe.settled(world.from_first(lambda: run.recipe.training.found))
    config = recipe.training
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(recipe.seed)  # of the first weights
    tokens = TokenTable.from_state(saved["tokens"]) if saved else _tokens(recipe, world)
    model = CtcModel(recipe.model, recipe.features.dim, len(tokens)).to(world.device)
    loaded = None if saved or config.init is None else warm_start(model, tokens, config.init)
    world.same_weights(model)
    frozen = freeze(model, config.freeze)
    world.place = "reading the data"
    train_set, dev_set = _sets(recipe, tokens, model, saved, (world.rank, world.size))
    if trial:
        dev_set = dev_set.first(trial.dev_utterances)
    world.wait()  # features may take hours on one machine and be there on another
    _check_same(recipe, world, train_set, dev_set)
    if saved and saved["training"]["data"] != [train_set.fingerprint, dev_set.fingerprint]:
        raise DataError(
            f"{run.last}: the training or dev data have changed since; put them back, or start anew with --overwrite"
        )
    found = find_batch_frames(recipe, world, train_set, tokens) if config.batch_is_open else None
    run.recipe = recipe = recipe.settled(found.frames if found else None)
    run.begin(epochs_done=saved["training"]["counters"]["epoch"] if saved else 0)
    if found:
        run.event("batch_frames", **found.record())
    for data in (train_set, dev_set):
        run.list_dropped(data.name, data.dropped)

    state = fresh_state(recipe, world, tokens, model, train_set, dev_set, trial.steps if trial else None)
    if saved:
        state.restore(saved)
    if loaded:
        log.info("first weights from %s: %s", config.init, loaded.text())
        run.event("init", source=str(config.init), **vars(loaded))
    if frozen:
        log.info("frozen: %s parameters", f"{frozen:,}")
    _announce(state, run, resumed=bool(saved))
    reset_peak_memory(world.device)
    return state


def fresh_state(
    recipe: Recipe,
    world: World,
    tokens: TokenTable,
    model: CtcModel,
    train_set: LoadedSet,
    dev_set: LoadedSet,
    steps: int | None = None,
) -> State:
    """A training before its first step; `steps` limits its epochs."""
    config = recipe.training
    state = State(
        recipe, world, world.device, tokens, train_set, dev_set, model, build_optimiser(config.optimiser, model),
        Schedule(config.schedule, config.optimiser.lr, 0), Counters(), Stopwatch(world.device),
        Mixed(config.precision, world.device),
        Ema(model, config.average.decay) if config.average.kind == "ema" else None, steps,
    )  # fmt: skip
    state.schedule.total_steps = config.epochs * len(state.groups(0))
    if config.compile:
        compile_blocks(model)
    model.train()
    if world.device.type == "cpu":
        keep_freed_memory()
        if isinstance(config.batch_frames, AutoBatchConfig):
            with suppress(OSError):  # where the system does not tell, and the number was found elsewhere
                state.limit_mb = limit_mb(config.batch_frames)
    return state


def find_batch(recipe: Recipe) -> int:
    """What `training.batch_frames: auto` would find here and now. Writes nothing but features.

    Raises:
        AsrError: as `prepare`; `training.batch_frames` is not `auto`.
    """
    config = recipe.training
    if not isinstance(config.batch_frames, AutoBatchConfig):
        raise UsageError(f"training.batch_frames is {config.batch_frames}; add training.batch_frames=auto")
    if config.threads:
        torch.set_num_threads(config.threads)
    with World(config) as world:
        tokens = _tokens(recipe, world)
        model = CtcModel(recipe.model, recipe.features.dim, len(tokens)).to(world.device)
        train_set, _ = _sets(recipe, tokens, model, None, (world.rank, world.size))
        return find_batch_frames(recipe, world, train_set, tokens).frames


def _tokens(recipe: Recipe, world: World) -> TokenTable:
    made = world.from_first(lambda: build_tokens(recipe.tokens, read_manifest(recipe.data.train)).state())
    return TokenTable.from_state(made)


def _sets(
    recipe: Recipe, tokens: TokenTable, model: CtcModel, saved: dict[str, Any] | None, share: tuple[int, int]
) -> tuple[LoadedSet, LoadedSet]:
    cmvn, config = Cmvn.from_state(saved["cmvn"]) if saved else None, recipe.training
    train_set = load_set(recipe, "train", recipe.data.train, tokens, cmvn, True, config.speeds, share)
    train_set = keep_trainable(train_set, recipe, model.output_length)
    dev_set = load_set(recipe, "dev", recipe.data.dev, tokens, train_set.cmvn, share=share)
    if not any(dev_set.targets):
        raise DataError(f"{recipe.data.dev}: no utterance with tokens, so there is nothing to validate on")
    return train_set, dev_set


def _check_same(recipe: Recipe, world: World, *sets: LoadedSet) -> None:
    """Raises DataError, in every process alike, where one was given another recipe or other data than rank 0."""
    everybody = world.gather((world.name, recipe_to_dict(recipe), [data.fingerprint for data in sets]))
    _, same_recipe, same_data = everybody[0]
    for name, its_recipe, its_data in everybody:
        different = differences(its_recipe, same_recipe) or ([] if its_data == same_data else ["the manifests"])
        if different:
            raise DataError(f"{name} does not train what rank 0 does; these differ: {', '.join(different)}")


def _announce(state: State, run: Run, resumed: bool) -> None:
    recipe, counters, train_set = state.recipe, state.counters, state.train
    frames = sum(train_set.frames)
    hours = frames * recipe.features.hop_ms / 3.6e6
    log.info(
        "%s: %s parameters, %d tokens, %s (%.2f h) to train on, %d to validate; %s%s, %s, seed %d%s",
        recipe.name, f"{state.model.parameter_count:,}", len(state.tokens),
        counted(len(train_set.ids), "utterance"), hours, len(state.dev.ids),
        f"{state.world.size} processes, " if state.world.size > 1 else "", state.device,
        counted(torch.get_num_threads(), "thread"), recipe.seed,
        f"; resumed at epoch {counters.epoch + 1}, step {counters.group}" if resumed else "",
    )  # fmt: skip
    run.event(
        "start", name=recipe.name, recipe=recipe_to_dict(recipe), parameters=state.model.parameter_count,
        processes=state.world.size, threads=torch.get_num_threads(), device=str(state.device), versions=versions(),
        utterances=len(train_set.ids), frames=frames, resumed=resumed,
    )  # fmt: skip
