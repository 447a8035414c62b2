"""Every mixer of recipes/an4/mixers: one epoch of a narrower encoder on toy data, one comparison of all."""

from __future__ import annotations

import math
from pathlib import Path

from asr.report.compare import compare, write
from asr.report.evaluate import evaluate
from asr.report.experiments import resolve
from asr.train import loop

MIXERS = Path(__file__).resolve().parents[2] / "recipes/an4/mixers"


def test_an_epoch_of_every_mixer_and_one_table(toy, tmp_path):
    dev = toy.folder / "dev.jsonl"
    small = [
        f"data={{train: {toy.folder / 'train.jsonl'}, dev: {dev}, test: {{test: {dev}}}, workers: 1}}",
        f"data.features={tmp_path / 'features'}",
        "features={sample_rate: 8000, bins: 16}",
        "tokens={kind: phones, lexicon: null}",
        "model.frontend.channels=4",
        "training={epochs: 1, batch_frames: 400, device: cpu, tensorboard: false}",
    ]
    recipes = [path for path in sorted(MIXERS.glob("*.yaml")) if path.stem != "base"]
    experiments = []
    for path in recipes:
        narrow = "model.encoder.hidden=16" if path.stem == "bilstm" else "model.encoder.dim=24"
        experiments += resolve([path], [*small, narrow, f"exp={tmp_path / path.stem}"])

    found = compare(
        experiments,
        train=lambda one, retrain: loop.train(one.recipe),  # type: ignore[arg-type, return-value]
        evaluate=lambda one: evaluate(one.exp, device="cpu"),
    )

    assert not found.failed
    assert not found.warnings  # the rows are comparable
    assert [row.model for row in found.rows] == [path.stem for path in recipes]
    for row in found.rows:
        assert row.epochs == 1
        assert row.rates["test"].value >= 0
        (epoch,) = found.logs[row.model].epochs
        assert 0 < epoch["loss"] < math.inf
        assert epoch["skipped_steps"] == 0
        assert 0 < epoch["lr"] < 1.5e-3  # warming up
    table = next(path for path in write(found, tmp_path / "results") if path.suffix == ".md").read_text("utf-8")
    assert all(f"| {path.stem} |" in table for path in recipes)
