"""Which utterances are trained on, which are not and why, and how they are put into batches."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch

from asr.data.batches import padded_frames
from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.data.store import FeatureStore
from asr.data.tokens import build_tokens
from asr.errors import DataError
from asr.train import loop
from asr.train.sets import keep_trainable, load_set


def utterance(folder, name, samples, text="A B C D", rate=8000):
    rng = np.random.default_rng(len(name))
    soundfile.write(folder / f"{name}.wav", rng.normal(0, 0.1, samples).astype(np.float32), rate)
    return Utterance(name, folder / f"{name}.wav", samples / rate, "s", text, phones=tuple(text.split()))


def loaded(toy, folder, utterances, *overrides):
    write_manifest(folder / "train.jsonl", utterances)
    recipe = toy.recipe(folder / "exp", f"data.train={folder / 'train.jsonl'}", f"data.features={folder}", *overrides)
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    return recipe, load_set(recipe, "train", recipe.data.train, tokens)


def test_D1_clips_shorter_than_a_window_are_listed(toy, tmp_path):
    clips = {"n1": 1, "n199": 199, "n200": 200, "n201": 201, "n600": 600, "n8000": 8000}
    _, data = loaded(toy, tmp_path, [utterance(tmp_path, k, n, "A") for k, n in clips.items()])
    assert data.ids == ["n200", "n201", "n600", "n8000"]
    assert list(data.frames) == [1, 1, 6, 98]
    assert set(data.dropped) == {"n1", "n199"}
    assert "199" in data.dropped["n199"]


def test_F9_one_long_utterance_is_listed_and_batches_stay_bounded(toy, tmp_path):
    utterances = [utterance(tmp_path, f"u{n}", 8000) for n in range(12)] + [utterance(tmp_path, "long", 8000 * 20)]
    recipe, data = loaded(toy, tmp_path, utterances, "data.max_seconds=10", "training.batch_frames=300")
    kept = keep_trainable(data, recipe, lambda n: n)
    assert kept.dropped == {"long": "19.98 s, outside 0..10 s"}
    assert len(kept.ids) == 12
    # And where the seconds are allowed but the batch could not hold it:
    recipe = toy.recipe(tmp_path / "exp", "training.batch_frames=300", "data.max_seconds=60")
    assert keep_trainable(data, recipe, lambda n: n).dropped == {
        "long": "1998 frames, more than training.batch_frames 300"
    }
    assert all(padded_frames(b, kept.frames) <= 300 for b in kept.batches_by_length(300))


def test_F9_the_training_reports_what_it_left_out(toy, tmp_path, caplog):
    utterances = [utterance(tmp_path, f"u{n}", 4000) for n in range(4)] + [utterance(tmp_path, "long", 8000 * 4)]
    utterances.append(utterance(tmp_path, "dense", 1000, "A A A A A A A A A"))
    recipe, _ = loaded(toy, tmp_path, utterances, "data.max_seconds=2", "training.epochs=1")
    loop.train(recipe)
    dropped = (tmp_path / "exp" / "dropped-train.tsv").read_text().splitlines()
    assert dropped == [
        "dense\t9 labels need 17 encoder frames, 11 feature frames give 4",
        "long\t3.98 s, outside 0..2 s",
    ]
    assert "train: 2 utterances left out, listed in" in caplog.text


def test_nothing_left_names_the_first_reason(toy, tmp_path):
    recipe, data = loaded(toy, tmp_path, [utterance(tmp_path, "u", 8000)], "data.min_seconds=5")
    with pytest.raises(DataError, match=r"no trainable utterance; the first reason: \('u', '0\.98 s, outside"):
        keep_trainable(data, recipe, lambda n: n)


def test_a_dev_set_without_tokens_is_refused(toy, tmp_path):
    dev = [Utterance("d", toy.folder / "dev0.wav", 0.5, "s", "", phones=())]
    write_manifest(tmp_path / "dev.jsonl", dev)
    with pytest.raises(DataError, match="nothing to validate on"):
        loop.train(toy.recipe(tmp_path / "exp", f"data.dev={tmp_path / 'dev.jsonl'}"))


def test_batches_by_length_hold_everyone_once(toy, tmp_path):
    _, data = loaded(toy, tmp_path, [utterance(tmp_path, f"u{n}", 2000 + 700 * n) for n in range(9)])
    for limit in (1, 150, 10**6):
        batches = data.batches_by_length(limit)
        assert sorted(r for b in batches for r in b) == list(range(9))
        assert all(padded_frames(b, data.frames) <= limit or len(b) == 1 for b in batches)
        assert data.frames[batches[0][0]] == max(data.frames)


def test_a_batch_is_padded_normalised_features(toy, tmp_path):
    _, data = loaded(toy, tmp_path, [utterance(tmp_path, "a", 8000), utterance(tmp_path, "bb", 4000)])
    batch = data.batch([1, 0])
    assert (batch.ids, batch.lengths.tolist()) == (["bb", "a"], [48, 98])
    assert batch.features.shape == (2, 98, 16)
    assert batch.features[0, 48:].abs().max() == 0
    torch.testing.assert_close(batch.features[1].mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(batch.features[1].std(0, correction=0), torch.ones(16), atol=1e-3, rtol=0)


def test_dither_is_for_training_alone(toy, tmp_path, monkeypatch):
    seen = []
    of = FeatureStore.of

    def spy(plan, *args):
        seen.append(plan.dither > 0)
        return of(plan, *args)

    monkeypatch.setattr(FeatureStore, "of", spy)
    recipe = toy.recipe(tmp_path / "exp", "training.epochs=1", "features.dither=1")
    loop.train(recipe)
    load_set(recipe, "train", recipe.data.train, build_tokens(recipe.tokens, read_manifest(recipe.data.train)))
    assert seen == [True, False, False]  # the last as `asr evaluate --manifest train.jsonl` does


@pytest.mark.parametrize("cmvn", ["global", "speaker"])
def test_dev_speakers_have_their_own_statistics_and_global_ones_come_from_training(toy, tmp_path, cmvn):
    recipe = toy.recipe(tmp_path, f"features.cmvn={cmvn}")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    train = load_set(recipe, "train", recipe.data.train, tokens)
    dev = load_set(recipe, "dev", recipe.data.dev, tokens, train.cmvn)
    assert (dev.cmvn is train.cmvn) == (cmvn == "global")
    speaker = [r for r, speaker in enumerate(dev.speakers) if speaker == "s0"]
    together = torch.cat([dev.batch([r]).features[0] for r in speaker])
    centred = together.mean(0).abs().max() < 1e-3
    assert centred == (cmvn == "speaker")
