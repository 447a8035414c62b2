"""One model of one seed: its training, its curve, its test."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.errors import AsrError
from asr.train.draws import seed_draws
from asr.train.optimise import Schedule, build_optimiser
from copying.config import CopyConfig
from copying.model import SymbolModel
from copying.sequences import Sequences, draw

TEST = 1  # the `epoch` of the test's draws; training has 0


def train(config: CopyConfig, seed: int) -> dict[str, Any]:
    """Train and test a model, on as many threads as torch has.

    The sequences of an update follow from (seed, update): every mixer sees the same ones. Loss (nats per symbol,
    natural log) and accuracy count the symbols of the second w alone, as the first is random.

    Returns:
        Plain types: parameters, curve (update, loss, accuracy, lr: means since the point before), test_loss,
        test_accuracy, test_whole (share of sequences copied without an error), update_ms (median).

    Raises:
        AsrError: the loss is not finite.
    """
    torch.manual_seed(seed)
    model = SymbolModel(config.model, config.task.symbols)
    settings = config.training
    optimiser = build_optimiser(settings.optimiser, model)
    schedule = Schedule(settings.schedule, settings.optimiser.lr, settings.updates)
    curve: list[dict[str, float]] = []
    seconds: list[float] = []
    since: list[tuple[float, float]] = []
    for update in range(1, settings.updates + 1):
        began = time.perf_counter()
        seed_draws(seed, 0, update)
        batch = draw(config.task)  # before anything that a mixer draws
        loss, right = _score(model, batch)
        if not loss.isfinite():
            raise AsrError(f"{config.name}, seed {seed}: the loss is {loss.item()} at update {update}; lower the rate")
        rate = schedule.apply(optimiser)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        seconds.append(time.perf_counter() - began)
        since.append((loss.item(), right[batch.second].float().mean().item()))
        if update % settings.log_updates == 0 or update == settings.updates:
            mean, accuracy = (statistics.fmean(values) for values in zip(*since, strict=True))
            curve.append({"update": update, "loss": mean, "accuracy": accuracy, "lr": rate})
            since = []
        if update % max(1, settings.updates // 10) == 0:
            print(f"{config.name}, seed {seed}: update {update}, {_words(curve)}", file=sys.stderr, flush=True)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "update_ms": 1e3 * statistics.median(seconds[len(seconds) > 1 :]),  # the first one pays for the warm-up
        **_test(model, config),
        "curve": curve,
    }


def _words(curve: list[dict[str, float]]) -> str:
    return f"loss {curve[-1]['loss']:.4f}, accuracy {100 * curve[-1]['accuracy']:.2f} %" if curve else "under way"


def _score(model: nn.Module, batch: Sequences) -> tuple[Tensor, Tensor]:
    """Mean loss of the second half, and (batch, time) where the best symbol is the right one."""
    logits = model(batch.symbols, batch.lengths)
    return F.cross_entropy(logits[batch.second], batch.targets[batch.second]), logits.argmax(-1) == batch.targets


@torch.inference_mode()
def _test(model: nn.Module, config: CopyConfig) -> dict[str, float]:
    model.eval()
    losses, right, whole, symbols = 0.0, 0, 0, 0
    for number in range(config.training.test_batches):
        seed_draws(0, TEST, number)
        batch = draw(config.task)
        loss, correct = _score(model, batch)
        count = int(batch.second.sum())
        losses += loss.item() * count
        symbols += count
        right += int((correct & batch.second).sum())
        whole += int((correct | ~batch.second).all(1).sum())
    sequences = config.training.test_batches * config.task.batch
    return {"test_loss": losses / symbols, "test_accuracy": right / symbols, "test_whole": whole / sequences}
