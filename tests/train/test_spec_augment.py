"""Masks: how large, where, with what inside, and drawn from what."""

from __future__ import annotations

import random

import torch

from asr.train.config import SpecAugmentConfig
from asr.train.sets import load_set
from asr.train.spec_augment import spec_augment


def test_masks_are_bounded_and_hold_the_mean():
    config = SpecAugmentConfig(freq_masks=1, freq_width=5, time_masks=1, time_width=30, time_share=0.1)
    x = torch.randn(100, 16)
    frames = [100]
    before = x.clone()
    widest_band = widest_stretch = 0
    for seed in range(200):
        y = spec_augment(x[None], frames, config, [random.Random(seed)])[0]
        changed = y != x
        torch.testing.assert_close(y[changed], x.mean().expand(int(changed.sum())))
        bands, stretches = changed.all(0), changed.all(1)
        assert torch.equal(changed, bands[None, :] | stretches[:, None])
        widest_band = max(widest_band, int(bands.sum()))
        widest_stretch = max(widest_stretch, int(stretches.sum()))
    assert (widest_band, widest_stretch) == (5, 10)
    assert torch.equal(x, before), "the store's memory must stay as it is"


def test_short_utterances_survive():
    config = SpecAugmentConfig(freq_masks=3, freq_width=50, time_masks=3, time_width=50, time_share=1.0)
    for frames in (1, 2, 3):
        x = torch.randn(1, frames, 8)
        assert spec_augment(x, [frames], config, [random.Random(0)]).shape == (1, frames, 8)


def test_F11_draws_differ_by_epoch_and_utterance_and_repeat(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.spec_augment.time_masks=2", "training.spec_augment.freq_masks=2")
    from asr.data.manifest import read_manifest
    from asr.data.tokens import build_tokens

    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens)
    config = recipe.training.spec_augment

    def masks(rows, epoch):
        plain, masked = data.batch(rows), data.batch(rows, config, f"3/{epoch}")
        return {
            i: (a != b).numpy().tobytes() for i, a, b in zip(plain.ids, plain.features, masked.features, strict=True)
        }

    everything = list(range(len(data.ids)))
    first, second = masks(everything, 0), masks(everything, 1)
    assert len({*first.values(), *second.values()}) > 1.8 * len(everything)
    assert masks(everything, 0) == first
    # Whatever it is batched with, an utterance gets the same draws.
    row = data.frames.index(max(data.frames))
    assert masks([row], 1)[data.ids[row]] == second[data.ids[row]]


def test_rows_of_a_batch_are_masked_as_alone_and_padding_stays():
    config = SpecAugmentConfig(freq_masks=2, freq_width=4, time_masks=2, time_width=9)
    rows, lengths = [torch.randn(n, 8) + 5 for n in (30, 11, 0, 47)], torch.tensor([30, 11, 0, 47])
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    together = spec_augment(batch, lengths.tolist(), config, [random.Random(n) for n in range(4)])
    for n, row in enumerate(rows):
        alone = spec_augment(row[None], [int(lengths[n])], config, [random.Random(n)])[0]
        torch.testing.assert_close(together[n, : len(row)], alone)
        assert (together[n, len(row) :] == 0).all()
        assert len(row) < 20 or not torch.equal(alone, row)
