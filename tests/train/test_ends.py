"""When a training ends early, and which parameters it leaves alone."""

from __future__ import annotations

import pytest
import torch

from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.errors import RecipeError
from asr.report.log import read_log
from asr.train import loop
from asr.train.checkpoint import load_checkpoint
from asr.train.freeze import freeze
from asr.train.validate import Validation


def dev_pers(monkeypatch, pers):
    """Validations that find these rates, one after the other; NaN: the model gave no numbers."""
    left = iter(pers)

    def validate_(*_):
        per = next(left)
        bad = ["dev0"] if per != per else []
        return Validation(substitutions=0 if bad else per, reference_tokens=100, not_finite=bad)

    monkeypatch.setattr(loop, "validate", validate_)


@pytest.mark.parametrize(
    ("pers", "epochs"),
    [
        ([90, 80, 85, 80, 70], 4),  # an equal rate is no better one, but for its loss, which is equal too
        ([90, 95, 80, 95, 95, 10], 5),
        ([90, 80, 70, 60, 50, 40], 6),
        ([90, float("nan"), float("nan"), float("nan"), 91, 91], 6),  # NaN is no news
    ],
)
def test_early_stop_waits_and_then_ends(toy, tmp_path, monkeypatch, pers, epochs):
    dev_pers(monkeypatch, pers)
    recipe = toy.recipe(tmp_path, "training.early_stop=2", f"training.epochs={len(pers)}", "training.batch_frames=2000")
    loop.train(recipe)
    log = read_log(tmp_path)
    assert len(log.epochs) == epochs
    assert log.finished


def test_early_stop_counts_on_when_resumed_and_stays_ended(toy, tmp_path, monkeypatch):
    more = ("training.early_stop=3", "training.batch_frames=2000")
    dev_pers(monkeypatch, [50, 60])
    loop.train(toy.recipe(tmp_path, "training.epochs=2", *more))
    dev_pers(monkeypatch, [61, 62, 10])
    loop.train(toy.recipe(tmp_path, "training.epochs=9", *more), resume=True)
    assert len(read_log(tmp_path).epochs) == 4
    dev_pers(monkeypatch, [])
    loop.train(toy.recipe(tmp_path, "training.epochs=9", *more), resume=True)
    assert '"reason": "early_stop"' in (tmp_path / "log.jsonl").read_text().splitlines()[-1]


def test_a_frozen_parameter_stays_and_others_learn(toy, tmp_path, caplog):
    recipe = toy.recipe(tmp_path, 'training.freeze=["frontend.*", "encoder.blocks.?.mixer.*.bias"]')
    torch.manual_seed(recipe.seed)
    model = CtcModel(recipe.model, 16, 5)
    loop.train(recipe)
    trained = load_checkpoint(tmp_path / "last.pt")["model"]
    frozen = 0
    for name, value in model.named_parameters():
        stays = name.startswith("frontend.") or (".mixer." in name and name.endswith(".bias"))
        assert torch.equal(trained[name], value) == stays, name
        frozen += stays * value.numel()
    assert f"frozen: {frozen:,} parameters" in caplog.text


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["encoder.block.*"], r"training\.freeze: 'encoder\.block\.\*' fits no parameter; names are such as frontend"),
        (["*"], "nothing to train"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(patterns, message):
    model = CtcModel(ModelConfig.model_validate({"encoder": {"kind": "bilstm", "layers": 1, "hidden": 4}}), 8, 5)
    with pytest.raises(RecipeError, match=message):
        freeze(model, patterns)


def test_no_patterns_freeze_nothing():
    model = torch.nn.Linear(2, 2)
    assert freeze(model, []) == 0
    assert all(p.requires_grad for p in model.parameters())
