"""Averages of weights: what they are, what they are made from, and that decoding takes them."""

from __future__ import annotations

import math

import pytest
import torch
from typer.testing import CliRunner

from asr.cli.main import app
from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.errors import DataError
from asr.recogniser import Recogniser
from asr.report.evaluate import evaluate
from asr.report.log import read_log
from asr.train import loop
from asr.train.average import average_experiment, epoch_file, keep, mean_weights
from asr.train.checkpoint import load_checkpoint
from asr.train.config import EmaConfig, EpochAverageConfig, NoAverageConfig
from asr.train.ema import Ema
from asr.train.same import compare_trainings


def test_ema_is_its_closed_form():
    model = torch.nn.Linear(2, 1, bias=False)
    values = [torch.randn(1, 2) for _ in range(8)]
    with torch.no_grad():
        model.weight.copy_(values[0])
        ema = Ema(model, 0.3)
        for value in values[1:]:
            model.weight.copy_(value)
            ema.update()
    rates = [min(0.3, (1 + t) / (10 + t)) for t in range(7)]  # the first below 0.3, the last 0.3
    assert rates[0] == 0.1
    assert rates[-1] == 0.3
    wanted = math.prod(rates) * values[0]
    for t, value in enumerate(values[1:]):
        wanted = wanted + (1 - rates[t]) * math.prod(rates[t + 1 :]) * value
    before = model.weight.clone()
    with ema.in_place():
        torch.testing.assert_close(model.weight.detach(), wanted)
    assert torch.equal(model.weight, before)


def test_ema_takes_parameters_and_leaves_buffers_as_they_are():
    config = {"kind": "linear", "feature_map": {"kind": "favor", "size": 4, "redraw": 1}}
    model = CtcModel(
        ModelConfig.model_validate(
            {"encoder": {"kind": "transformer", "layers": 1, "dim": 8, "heads": 2, "attention": config}}
        ),
        4,
        3,
    )
    ema = Ema(model, 0.9)
    model.train()
    for _ in range(3):
        model(torch.randn(1, 5, 4), torch.tensor([5]))
    with torch.no_grad():
        for p in model.parameters():
            p += 1
    ema.update()
    name = next(n for n in model.state_dict() if n.endswith("directions"))
    drawn = model.state_dict()[name].clone()
    with ema.in_place():
        assert torch.equal(model.state_dict()[name], drawn)
    assert name not in ema.state_dict()["mean"]


def test_the_mean_is_of_parameters_alone():
    checkpoints = [
        {"model": {"w": torch.full((2,), float(n)), "drawn": torch.tensor(n), "extra": n}} for n in (1, 2, 6)
    ]
    mean = mean_weights(checkpoints, ["w"])
    assert torch.equal(mean["w"], torch.full((2,), 3.0))
    assert (int(mean["drawn"]), mean["extra"]) == (6, 6)
    assert checkpoints[-1]["model"]["w"][0] == 6


def test_which_epochs_are_kept():
    pers = [50.0, 40.0, math.nan, 45.0, 40.0, 60.0]

    def kept(config):
        have = []
        for epoch, per in enumerate(pers, 1):
            have = keep(config, have, per, 1.0, epoch)
        return [one[-1] for one in have]

    assert kept(EpochAverageConfig(kind="best", count=3)) == [2, 4, 5]
    assert kept(EpochAverageConfig(kind="best", count=1)) == [2]
    assert kept(EpochAverageConfig(kind="last", count=2)) == [5, 6]
    assert kept(EmaConfig()) == kept(NoAverageConfig()) == []


@pytest.fixture(scope="module")
def averaged(toy, tmp_path_factory):
    exp = tmp_path_factory.mktemp("averaged")
    loop.train(toy.recipe(exp, "training.average={kind: last, count: 2}", "training.epochs=4"))
    return exp


def test_the_training_ends_with_the_mean_of_its_epochs(averaged):
    assert sorted(p.name for p in averaged.glob("epoch-*.pt")) == ["epoch-0003.pt", "epoch-0004.pt"]
    third, fourth = (load_checkpoint(epoch_file(averaged, n)) for n in (3, 4))
    mean = load_checkpoint(averaged / "averaged.pt")
    assert mean["weights"] == "average of epochs 3, 4"
    for name, value in mean["model"].items():
        torch.testing.assert_close(value, (third["model"][name] + fourth["model"][name]) / 2)
        assert not torch.equal(third["model"][name], fourth["model"][name])


