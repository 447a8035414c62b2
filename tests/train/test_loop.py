"""What a whole training leaves behind: what it says, what it writes, when it ends."""

from __future__ import annotations

import json
import logging
import math

import pytest
import torch

from asr.errors import AsrError
from asr.recipe_loader import load_recipe
from asr.recogniser import Recogniser
from asr.train import loop
from asr.train.checkpoint import load_checkpoint
from asr.train.measure import Stopwatch
from asr.train.state import Counters, State


def events(folder, kind=None):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [e for e in lines if kind in (None, e["event"])]


def test_the_folder_of_a_training(toy, tmp_path):
    exp = tmp_path / "exp"
    assert loop.train(toy.recipe(exp)) == exp
    assert " ".join(sorted(p.name for p in exp.iterdir())) == (
        ".lock best.pt last.pt log.jsonl previous.pt recipe.yaml train.log"
    )
    assert load_recipe(exp / "recipe.yaml") == toy.recipe(exp)
    assert [e["event"] for e in events(exp)] == ["start", "epoch", "epoch", "epoch", "end"]
    start, end = events(exp)[0], events(exp)[-1]
    assert (start["utterances"], start["device"], start["threads"], start["resumed"]) == (14, "cpu", 1, False)
    assert start["parameters"] == sum(v.numel() for v in load_checkpoint(exp / "best.pt")["model"].values())
    assert end["reason"] == "finished"

    epochs = events(exp, "epoch")
    for e in epochs:
        parts = e["seconds"]
        assert e["train_seconds"] == pytest.approx(
            sum(parts[k] for k in ("data", "forward", "backward", "optimiser")), abs=1e-3
        )
        assert parts["total"] == pytest.approx(
            e["train_seconds"] + parts["validation"] + parts["checkpoints"], abs=1e-3
        )
        assert e["frames"] == start["frames"]
        assert e["frames_per_second"] == pytest.approx(e["frames"] / e["train_seconds"])
        assert sum(e["dev_sdi"]) / e["dev_tokens"] * 100 == pytest.approx(e["dev_per"])
        assert 0 <= e["blank_share"] <= 1
        assert e["dev_tokens"] == 15
        assert e["peak_memory_mb"] > 50
    assert epochs[-1]["elapsed"] == pytest.approx(sum(e["seconds"]["total"] for e in epochs), abs=1e-2)
    best = min(epochs, key=lambda e: (e["dev_per"], e["dev_loss"]))
    assert (end["best_per"], end["best_epoch"]) == (best["dev_per"], best["epoch"])
    assert load_checkpoint(exp / "best.pt")["dev_per"] == best["dev_per"]


def test_train_log_reads_the_same_without_logging_of_ones_own(toy, tmp_path):
    logger = logging.getLogger("asr")
    assert logger.level == logging.NOTSET
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=1"))
    lines = (tmp_path / "exp" / "train.log").read_text().splitlines()
    assert "3,125 parameters, 5 tokens, 14 utterances" in lines[0]
    assert "epoch 1: loss" in lines[1]
    assert lines[1].endswith("*")
    assert "done: best dev PER" in lines[2]
    assert (logger.level, logger.handlers) == (logging.NOTSET, [])


