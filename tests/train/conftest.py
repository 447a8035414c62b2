"""A corpus of tones that stand for phones, and recipes that train on it in less than a second."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from asr.data.manifest import Utterance, write_manifest
from asr.recipe_loader import load_recipe

RATE = 8000
TONES = {"A": 400, "B": 900, "C": 1600, "D": 2600}  # Hz
RECIPE = """
seed: 3
data: {train: train.jsonl, dev: dev.jsonl, workers: 1}
features: {sample_rate: 8000, bins: 16}
model:
  frontend: {kind: stack, factor: 3}
  encoder: {kind: transformer, layers: 1, dim: 16, heads: 2, feedforward: 32, attention: {kind: linear}}
training:
  epochs: 3
  batch_frames: 300
  threads: 1
  device: cpu
  tensorboard: false
  optimiser: {lr: 3.0e-3}
"""


def say(phones, rng):
    """The samples of one utterance: a tone per phone, silence between."""
    time = np.arange(round(0.12 * RATE)) / RATE
    gap = np.zeros(round(0.06 * RATE))
    parts = [gap]
    for phone in phones:
        parts += [0.3 * np.sin(2 * np.pi * TONES[phone] * time), gap]
    samples = np.concatenate(parts)
    return (samples + rng.normal(0, 0.003, len(samples))).astype(np.float32)


class Toy:
    """The corpus in `folder`; `recipe` writes one more recipe over it."""

    def __init__(self, folder):
        self.folder = folder
        rng = np.random.default_rng(0)
        for name, count in {"train": 14, "dev": 3}.items():
            utterances = []
            for n in range(count):
                phones = tuple(rng.choice(list(TONES), size=rng.integers(2, 7)).tolist())
                path = folder / f"{name}{n}.wav"
                samples = say(phones, rng)
                soundfile.write(path, samples, RATE)
                utterances.append(
                    Utterance(f"{name}{n}", path, len(samples) / RATE, f"s{n % 2}", " ".join(phones), phones=phones)
                )
            write_manifest(folder / f"{name}.jsonl", utterances)
        self.file = folder / "toy.yaml"
        self.file.write_text(RECIPE)

    def recipe(self, exp, *overrides):
        return load_recipe(self.file, [f"exp={exp}", *overrides])


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    return Toy(tmp_path_factory.mktemp("toy"))
