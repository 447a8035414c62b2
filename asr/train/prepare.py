"""From a recipe and its experiment folder to the `State` that a training starts from, or goes on from."""

from __future__ import annotations

import logging
from typing import Any

import torch

from asr.audio.cmvn import Cmvn
from asr.data.manifest import read_manifest
from asr.data.tokens import TokenTable, build_tokens
from asr.encoder.model import CtcModel
from asr.errors import DataError
from asr.recipe import Recipe
from asr.recipe_loader import recipe_to_dict
from asr.train.ema import Ema
from asr.train.freeze import freeze
from asr.train.measure import Stopwatch, keep_freed_memory, reset_peak_memory
from asr.train.optimise import Schedule, build_optimiser
from asr.train.precision import Mixed
from asr.train.run import Run, pick_device, versions
from asr.train.sets import LoadedSet, keep_trainable, load_set
from asr.train.state import Counters, State, fingerprint
from asr.train.trial import Trial
from asr.train.warm_start import warm_start

log = logging.getLogger("asr")


def prepare(recipe: Recipe, run: Run, trial: Trial | None = None) -> State:
    """Read the data, build the model, and restore what is to be continued. `run` writes nothing before all is good.

    Raises:
        AsrError: bad data, another recipe or other data than those of the training to continue.
    """
    config = recipe.training
    device = pick_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(recipe.seed)  # of the first weights
    saved = run.load()  # on the CPU, where features are normalised
    tokens = (
        TokenTable.from_state(saved["tokens"])
        if saved
        else build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    )
    model = CtcModel(recipe.model, recipe.features.dim, len(tokens)).to(device)
    loaded = None if saved or config.init is None else warm_start(model, tokens, config.init)
    frozen = freeze(model, config.freeze)
    train_set, dev_set = _sets(recipe, tokens, model, saved)
    if trial:
        dev_set = dev_set.first(trial.dev_utterances)
    if saved and saved["training"]["data"] != fingerprint(train_set, dev_set):
        raise DataError(
            f"{run.last}: the training or dev data have changed since; put them back, or start anew with --overwrite"
        )
    run.begin(epochs_done=saved["training"]["counters"]["epoch"] if saved else 0)
    for data in (train_set, dev_set):
        run.list_dropped(data.name, data.dropped)

    state = State(
        recipe, device, tokens, train_set, dev_set, model, build_optimiser(config.optimiser, model),
        Schedule(config.schedule, config.optimiser.lr, 0), Counters(), Stopwatch(device),
        Mixed(config.precision, device),
        Ema(model, config.average.decay) if config.average.kind == "ema" else None, trial.steps if trial else None,
    )  # fmt: skip
    state.schedule.total_steps = config.epochs * len(state.groups(0))
    if saved:
        state.restore(saved)
    model.train()
    if loaded:
        log.info("first weights from %s: %s", config.init, loaded.text())
        run.event("init", source=str(config.init), **vars(loaded))
    if frozen:
        log.info("frozen: %s parameters", f"{frozen:,}")
    _announce(state, run, resumed=bool(saved))
    if device.type == "cpu":
        keep_freed_memory()
    reset_peak_memory(device)
    return state


def _sets(
    recipe: Recipe, tokens: TokenTable, model: CtcModel, saved: dict[str, Any] | None
) -> tuple[LoadedSet, LoadedSet]:
    cmvn, config = Cmvn.from_state(saved["cmvn"]) if saved else None, recipe.training
    train_set = load_set(recipe, "train", recipe.data.train, tokens, cmvn, dither=True, speeds=config.speeds)
    train_set = keep_trainable(train_set, recipe, model.output_length)
    dev_set = load_set(recipe, "dev", recipe.data.dev, tokens, train_set.cmvn)
    if not any(dev_set.targets):
        raise DataError(f"{recipe.data.dev}: no utterance with tokens, so there is nothing to validate on")
    return train_set, dev_set


def _announce(state: State, run: Run, resumed: bool) -> None:
    recipe, counters, train_set = state.recipe, state.counters, state.train
    hours = sum(train_set.frames) * recipe.features.hop_ms / 3.6e6
    log.info(
        "%s: %s parameters, %d tokens, %d utterances (%.2f h) to train on, %d to validate; %s, %d threads, seed %d%s",
        recipe.name, f"{state.model.parameter_count:,}", len(state.tokens), len(train_set.ids), hours,
        len(state.dev.ids), state.device, torch.get_num_threads(), recipe.seed,
        f"; resumed at epoch {counters.epoch + 1}, step {counters.group}" if resumed else "",
    )  # fmt: skip
    run.event(
        "start", name=recipe.name, recipe=recipe_to_dict(recipe), parameters=state.model.parameter_count,
        threads=torch.get_num_threads(), device=str(state.device), versions=versions(), utterances=len(train_set.ids),
        frames=sum(train_set.frames), resumed=resumed,
    )  # fmt: skip