def test_an_error_stands_in_train_log(toy, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(AsrError) as error:
        loop.train(toy.recipe(tmp_path / "exp", f"data.dev={tmp_path / 'bad.jsonl'}"))
    assert str(error.value).splitlines()[0] in (tmp_path / "exp" / "train.log").read_text()


def test_it_learns(toy, tmp_path):
    more = (
        "training.epochs=25",
        "training.optimiser={name: adamw, lr: 1.0e-2}",
        "training.schedule={kind: cosine, warmup: 5}",
        "model.encoder.dropout=0",
        "model.encoder.convolution=5",
    )
    loop.train(toy.recipe(tmp_path / "exp", *more))
    assert load_checkpoint(tmp_path / "exp" / "best.pt")["dev_per"] < 20


def test_same_seed_same_weights_other_seed_other_weights(toy, tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        loop.train(toy.recipe(tmp_path / name, "training.epochs=1", f"seed={seed}"))
    a, b, c = (load_checkpoint(tmp_path / n / "last.pt")["model"]["output.weight"] for n in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_max_minutes_ends_after_the_epoch_and_validates_it(toy, tmp_path):
    exp = tmp_path / "exp"
    loop.train(toy.recipe(exp, "training.epochs=50", "training.max_minutes=1e-4", "training.validate_every=10"))
    (only,) = events(exp, "epoch")
    assert only["dev_per"] >= 0
    assert events(exp)[-1]["reason"] == "max_minutes"
    assert Recogniser.load(exp)


def test_validate_every_and_the_last_epoch(toy, tmp_path):
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=5", "training.validate_every=2"))
    assert [e["epoch"] for e in events(tmp_path / "exp", "epoch") if "dev_per" in e] == [2, 4, 5]
    assert [e["epoch"] for e in events(tmp_path / "exp", "epoch")] == [1, 2, 3, 4, 5]


def test_the_time_of_an_epoch_is_predicted_once(toy, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "asr")
    monkeypatch.setattr(loop, "PREDICT_AFTER", 3)
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=2", "training.batch_frames=150"))
    said = [r.args for r in caplog.records if "an epoch will take" in r.getMessage()]
    assert len(said) == 1
    seconds, frames_per_second = said[0]
    assert seconds * frames_per_second == pytest.approx(events(tmp_path / "exp", "start")[0]["frames"])


def test_speed_counts_what_was_done_before_an_interruption():
    watch = Stopwatch(torch.device("cpu"))
    watch.seconds |= {"forward": 1.0, "checkpoints": 5.0}
    counters = Counters(frames=3000, seconds={"forward": 2.0, "checkpoints": 5.0})
    state = State.__new__(State)
    state.watch, state.counters = watch, counters
    assert state.frames_per_second == 1000


def test_plateau_cuts_are_announced(toy, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "asr")
    monkeypatch.setattr(loop, "_step", lambda group, state: None)  # the error stays where it is
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=4", "training.schedule={kind: plateau, patience: 0}"))
    cuts = [r.getMessage() for r in caplog.records if "stopped decreasing" in r.getMessage()]
    assert [c.split(": ")[1] for c in cuts] == [f"learning rate {3e-3 / 2**n:.2e} from here" for n in (1, 2, 3)]


def test_equal_per_is_decided_by_the_loss_even_when_that_was_nan(toy, tmp_path, monkeypatch):
    losses = iter([math.nan, 5.0, 6.0])
    monkeypatch.setattr(
        loop,
        "validate",
        lambda *_: loop.Validation(deletions=9, reference_tokens=9, loss_sum=next(losses), loss_tokens=1),
    )
    loop.train(toy.recipe(tmp_path / "exp"))
    assert [e["best"] for e in events(tmp_path / "exp", "epoch")] == [True, True, False]


def test_tensorboard_curves(toy, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=2", "training.tensorboard=true"))
    curves = EventAccumulator(str(tmp_path / "exp" / "tensorboard")).Reload()
    assert {"loss", "dev_per", "dev_loss", "lr", "seconds/forward"} <= set(curves.Tags()["scalars"])
    got = [(s.step, s.value) for s in curves.Scalars("dev_per")]
    assert got == [(e["epoch"], pytest.approx(e["dev_per"])) for e in events(tmp_path / "exp", "epoch")]


def test_an_impossible_device_is_one_line(toy, tmp_path):
    for device in ("cuda:99", "abacus"):
        with pytest.raises(AsrError, match=f"device '{device}' cannot be used here: ") as error:
            loop.train(toy.recipe(tmp_path / "exp", f"training.device={device}"))
        assert "\n" not in str(error.value)
