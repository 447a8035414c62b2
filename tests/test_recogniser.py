"""A trained experiment as its users load it: from best.pt alone, on sound of any length."""

from __future__ import annotations

import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from asr.audio.read import Audio, read_audio
from asr.errors import AudioError, DataError
from asr.recogniser import Recogniser
from asr.train.loop import train

_spec = spec_from_file_location("train_conftest", Path(__file__).parent / "train" / "conftest.py")
corpus = module_from_spec(_spec)
_spec.loader.exec_module(corpus)

LEARNS = (
    "training.epochs=25",
    "training.optimiser={name: adamw, lr: 1.0e-2}",
    "training.schedule={kind: cosine, warmup: 5}",
    "model.encoder={convolution: 5, dropout: 0}",
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return corpus.Toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory):
    """`trained(*overrides)` is the experiment folder of such a training, made once."""
    made = {}

    def make(*overrides):
        if overrides not in made:
            made[overrides] = train(toy.recipe(tmp_path_factory.mktemp("exp"), *overrides))
        return made[overrides]

    return make


def audio(samples, rate=corpus.RATE):
    return Audio(torch.as_tensor(samples, dtype=torch.float32), rate, rate)


def test_D1_too_short_gives_empty_text_and_leaves_others_alone(trained, toy):
    recogniser = Recogniser.load(trained(*LEARNS))
    speech = read_audio(toy.folder / "dev0.wav")
    alone = recogniser.transcribe([speech])[0]
    assert alone.text == (toy.folder / "dev.jsonl").read_text().split('"text": "')[1].split('"')[0]
    # One window is 200 samples at 8 kHz.
    for lengths in ([0], [1], [199], [0, 1, 199], [200], [201]):
        batch = [audio(torch.zeros(n)) for n in lengths]
        hypotheses = recogniser.transcribe(batch)
        assert len(hypotheses) == len(lengths)
        for hypothesis, n in zip(hypotheses, lengths, strict=True):
            if n < 200:
                assert (hypothesis.text, hypothesis.tokens, hypothesis.log_prob) == ("", [], 0.0)
        among = recogniser.transcribe([batch[0], speech, *batch[1:]])
        assert among[1].text == alone.text
        assert among[1].log_prob == pytest.approx(alone.log_prob, abs=1e-3)
    assert recogniser.transcribe([]) == []


def test_D1_at_16_khz_silence_of_0_1_399_and_400_samples(toy, tmp_path):
    exp = train(toy.recipe(tmp_path, "training.epochs=1", "features.sample_rate=16000"))
    recogniser = Recogniser.load(exp)
    with torch.no_grad():
        recogniser.model.output.bias[0] = 50.0  # an honest model hears nothing in silence; this one was never taught
    silence = [audio(torch.zeros(n), 16000) for n in (0, 1, 399, 400)]
    assert [h.text for h in recogniser.transcribe(silence)] == [""] * 4
    assert [len(recogniser.features(a)) for a in silence] == [0, 0, 0, 1]


def test_D5_another_rate_is_refused_by_name(trained):
    recogniser = Recogniser.load(trained(*LEARNS))
    assert recogniser.sample_rate == 8000
    with pytest.raises(AudioError, match="audio at 16000 Hz, but the model was trained at 8000 Hz"):
        recogniser.transcribe([audio(torch.zeros(16000), 16000)])


def test_D5_resampled_sound_has_the_same_log_probs(trained, toy):
    import torchaudio.functional as F

    recogniser = Recogniser.load(trained(*LEARNS))
    speech = read_audio(toy.folder / "dev0.wav").samples
    original, _ = recogniser.log_probs([recogniser.features(audio(speech))])
    for rate in (16000, 22050, 48000):
        there_and_back = F.resample(F.resample(speech, 8000, rate), rate, 8000)[: len(speech)]
        log_probs, _ = recogniser.log_probs([recogniser.features(audio(there_and_back))])
        assert (log_probs.exp() - original.exp()).abs().mean() < 0.02, rate
    assert recogniser.transcribe([audio(there_and_back)])[0].text == recogniser.transcribe([audio(speech)])[0].text


