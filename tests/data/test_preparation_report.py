"""The preparation report counts what is there: every figure here is worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.audio_stats import Stretch, measure_audio, measure_samples
from asr.data.lexicon import make_lexicon
from asr.data.manifest import Utterance
from asr.data.preparation_report import make_report, write_report


def utterance(id: str, duration: float = 1.0, text: str = "ONE", speaker: str = "s", **more) -> Utterance:
    return Utterance(id=id, audio=Path(f"{id}.wav"), duration=duration, speaker=speaker, text=text, **more)


def noise(count: int, seed: int = 0, size: float = 0.1) -> np.ndarray:
    return (np.random.RandomState(seed).uniform(-size, size, count)).astype(np.float32)


def test_clipped_samples_have_a_neighbour_at_full_scale():
    samples = noise(1000)
    samples[[10, 11, 12, 500, 700, 701]] = [1, 1, 1, 1, -1, -32767 / 32768]  # 500 stands alone: a peak, not a plateau
    assert measure_samples(samples, 16000).clipped == 5 / 1000
    assert measure_samples(samples, 16000).peak == 1
    assert measure_samples(noise(1000), 16000).clipped == 0


def test_silence_is_relative_to_the_speech_and_ignores_an_offset():
    speech, pause = noise(16000), noise(8000, 1, 0.0005)  # -46 dB
    assert measure_samples(np.concatenate([speech, pause]), 16000).silent == pytest.approx(1 / 3)
    assert measure_samples(np.concatenate([speech, pause]) + np.float32(0.2), 16000).silent == pytest.approx(1 / 3)
    assert measure_samples(np.concatenate([speech, noise(8000, 1, 0.005)]), 16000).silent == 0  # -26 dB
    assert measure_samples(np.zeros(1600, np.float32), 16000).silent == 1
    assert measure_samples(noise(3), 16000).silent == 0  # shorter than a frame


def test_one_recording_many_stretches_and_formats(tmp_path):
    samples = (noise(16240, 3) * 32768).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 8000)
    soundfile.write(tmp_path / "b.flac", samples, 8000)
    wav, flac = tmp_path / "a.wav", tmp_path / "b.flac"
    (tmp_path / "bad.wav").write_bytes(b"noise" * 100)
    asked = [
        Stretch(wav), Stretch(wav, 0, 2.04), Stretch(wav, 1, None), Stretch(flac), Stretch(wav, 0, 9),
        Stretch(tmp_path / "bad.wav"), Stretch(wav, 2.03, 2.05), Stretch(wav, 1, 1),
    ]  # fmt: skip
    whole, over, tail, other, *bad = measure_audio(asked)
    assert (whole.samples, over.samples, tail.first, tail.samples) == (16240, 16240, 8000, 8240)
    assert (whole.overshoot, over.overshoot) == (0, 0.01)
    assert whole.digest == over.digest == other.digest != tail.digest
    assert tail.digest == measure_samples(samples[8000:] / np.float32(32768), 8000).digest
    for result, words in zip(
        bad, ["6.970 s after the audio", "bad.wav", "starts at 2.03 s", "starts at 1 s but"], strict=True
    ):
        assert isinstance(result, str)
        assert words in result


def test_figures(tmp_path):
    lexicon = make_lexicon([("ONE", ["W", "AH1", "N"]), ("ONE", ["W", "N"]), ("AHA", ["AH0", "AH1"])], "keep")
    sets = {
        "train": [
            utterance("a", 0.5, "ONE ONE", "x"),
            utterance("b", 1.0, "ONE TWO", "y"),
            utterance("c", 30.0, "TWO", "y"),
        ],
        # 0.045 s: 3 feature frames. AHA: 2 labels and a blank between them; characters: A H A
        "test": [utterance("d", 0.045, "AHA", "y"), utterance("e", 2.999, "", "z")],
    }
    loud = np.ones(8000, np.float32)
    stats = {
        "a": measure_samples(noise(8000), 16000),
        "b": measure_samples(loud, 16000),
        "c": measure_samples(np.zeros(8000, np.float32), 8000),
        "d": measure_samples(noise(8000), 16000),  # what "a" is
    }
    report = write_report(tmp_path, sets, {"z9": "no text", "f": "empty"}, stats=stats, lexicon=lexicon)
    train, test = report.sets["train"], report.sets["test"]
    assert train.lengths == [1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert test.lengths == [1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert train.rates == {8000: 1, 16000: 2}
    assert train.oov == {"TWO": 2}
    assert train.oov_utterances == 2
    assert test.infeasible == {"phones": {1: 0, 2: 1, 4: 1}, "characters": {1: 0, 2: 1, 4: 1}}
    assert train.infeasible["phones"] == {1: 0, 2: 0, 4: 0}
    assert train.clipped_percent == pytest.approx(100 / 3)
    assert train.clipped == ["b"]
    assert train.silent == ["c"]
    assert test.measured == 1
    assert report.shared_speakers == {"train and test": 1}
    assert report.duplicates == report.duplicates_across == [["test/d", "train/a"]]

    tree = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert tree["sets"]["train"]["summary"]["hours"] == pytest.approx(31.5 / 3600)
    assert tree["dropped"] == {"f": "empty", "z9": "no text"}
    assert tree["duplicates_across_sets"] == 1
    text = (tmp_path / "report.txt").read_text("utf-8")
    assert text.isascii()
    for line in (
        "not in the lexicon, train: 2 of 5 words (40.00%), 1 distinct, in 2 utterances: TWO (2)",
        "  test, phones        0   1   1",
        "the same audio under different ids: 1 group across sets, 0 within one set",
        "  test/d = train/a",
        "speakers in more than one set: train and test: 1",
        "never above -60 dB of full scale, train: 1 utterance",
        "clipped in more than 0.1 % of samples, train: 1 utterance",
        "dropped: 2 utterances",
        "  z9: no text",
    ):
        assert line in text.splitlines()


def test_long_lists_are_cut_on_the_terminal_only(tmp_path):
    sets = {"train": [utterance("a")]}
    report = write_report(tmp_path, sets, {f"u{i:02d}": "gone" for i in range(20)})
    assert "  u02: gone\n  ... and 17 more\n" in report.text(most=3)
    assert "  u19: gone\n" in (tmp_path / "report.txt").read_text()
    assert "audio, train: not measured" in report.text()


def test_a_subset_is_not_a_duplicate():
    items = [utterance("a"), utterance("b")]
    stats = {id: measure_samples(noise(100, seed), 16000) for seed, id in enumerate("ab")}
    report = make_report({"si84": items[:1], "si284": items}, {}, stats=stats)
    assert report.shared_ids == {"si84 and si284": 1}
    assert report.duplicates == []
    assert "the same utterances in two sets: si84 and si284: 1" in report.text()


def test_phones_of_the_manifest_count_without_a_lexicon():
    report = make_report({"t": [utterance("a", 0.045, "X", phones=("A", "A", "B"))]}, {})
    assert report.sets["t"].infeasible["phones"] == {1: 1, 2: 1, 4: 1}  # 3 labels, a blank, 3 frames
    assert report.sets["t"].infeasible["characters"] == {1: 0, 2: 0, 4: 0}
