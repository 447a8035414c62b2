"""Recordings in folders and tables, as users have them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifest import read_manifest


@pytest.fixture
def prepare(run_tool):
    return partial(run_tool, "prepare_folder")


def sound(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.RandomState(seed).randint(-9000, 9000, 8000).astype(np.int16), 16000)
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    data = tmp_path / "my data"
    for i in range(20):
        sound(data / f"speaker {i % 10}" / f"take{i // 10}.{'wav' if i % 2 else 'flac'}", i)
        (data / f"speaker {i % 10}" / f"take{i // 10}.txt").write_bytes(b"\xef\xbb\xbfONE\r\nTWO  \xc3\x9cBER\r\n")
    sound(data / "speaker 1/alone.wav", 30)
    (data / "speaker 1/words.txt").write_text("X")
    sound(data / "speaker 2/latin.wav", 31).with_suffix(".txt").write_bytes(b"\xdcBER")
    sound(data / "speaker 3/double.wav", 32).with_suffix(".txt").write_text("X")
    sound(data / "speaker 3/double.flac", 33)
    (data / "speaker 4/broken.wav").write_bytes(b"noise" * 100)
    (data / "speaker 4/broken.txt").write_text("X")
    return data


def test_audio_beside_text(prepare, folder, tmp_path):
    code, out, err = prepare("--data", folder, "--out", tmp_path / "out")
    assert code == 0, err
    sets = {name: read_manifest(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "dev", "test")}
    assert {name: len(utterances) for name, utterances in sets.items()} == {"train": 16, "dev": 2, "test": 2}
    speakers = [{u.speaker for u in utterances} for utterances in sets.values()]
    assert len(set.union(*speakers)) == sum(map(len, speakers)) == 10
    everything = {u.id: u for utterances in sets.values() for u in utterances}
    one = everything["speaker_3-take1"]
    assert (one.audio, one.speaker, one.text, one.duration) == (
        folder / "speaker 3/take1.wav", "speaker_3", "ONE TWO ÜBER", 0.5
    )  # fmt: skip
    dropped = json.loads((tmp_path / "out/report.json").read_text("utf-8"))["dropped"]
    assert sorted(dropped) == [
        "speaker_1-alone", "speaker_1-words", "speaker_2-latin", "speaker_3-double", "speaker_4-broken"
    ]  # fmt: skip
    assert "found double.flac, double.txt, double.wav" in dropped["speaker_3-double"]
    assert "latin.txt:1: byte 0xDC is not UTF-8" in dropped["speaker_2-latin"]
    assert "broken.wav" in dropped["speaker_4-broken"]
    assert "speakers in more than one set: none" in out


def test_sets_follow_seed_and_shares(prepare, folder, tmp_path):
    chosen = []
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        options = ["--split", "big=1,small=1", "--seed", seed]
        assert prepare("--data", folder, "--out", tmp_path / out, *options)[0] == 0
        chosen.append([{u.speaker for u in read_manifest(tmp_path / out / f"{n}.jsonl")} for n in ("big", "small")])
    assert chosen[0] == chosen[1] != chosen[2]
    assert list(map(len, chosen[0])) == [5, 5]


def test_too_few_speakers(prepare, tmp_path):
    for i in range(5):
        sound(tmp_path / f"d/{i}.wav", i).with_suffix(".txt").write_text("X")
    code, _, err = prepare("--data", tmp_path / "d", "--out", tmp_path / "out")
    assert code == 1
    assert "error: 1 speaker cannot be shared out to train, dev, test; with --speaker none" in err
    assert prepare("--data", tmp_path / "d", "--out", tmp_path / "out", "--speaker", "none")[0] == 0
    assert [len(read_manifest(tmp_path / "out" / f"{n}.jsonl")) for n in ("train", "dev", "test")] == [3, 1, 1]


def test_tables(prepare, tmp_path):
    for i in range(3):
        sound(tmp_path / f"clips/c{i}.wav", i)
    (tmp_path / "t.csv").write_text(
        '\ufeffpath,sentence,client_id,split\r\nclips/c2.wav,"YES, ""NO""",bob,test\r\n'
        "clips/c0.wav,ONE\u00a0TWO,ann,train\r\nclips/c1.wav,too,few\r\nclips/c9.wav,GONE,ann,train\r\n",
        "utf-8",
        newline="",
    )
    code, out, err = prepare("--data", tmp_path, "--table", tmp_path / "t.csv", "--out", tmp_path / "out")
    assert code == 0, err
    (train,) = read_manifest(tmp_path / "out/train.jsonl")
    (test,) = read_manifest(tmp_path / "out/test.jsonl")
    assert (train.id, train.text, train.speaker) == ("clips-c0", "ONE TWO", "ann")
    assert (test.id, test.text, test.speaker) == ("clips-c2", 'YES, "NO"', "bob")
    assert "t.csv:4: 4 columns are expected, got 3" in out
    assert "clips-c9: " in out

    (tmp_path / "t.tsv").write_text('b\tclips/c0.wav\t"A\nc\tclips/c1.wav\tB\n')
    options = ["--columns", "id,audio,text", "--speaker", "none", "--split", "all=1"]
    code, _, err = prepare("--data", tmp_path, "--table", tmp_path / "t.tsv", "--out", tmp_path / "out", *options)
    assert code == 0, err
    assert [(u.id, u.text) for u in read_manifest(tmp_path / "out/all.jsonl")] == [("b", '"A'), ("c", "B")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audio,words\na.wav,X\n", "t.csv: columns audio, words: audio and text are needed"),
        ("audio,text,path\na.wav,X,a.wav\n", "no name may stand twice"),
        ("audio,text\na.wav,X\na.wav,Y\n", "t.csv:3: id 'a' stands already in line 2"),
        ('audio,text\na.wav,"X\n', "t.csv:2: unexpected end of data"),
        ("audio,text\n", "t.csv: no audio with text"),
        ("", "t.csv: columns : audio and text are needed"),
    ],
)
def test_wrong_tables(prepare, tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    code, _, err = prepare("--data", tmp_path, "--table", tmp_path / "t.csv", "--out", tmp_path / "out")
    assert code == 1
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_real_recordings(prepare, corpus, tmp_path):
    an4 = corpus("an4")
    lines = (an4 / "transcripts.tsv").read_text().splitlines()[:60]
    rows = [line.split("\t") for line in lines]
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{id}\taudio/{id}.flac\t{speaker}\t{text}\n" for id, speaker, text in rows))
    options = ["--columns", "id,audio,speaker,text", "--lexicon", an4 / "an4.dic"]
    code, out, err = prepare("--data", an4, "--table", table, "--out", tmp_path / "out", *options)
    assert code == 0, err
    assert "dropped: 0 utterances" in out
    assert "not in the lexicon: no word" in out
    ids = [u.id for n in ("train", "dev", "test") for u in read_manifest(tmp_path / "out" / f"{n}.jsonl")]
    assert sorted(ids) == sorted(row[0] for row in rows)