@pytest.mark.parametrize(
    ("frontend", "factor"), [("{kind: stack, factor: 3}", 3), ("{kind: conv, factor: 4, channels: 4}", 4)]
)
def test_token_times_are_seconds(trained, toy, tmp_path, frontend, factor):
    exp = train(toy.recipe(tmp_path, "training.epochs=1", f"model.frontend={frontend}"))
    recogniser = Recogniser.load(exp)
    # A model whose answer is known: frame t says token path[t].
    path = [0, 1, 1, 0, 2, 0, 2, 2]

    def forward(x, lengths):
        out = torch.full((len(x), len(path), len(recogniser.tokens)), -9.0)
        out[:, range(len(path)), path] = -0.25
        return out, torch.full((len(x),), len(path))

    recogniser.model.forward = forward
    frames = factor * len(path) - 1  # the last encoder frame is not full
    samples = 200 + 80 * (frames - 1)
    (hypothesis,) = recogniser.transcribe([audio(torch.randn(samples))])
    a, b = recogniser.tokens.symbols_of([1, 2])
    step = 0.01 * factor
    expected = [(a, step, 3 * step), (b, 4 * step, 5 * step), (b, 6 * step, 0.01 * frames)]
    assert [t.symbol for t in hypothesis.tokens] == [e[0] for e in expected]
    for token, (_, start, end) in zip(hypothesis.tokens, expected, strict=True):
        assert (token.start_seconds, token.end_seconds) == (pytest.approx(start), pytest.approx(end))
        assert token.log_prob == pytest.approx(-0.25)
    assert hypothesis.text == f"{a} {b} {b}"
    assert hypothesis.log_prob == pytest.approx(-0.25 * len(path))


def test_token_times_lie_on_the_tones(trained):
    recogniser = Recogniser.load(trained(*LEARNS))
    phones = ("B", "D", "A")
    (hypothesis,) = recogniser.transcribe([audio(corpus.say(phones, np.random.default_rng(5)))])
    assert [t.symbol for t in hypothesis.tokens] == list(phones)
    for n, token in enumerate(hypothesis.tokens):  # tone n lasts from 0.06 + 0.18 n for 0.12 s
        begins = 0.06 + 0.18 * n
        assert begins - 0.06 < token.start_seconds < token.end_seconds < begins + 0.12 + 0.07


def test_best_alone_in_another_folder_is_enough(trained, toy, tmp_path):
    exp = trained(*LEARNS)
    shutil.copy(exp / "best.pt", tmp_path / "model.pt")
    speech = [read_audio(toy.folder / f"dev{n}.wav") for n in range(3)]
    assert Recogniser.load(tmp_path / "model.pt").transcribe(speech) == Recogniser.load(exp).transcribe(speech)


def test_global_statistics_travel_with_the_weights(toy, tmp_path):
    exp = train(toy.recipe(tmp_path / "exp", "training.epochs=1", "features.cmvn=global"))
    shutil.copy(exp / "best.pt", tmp_path / "model.pt")
    recogniser = Recogniser.load(tmp_path / "model.pt")
    rows = [read_audio(toy.folder / f"train{n}.wav") for n in range(14)]
    features = torch.cat([recogniser.features(row) for row in rows])
    torch.testing.assert_close(features.mean(0), torch.zeros(16), atol=1e-3, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(16), atol=1e-3, rtol=0)
    assert recogniser.features(rows[0]).mean(0).abs().max() > 1e-2, "not the utterance's own"


def test_a_speaker_cmvn_model_decodes_an_unknown_speaker(toy, tmp_path):
    exp = train(toy.recipe(tmp_path, "training.epochs=1", "features.cmvn=speaker"))
    recogniser = Recogniser.load(exp)
    speech = read_audio(toy.folder / "dev0.wav")
    features = recogniser.features(speech)
    torch.testing.assert_close(features.mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    assert np.isfinite(recogniser.transcribe([speech])[0].log_prob)


def test_E5_blank_and_table_come_from_the_checkpoint(trained):
    recogniser = Recogniser.load(trained(*LEARNS))
    assert recogniser.tokens.blank == 0
    assert recogniser.tokens.symbols == ["<blank>", "A", "B", "C", "D"]
    assert recogniser.model.output.out_features == 5


def test_a_damaged_or_missing_best_is_one_line(trained, tmp_path):
    with pytest.raises(DataError, match=r"best\.pt: no checkpoint here; train the recipe first"):
        Recogniser.load(tmp_path)
    data = (trained(*LEARNS) / "best.pt").read_bytes()
    (tmp_path / "best.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"best\.pt: not a readable checkpoint") as error:
        Recogniser.load(tmp_path)
    assert "\n" not in str(error.value)
