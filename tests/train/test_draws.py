"""F11: draws that differ between steps, epochs and processes, and are the same whenever the same step is made."""

from __future__ import annotations

import itertools

import torch

from asr.train import loop
from asr.train.draws import seed_draws
from asr.train.same import compare_trainings
from asr.train.sets import LoadedSet

RANDOM = (
    "training.spec_augment={freq_masks: 2, time_masks: 2, time_width: 5}",
    "model.encoder.dropout=0.3",
    "training.epochs=2",
)


def test_F11_every_place_has_its_own_draws():
    def draws(*place):
        seed_draws(*place)
        return tuple(torch.rand(4).tolist())

    places = list(itertools.product((0, 1, 3), (0, 1, 12), (0, 1, 2), (0, 1)))
    seen = [draws(*place) for place in places]
    assert len(set(seen)) == len(places)
    assert [draws(*place) for place in places] == seen


def test_F11_features_of_an_utterance_differ_between_epochs_and_repeat_with_the_seed(toy, tmp_path, monkeypatch):
    seen: dict[str, list[torch.Tensor]] = {}
    batch = LoadedSet.batch

    def spy(data, rows, augment=None, seed="", *more):
        result = batch(data, rows, augment, seed, *more)
        if augment is not None:
            for id, features in zip(result.ids, result.features, strict=True):
                seen.setdefault(id, []).append(features.clone())
        return result

    monkeypatch.setattr(LoadedSet, "batch", spy)
    loop.train(toy.recipe(tmp_path / "a", *RANDOM))
    first, seen = seen, {}
    loop.train(toy.recipe(tmp_path / "b", *RANDOM))
    assert set(first) == set(seen)
    different = 0
    for id, (one, two) in first.items():
        assert torch.equal(one, seen[id][0])
        assert torch.equal(two, seen[id][1])
        frames = min(len(one), len(two))  # padding differs
        different += not torch.equal(one[:frames], two[:frames])
    assert different > len(first) / 2


def test_F11_any_number_of_feature_processes_gives_the_same_training(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("asr.data.extract.SERIAL_SECONDS", 0)
    monkeypatch.setattr("asr.data.extract.CHUNK", 5)
    for n in (1, 3):
        places = (f"data.workers={n}", f"data.features={tmp_path / f'features{n}'}")
        loop.train(toy.recipe(tmp_path / f"exp{n}", *RANDOM, *places, "features.dither=1"))
    assert compare_trainings(tmp_path / "exp1", tmp_path / "exp3")[1] == []


def test_what_ran_before_changes_nothing(toy, tmp_path, monkeypatch):
    loop.train(toy.recipe(tmp_path / "a", *RANDOM))
    validate = loop.validate
    monkeypatch.setattr(loop, "validate", lambda *a: (torch.rand(100), validate(*a))[1])
    loop.train(toy.recipe(tmp_path / "b", *RANDOM))
    assert compare_trainings(tmp_path / "a", tmp_path / "b")[1] == []