def test_decoding_takes_it_and_results_say_so(averaged):
    recogniser = Recogniser.load(averaged)
    mean = load_checkpoint(averaged / "averaged.pt")
    for name, value in recogniser.model.state_dict().items():
        assert torch.equal(value, mean["model"][name])
    assert evaluate(averaged, sets=["dev"], write=False)["dev"]["weights"] == "average of epochs 3, 4"
    assert evaluate(averaged / "last.pt", sets=["dev"], write=False)["dev"]["weights"] == "weights of epoch 4"
    assert evaluate(averaged, sets=["dev"], write=False)["dev"]["rate"] == pytest.approx(mean["dev_per"])
    assert read_log(averaged).best_per == mean["dev_per"]


def test_another_number_can_be_averaged_later(averaged, tmp_path):
    for file in averaged.glob("epoch-*.pt"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert average_experiment(tmp_path, 1, "last") == "average of epoch 4"
    pers = {n: load_checkpoint(epoch_file(tmp_path, n))["dev_per"] for n in (3, 4)}
    assert average_experiment(tmp_path, 1, "best") == f"average of epoch {min(pers, key=pers.get)}"
    result = CliRunner().invoke(app, ["average", str(tmp_path), "--last", "2"])
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'averaged.pt'}: average of epochs 3, 4\n")
    left, right = (load_checkpoint(folder / "averaged.pt")["model"] for folder in (tmp_path, averaged))
    assert all(torch.equal(value, right[name]) for name, value in left.items())
    assert CliRunner().invoke(app, ["average", str(tmp_path)]).exit_code == 2
    with pytest.raises(DataError, match=r"has the weights of 2 epochs, not of 3; train with training\.average="):
        average_experiment(tmp_path, 3, "best")


def test_the_moving_average_validates_and_is_saved_and_the_raw_weights_go_on(toy, tmp_path):
    loop.train(toy.recipe(tmp_path / "ema", "training.average={kind: ema, decay: 0.8}", "training.epochs=2"))
    loop.train(toy.recipe(tmp_path / "raw", "training.epochs=2"))
    ema, raw = (load_checkpoint(tmp_path / n / "last.pt") for n in ("ema", "raw"))
    for name, value in raw["model"].items():
        assert torch.equal(value, ema["model"][name])
    mean = ema["training"]["ema"]["mean"]
    assert ema["training"]["ema"]["updates"] == ema["training"]["schedule"]["step"] > 0
    best = load_checkpoint(tmp_path / "ema" / "best.pt")
    if best["epoch"] == 2:
        assert all(torch.equal(mean[name], best["model"][name]) for name in mean)
    assert not all(torch.equal(mean[name], ema["model"][name]) for name in mean)
    assert best["weights"] == f"moving average of epoch {best['epoch']}"
    result = evaluate(tmp_path / "ema", sets=["dev"], write=False)["dev"]
    assert result["rate"] == pytest.approx(best["dev_per"])
    assert result["weights"] == best["weights"]


@pytest.mark.parametrize("average", ["{kind: ema, decay: 0.9}", "{kind: best, count: 2}", "{kind: last, count: 2}"])
def test_stopped_and_resumed_the_averages_are_those_of_the_unbroken_run(toy, tmp_path, monkeypatch, average):
    more = (f"training.average={average}", "training.epochs=4", "training.batch_frames=600")
    loop.train(toy.recipe(tmp_path / "whole", *more))
    step, steps = loop._step, []

    class Stop:
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

        @property
        def requested(self):
            return len(steps) == 5

    def step_(group, state):
        step(group, state)
        steps.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_step", step_)
        patch.setattr(loop, "StopRequest", Stop)
        with pytest.raises(loop.Interrupted):
            loop.train(toy.recipe(tmp_path / "broken", *more))
    loop.train(toy.recipe(tmp_path / "broken", *more), resume=True)
    names = ("last.pt", "best.pt", *(() if "ema" in average else ("averaged.pt",)))
    count, different = compare_trainings(tmp_path / "whole", tmp_path / "broken", names)
    assert count > 50
    assert different == []
