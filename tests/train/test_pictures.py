"""TensorBoard's texts and pictures of a training: they are there, they say what was heard, and they disturb nothing."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asr.errors import RecipeError
from asr.report.inspect import glimpse
from asr.train import loop
from asr.train.config import PicturesConfig
from asr.train.pictures import Pictures, chosen
from asr.train.same import compare_trainings

SHOWN = ("training.tensorboard=true", "training.pictures={every: 2, utterances: 1}")


def events(folder, kind):
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


def board(folder):
    return EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "tensors": 0}).Reload()


def test_text_and_pictures_of_the_first_the_third_and_the_last_epoch(toy, tmp_path):
    loop.train(toy.recipe(tmp_path, "training.epochs=4", *SHOWN))
    found = board(tmp_path)
    assert sorted(found.Tags()["images"]) == ["dev0/ctc", "dev0/layer1"]
    for name in ("dev0/ctc", "dev0/layer1"):
        assert [event.step for event in found.Images(name)] == [1, 3, 4]
        last = imread(io.BytesIO(found.Images(name)[-1].encoded_image_string))
        assert 200 < min(last.shape[:2]) <= max(last.shape[:2]) < 1400
        assert np.unique(last.reshape(-1, 3), axis=0).shape[0] > 100, "something is drawn on it"
    texts = found.Tensors("dev0/text/text_summary")
    assert [event.step for event in texts] == [1, 3, 4]
    lines = texts[-1].tensor_proto.string_val[0].decode().splitlines()
    said = json.loads((toy.folder / "dev.jsonl").read_text().splitlines()[0])["phones"]
    assert lines[1] == f"    reference   {said}"
    assert [line.split()[0] for line in lines[2:]] == ["hypothesis", "aligned"]
    drawn = events(tmp_path, "pictures")
    assert [event["epoch"] for event in drawn] == [1, 3, 4]
    assert all(event["seconds"] > 0 for event in drawn)
    last = events(tmp_path, "epoch")[-1]
    assert last["elapsed"] == pytest.approx(sum(e["seconds"]["total"] for e in events(tmp_path, "epoch")), abs=0.01)


def test_they_change_nothing_of_the_training(toy, tmp_path):
    """With everything on that draws at random or exchanges weights; resumed after a drawn epoch, too."""
    full = (
        "model.encoder.dropout=0.3", "model.encoder.attention={kind: lsh, bucket_size: 8}", "training.average=ema",
        "training.epochs=2",
    )  # fmt: skip
    loop.train(toy.recipe(tmp_path / "without", *full, "training.tensorboard=true", "training.pictures=null"))
    assert board(tmp_path / "without").Tags()["images"] == []
    loop.train(toy.recipe(tmp_path / "with", *full[:-1], *SHOWN, "training.epochs=1"))
    loop.train(toy.recipe(tmp_path / "with", *full, *SHOWN), resume=True)
    different = compare_trainings(tmp_path / "without", tmp_path / "with")[1]
    assert {line.split(": ")[1].rpartition(".")[0] for line in different} <= {"recipe.training", "recipe"}, different


def test_a_mixer_without_an_exact_map_has_none(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "model.encoder.attention=lstm", "training.epochs=1", *SHOWN)
    loop.train(recipe)
    assert board(tmp_path).Tags()["images"] == ["dev0/ctc"]


def test_what_fails_is_said_once_and_the_training_goes_on(toy, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(glimpse, "ctc_figure", lambda *_: 1 / 0)
    loop.train(toy.recipe(tmp_path, "training.tensorboard=true", "training.pictures={every: 1}"))
    assert len(events(tmp_path, "epoch")) == 3
    assert [e["reason"] for e in events(tmp_path, "end")] == ["finished"]
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith("no more pictures for TensorBoard from here, drawing them failed: ZeroDivisionError")


def at(epoch, elapsed=0.0, end=None, validate_every=1):
    training = SimpleNamespace(validate_every=validate_every)
    counters = SimpleNamespace(epoch=epoch, elapsed=elapsed)
    return SimpleNamespace(counters=counters, recipe=SimpleNamespace(training=training), end=lambda: end)


def test_when_they_are_due():
    often = Pictures(PicturesConfig(every=3), board=None)
    assert [epoch for epoch in range(1, 9) if often._due(at(epoch))] == [1, 4, 7]
    assert [epoch for epoch in range(2, 20, 2) if often._due(at(epoch, validate_every=2))] == [2, 8, 14]
    assert often._due(at(5, end="early_stop"))
    cheap = Pictures(PicturesConfig(), board=None)
    assert cheap._due(at(1, elapsed=0.1)), "the first, whatever it costs"
    cheap._spent = 4.0
    assert not cheap._due(at(2, elapsed=199))
    assert cheap._due(at(2, elapsed=201))
    assert cheap._due(at(2, elapsed=1, end="finished"))


def test_the_choice_is_fixed_and_leaves_out_long_ones():
    data = SimpleNamespace(targets=[[1], [], [2], [1], [3]], frames=[1600, 10, 100, 1500, 200])
    assert chosen(data, 2, hop_ms=10) == [2, 3]
    assert chosen(data, 9, hop_ms=10) == [2, 3, 4]
    assert chosen(data, 2, hop_ms=1000) == [2]


def test_a_layer_that_is_not_there_is_refused_with_the_recipe(toy, tmp_path):
    with pytest.raises(RecipeError, match=r"training\.pictures\.layer: 2 is none of the model's 1"):
        toy.recipe(tmp_path, "training.pictures={layer: 2}")
