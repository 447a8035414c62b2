"""A real experiment, small enough to train in seconds: it tells low, middle and high tones apart."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

TONES = {"LOW": 300, "MID": 1000, "HIGH": 3000}  # Hz
TONE_SECONDS, GAP_SECONDS = 0.15, 0.15
RECIPE = """
data: {train: train.jsonl, dev: dev.jsonl, workers: 1}
tokens: {kind: phones}
model:
  frontend: {kind: stack, factor: 2}
  encoder: {layers: 1, dim: 32, heads: 2, feedforward: 64, dropout: 0.0, convolution: 5, attention: {kind: linear}}
training:
  epochs: 24
  batch_frames: 600
  threads: 1
  tensorboard: false
  optimiser: {name: adamw, lr: 1e-2}
  schedule: {kind: cosine, warmup: 5}
"""


def say(path, tones, rate=16000, seed=0):
    """Write a recording of `tones`; tone n starts at 0.15 + 0.3 n seconds."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(TONE_SECONDS * rate)) / rate
    gap = np.zeros(round(GAP_SECONDS * rate))
    parts = [gap]
    for tone in tones:
        parts += [0.3 * np.sin(2 * np.pi * TONES[tone] * time), gap]
    samples = np.concatenate(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = rng.normal(0, 10 ** rng.uniform(-3.5, -2), len(samples))  # so varied that resampling cannot upset the model
    soundfile.write(path, samples + noise, rate)
    return path


@pytest.fixture(scope="session")
def tiny_experiment(tmp_path_factory):
    """The experiment folder of a trained model that has the phones LOW, MID and HIGH."""
    from asr.data.manifest import Utterance, write_manifest
    from asr.recipe_loader import load_recipe
    from asr.train.loop import train

    folder = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(0)
    sets = {"train": 24, "dev": 4}
    for name, count in sets.items():
        utterances = []
        for n in range(count):
            tones = tuple(rng.choice(list(TONES), size=rng.integers(1, 5)).tolist())
            path = say(folder / name / f"{n}.wav", tones, seed=n)
            seconds = soundfile.info(path).duration
            utterances.append(Utterance(f"{name}{n}", path, seconds, "s", " ".join(tones), phones=tones))
        write_manifest(folder / f"{name}.jsonl", utterances)
    (folder / "tiny.yaml").write_text(RECIPE)
    return train(load_recipe(folder / "tiny.yaml"))


@pytest.fixture
def spoken(tmp_path):
    """`spoken("a.wav", "LOW HIGH", rate)` writes that recording and gives its path."""

    def write(name, tones, rate=16000):
        return say(tmp_path / name, tones.split(), rate, seed=len(name))

    return write
