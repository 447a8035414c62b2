"""Puts models side by side: trains what is not trained yet, evaluates all, and makes the rows of one table."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.errors import AsrError
from asr.report.batches import one_size
from asr.report.experiments import Experiment, changed_since_training, unfair
from asr.report.log import TrainingLog, read_log
from asr.report.plots import Curve, plot_curves, plot_rate_by_time
from asr.report.table import Rate, Row, csv_text, markdown
from asr.report.training import find_batch, train
from asr.wording import counted

log = logging.getLogger(__name__)

Evaluate = Callable[[Experiment], dict[str, dict[str, Any]]]
Train = Callable[[Experiment, bool], None]


@dataclass
class Comparison:
    """`rows` in the order given, published ones after ours; `warnings` say what is not comparable."""

    rows: list[Row]
    logs: dict[str, TrainingLog]  # by model
    warnings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.error]


def compare(
    experiments: Sequence[Experiment],
    *,
    evaluate: Evaluate,
    retrain: bool = False,
    own_batches: bool = False,
    train: Train = train,
    find_batch: Callable[[Experiment], int] = find_batch,
) -> Comparison:
    """Train each recipe that has no finished experiment, one after the other, then evaluate all of them.

    An error of one model is kept in its row and the others go on; an interrupt stops everything. What is wrong is
    found before the first training, and said where hours may pass until it stands beside the table.

    Args:
        evaluate: gives the results of `asr.report.evaluate` by set.
        retrain: train every recipe anew, also those that are finished.
        own_batches: recipes with `training.batch_frames: auto` are trained with the largest batches that fit each of
            them, else with one size that fits all; see `asr.report.batches`.
    """
    errors: dict[str, str] = {}
    if not own_batches:
        experiments, errors = one_size(experiments, retrain, find_batch)
    warnings = unfair(experiments, retrain, own_batches) if experiments else []
    untrained = []
    for one in experiments:
        if one.name in errors:
            continue
        try:
            if _needs_training(one, retrain):
                untrained.append(one)
        except AsrError as error:
            errors[one.name] = str(error)
    if untrained:
        for line in [*warnings, *errors.values()]:
            log.warning(line)
    for number, one in enumerate(untrained, 1):
        log.info("training %s", one.name)
        try:
            train(one, retrain)
        except AsrError as error:
            errors[one.name] = str(error)
            if number < len(untrained):
                log.error("%s", error)
    rows, logs = [], {}
    for one in experiments:
        results: dict[str, dict[str, Any]] = {}
        try:
            if one.name not in errors:  # else the folder may hold the numbers of another recipe
                logs[one.name] = read_log(one.exp)
                log.info("evaluating %s", one.name)
                results = evaluate(one)
        except AsrError as error:
            errors[one.name] = str(error)
        rows.append(_row(one, logs.setdefault(one.name, TrainingLog({}, [], False)), results, errors.get(one.name)))
    warnings += _utterances(logs) + _machines(logs) + (_own_batches(experiments) if own_batches else [])
    return Comparison(_with_ratios([*rows, *_published(experiments)], experiments), logs, warnings)


def _needs_training(one: Experiment, retrain: bool) -> bool:
    """Raises AsrError where a folder holds no model, or one that was trained with other settings than its recipe's."""
    if one.recipe_file is None:
        if not (one.exp / "best.pt").is_file():
            raise AsrError(f"{one.exp}: no best.pt; give the recipe instead to have it trained")
        return False
    if retrain or not one.finished:
        return True
    if not (changed := changed_since_training(one)):
        return False
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    raise AsrError(
        f"{one.exp} was trained with other settings ({'; '.join(changed[:3])}{more}); "
        "use --retrain, or another folder (exp=…)"
    )


def _row(one: Experiment, log: TrainingLog, results: dict[str, dict[str, Any]], error: str | None) -> Row:
    rates = {
        name: Rate(result["unit"], result["rate"], *(result["interval"] or (None, None)))
        for name, result in results.items()
    }
    audio = sum(result["audio_seconds"] for result in results.values())
    decoding = sum(result["decoding_seconds"] for result in results.values())
    return Row(
        model=one.name,
        rates=rates,
        dev_rate=log.best_per,
        epoch_seconds=log.epoch_seconds,
        frames_per_second=log.frames_per_second,
        parameters=log.start.get("parameters"),
        peak_memory_mb=log.peak_memory_mb,
        rtf=decoding / audio if audio else None,
        epochs=len(log.epochs) or None,
        minutes=log.minutes,
        batch_frames=None if error else one.batch_frames(),
        rules=tuple(dict.fromkeys(rule for result in results.values() for rule in result["rules"])),
        exp=str(one.exp),
        error=error,
    )


