"""Validation collects everything and stops at nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from asr.data.manifest import read_manifest
from asr.data.validate import summarise, validate_manifest
from asr.errors import DataError


@pytest.fixture
def manifest(tmp_path):
    soundfile.write(tmp_path / "good.wav", np.zeros(16000, np.int16), 16000)
    (tmp_path / "noise.wav").write_bytes(b"this is not audio" * 10)
    lines = [
        {"id": "a", "audio": "good.wav", "duration": 1.0, "speaker": "s1", "text": "ONE TWO"},
        {"id": "b", "audio": "good.wav", "start": 0.5, "duration": 0.7, "speaker": "s2", "text": "TWO"},
        {"id": "c", "audio": "noise.wav", "duration": 1.0, "speaker": "s2", "text": ""},
        {"id": "d", "audio": "none.wav", "duration": 3.0, "speaker": "s2", "text": "TWO"},
        {"id": "e", "audio": "good.wav"},
        {"id": "f", "audio": "good.wav", "start": 0.5, "duration": 0.51, "speaker": "s1", "text": "ONE"},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_every_problem_with_line_and_id(manifest):
    report = validate_manifest(manifest)
    assert [(p.line, p.id) for p in report.problems] == [(2, "b"), (3, "c"), (4, "d"), (5, "")]
    assert "ends at 1.200 s" in report.problems[0].what
    assert "noise.wav" in report.problems[1].what
    assert "none.wav" in report.problems[2].what
    assert report.problems[3].what == "duration: this key is missing"
    assert not report.ok
    assert len(report.text().split("\n")) == 5


def test_summary(manifest):
    s = validate_manifest(manifest, check_audio=False).summary
    assert (s.utterances, s.speakers, s.words, s.distinct_words, s.empty_texts) == (5, 2, 5, 2, 1)
    assert s.hours == pytest.approx(6.21 / 3600)
    assert (s.min_seconds, s.max_seconds) == (0.51, 3.0)
    assert s.mean_seconds == pytest.approx(6.21 / 5)


def test_without_audio_check_only_lines_count(manifest):
    assert [p.line for p in validate_manifest(manifest, check_audio=False).problems] == [5]


def test_empty(tmp_path):
    (tmp_path / "m.jsonl").touch()
    report = validate_manifest(tmp_path / "m.jsonl")
    assert [p.what for p in report.problems] == ["no utterances in this manifest"]
    assert report.summary == summarise([])


def test_missing_manifest(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        validate_manifest(tmp_path / "m.jsonl")
    with pytest.raises(DataError, match="No such file"):
        read_manifest(tmp_path / "m.jsonl")


def test_A5_a_file_cut_short_is_found(tmp_path):
    samples = np.random.RandomState(0).randint(-9999, 9999, 16000).astype(np.int16)
    lines = []
    for name in ("cut.wav", "cut.flac", "whole.flac"):
        file = tmp_path / name
        soundfile.write(file, samples, 16000)
        if name.startswith("cut"):
            file.write_bytes(file.read_bytes()[: file.stat().st_size * 4 // 10])
        lines.append(json.dumps({"id": name, "audio": name, "duration": 1.0, "speaker": "s", "text": "A"}))
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(lines))
    assert "promises 16000 samples" in validate_manifest(path).problems[0].what
    assert [p.id for p in validate_manifest(path, decode=True).problems] == ["cut.wav", "cut.flac"]


@pytest.mark.parametrize(("channel", "ok"), [(None, True), (0, True), (1, True), (2, False), (-1, False), ("0", False)])
def test_a_channel_that_is_not_there(tmp_path, channel, ok):
    soundfile.write(tmp_path / "two.wav", np.zeros((1600, 2), np.int16), 16000)
    item = {"id": "a", "audio": "two.wav", "duration": 0.1, "speaker": "s", "text": "A", "channel": channel}
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(item))
    found = [problem.what for problem in validate_manifest(path).problems]
    file = tmp_path / "two.wav"
    assert found == ([] if ok else [f"{file}: has 2 channel(s), counted from 0; there is no channel {channel!r}"])


def test_A7_an_estimated_length_is_not_held_against_the_utterance(tmp_path):
    soundfile.write(tmp_path / "a.mp3", np.zeros(16000, np.float32), 16000, format="MP3")
    item = {"id": "a", "audio": "a.mp3", "duration": 3.0, "speaker": "s", "text": "A"}
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(item))
    assert validate_manifest(path).ok
    (problem,) = validate_manifest(path, decode=True).problems
    assert "3.000 s" in problem.what