def _published(experiments: Sequence[Experiment]) -> list[Row]:
    known = [(one.name, one.recipe.published) for one in experiments if one.recipe.published]
    return [Row(name, dev_rate=p.per, epoch_seconds=p.epoch_seconds, published=p.source) for name, p in known if p]


def _with_ratios(rows: list[Row], experiments: Sequence[Experiment]) -> list[Row]:
    """Relate epoch times to the first softmax model: ours to ours, published ones to its published time."""
    baseline = next((one.name for one in experiments if _is_softmax(one)), None)
    base = {bool(row.published): row.epoch_seconds for row in rows if row.model == baseline}
    related = []
    for row in rows:
        reference = base.get(bool(row.published))
        ratio = row.epoch_seconds / reference if row.epoch_seconds and reference else None
        related.append(dataclasses.replace(row, ratio=ratio, baseline=row.model == baseline))
    return related


def _is_softmax(one: Experiment) -> bool:
    encoder = one.recipe.model.encoder
    return encoder.kind == "transformer" and all(mixer.kind == "softmax" for mixer in encoder.mixers)


def _utterances(logs: dict[str, TrainingLog]) -> list[str]:
    """A front-end that shortens more leaves out more utterances: models of the same data may see unequal sets."""
    seen: dict[str, list[str]] = {}
    for name, one in logs.items():
        if "utterances" in one.start:
            what = f"{counted(one.start['utterances'], 'utterance')}, {one.start['frames']} frames"
            seen.setdefault(what, []).append(name)
    if len(seen) < 2:
        return []
    return ["trained on unequal data: " + "; ".join(f"{', '.join(names)} on {what}" for what, names in seen.items())]


def _own_batches(experiments: Sequence[Experiment]) -> list[str]:
    names = [one.name for one in experiments if not one.fixed_batch]
    if not names:
        return ["no recipe has training.batch_frames: auto, so that --batches own changes nothing"]
    return [
        f"each with the largest batches that fit it (--batches own): {', '.join(names)}; larger batches make fewer "
        "updates an epoch, and the rates are those of that"
    ]


def _machines(logs: dict[str, TrainingLog]) -> list[str]:
    """Epoch times of trainings on unequal devices or thread counts are not comparable, whatever their recipes say."""
    places: dict[str, list[str]] = {}
    for name, one in logs.items():
        if one.start:
            place = f"{one.start.get('device')} with {counted(one.start.get('threads', 0), 'thread')}"
            places.setdefault(place, []).append(name)
    if len(places) < 2:
        return []
    return ["times are not comparable: " + "; ".join(f"{', '.join(names)} on {p}" for p, names in places.items())]


def write(comparison: Comparison, out: Path) -> list[Path]:
    """Write comparison.md, .csv, .json and the plots into `out`; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    rows = comparison.rows
    texts = {
        "comparison.md": markdown(rows, comparison.warnings),
        "comparison.csv": csv_text(rows),
        "compare.json": json.dumps(
            {
                "rows": [
                    {**dataclasses.asdict(row), "rates": {k: r._asdict() for k, r in row.rates.items()}} for row in rows
                ],
                "warnings": comparison.warnings,
            },
            indent=1,
            ensure_ascii=False,
        ),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    rates = [
        Curve(model, [e["epoch"] for e in one.validated], [e["dev_per"] for e in one.validated])
        for model, one in comparison.logs.items()
    ]
    losses = [
        Curve(model, [e["epoch"] for e in one.epochs], [e["loss"] for e in one.epochs])
        for model, one in comparison.logs.items()
    ]
    plot_curves(rates, "dev error rate (%)", out / "rate_by_epoch.png")
    plot_curves(losses, "training loss (nats per reference token)", out / "loss_by_epoch.png")
    plot_rate_by_time(rows, out / "rate_by_time.png")
    names = [*texts, "rate_by_epoch.png", "rate_by_time.png", "loss_by_epoch.png"]
    return [out / name for name in names]
