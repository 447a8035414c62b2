"""The corpus preparation programs, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.lexicon import read_lexicon
from asr.data.manifest import read_manifest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def prepare(run_tool):
    def run(program: str, data: Path, out: Path, *more: str):
        return run_tool(f"prepare_{program}", "--data", data, "--out", out, *more)

    return run


def wav(path: Path, seconds: float = 0.5, rate: int = 16000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, (np.arange(int(seconds * rate)) % 100).astype(np.int16), rate)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# AN4


@pytest.fixture
def an4(tmp_path) -> Path:
    """The distributed layout: three training speakers, one test speaker, one file that is no audio, one id too many."""
    data = tmp_path / "an4 data"
    etc = data / "etc"
    etc.mkdir(parents=True)
    lines: dict[str, list[str]] = {"train": [], "test": []}
    ids: dict[str, list[str]] = {"train": [], "test": []}
    for speaker in ("fash", "mblw", "fjmd", "mjwl"):
        name = "test" if speaker == "mjwl" else "train"
        for number in range(3):
            id = f"an{number}-{speaker}-b"
            wav(data / "wav" / "an4_clstk" / speaker / f"{id}.wav")
            ids[name].append(f"an4_clstk/{speaker}/{id}")
            lines[name].insert(0, f"<s> YES {'A' if number else 'NO'} </s> ({id})")  # by id, never by position
    (data / "wav/an4_clstk/fash/an0-fash-b.wav").write_bytes(b"noise" * 100)
    cut = data / "wav/an4_clstk/fjmd/an2-fjmd-b.wav"
    cut.write_bytes(cut.read_bytes()[:5000])
    ids["train"].append("an4_clstk/fash/an9-fash-b")
    for name in lines:
        (etc / f"an4_{name}.fileids").write_text("\n".join(ids[name]) + "\n")
        (etc / f"an4_{name}.transcription").write_text("\n".join(lines[name]) + "\n")
    (etc / "an4.dic").write_text("YES  Y EH S\nA  EY\nA(2)  AH\n")
    return data


def test_an4_distributed_layout(prepare, an4, tmp_path):
    done = prepare("an4", an4, tmp_path / "out", "--dev-speakers", "1")
    assert done.code == 0, done.err
    sets = {name: read_manifest(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "dev", "test")}
    assert {u.speaker for u in sets["test"]} == {"mjwl"}
    assert not {u.speaker for u in sets["train"]} & {u.speaker for u in sets["dev"]}
    everything = {u.id: u for utterances in sets.values() for u in utterances}
    assert len(everything) == 10
    assert everything["an0-mblw-b"].text == "YES NO"
    assert everything["an1-mblw-b"].text == "YES A"
    assert everything["an1-mblw-b"].duration == 0.5
    assert "dropped: 3 utterances" in done.out
    assert "an2-fjmd-b.wav: truncated or damaged: the header promises 8000 samples" in done.out  # A5
    assert "an9-fash-b: no transcript" in done.out
    assert "  an0-fash-b: " in done.out
    assert "NO (" in done.out  # out of vocabulary, kept
    assert read_lexicon(tmp_path / "out/lexicon.txt", "keep")["A"] == (("EY",), ("AH",))


def test_C3_same_bytes_under_any_locale(an4, prepare, tmp_path):
    assert prepare("an4", an4, tmp_path / "here", "--dev-speakers", "1").code == 0
    command = [sys.executable, TOOLS / "prepare_an4.py", "--data", an4, "--out", tmp_path / "C", "--dev-speakers", "1"]
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "1"}
    subprocess.run(command, env=env, check=True, capture_output=True)
    assert files(tmp_path / "here") == files(tmp_path / "C")


def test_C3_duplicate_transcript_id_is_an_error(prepare, an4, tmp_path):
    path = an4 / "etc/an4_train.transcription"
    path.write_text(path.read_text() + "<s> NO </s> (an1-mblw-b)\n")
    done = prepare("an4", an4, tmp_path / "out")
    assert done.code == 1
    assert done.err.strip() == f"error: {path}:10: id 'an1-mblw-b' stands twice"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dev-speakers", "3"], "--dev-speakers 3: there are only 3 training speakers"),
        (["--dev-speakers", "0"], "invalid positive value: '0'"),
        (["--seed", "-1"], "invalid count value: '-1'"),
    ],
)
def test_wrong_options(prepare, an4, tmp_path, options, message):
    done = prepare("an4", an4, tmp_path / "out", *options)
    assert done.code in (1, 2)
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("program", ["an4", "digits", "librispeech"])
def test_empty_or_missing_folder_is_one_line(prepare, tmp_path, program):
    (tmp_path / "empty").mkdir()
    for folder in ("none", "empty"):
        done = prepare(program, tmp_path / folder, tmp_path / "out")
        assert done.code == 1
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert str(tmp_path / folder) in done.err


def test_an4_official_test_set(prepare, corpus, tmp_path):
    done = prepare("an4", corpus("an4"), tmp_path)
    assert done.code == 0, done.err
    sets = {name: read_manifest(tmp_path / f"{name}.jsonl") for name in ("train", "dev", "test")}
    official = (corpus("an4") / "test.ids").read_text().split()
    assert {u.id for u in sets["test"]} == set(official)
    assert len(sets["train"]) + len(sets["dev"]) == 948
    assert len({u.speaker for u in sets["dev"]}) == 7
    assert "speakers in more than one set: none" in done.out
    assert "dropped: 0 utterances" in done.out


# Digits


@pytest.fixture
def fsdd(tmp_path) -> Path:
    data = tmp_path / "fsdd"
    for speaker in ("ann", "bob"):
        for take in range(12):
            for digit in range(10):
                wav(data / "recordings" / f"{digit}_{speaker}_{take}.wav", 0.1 + digit / 100, 8000)
    wav(data / "recordings/3_ann_20.wav", 0.1, 16000)
    wav(data / "recordings/three.wav", 0.1, 8000)
    return data


def test_digits_deal_every_recording_once(prepare, fsdd, tmp_path):
    done = prepare("digits", fsdd, tmp_path / "out", "--copies", "2")
    assert done.code == 0, done.err
    for name, takes, copies in (("train", 2, 2), ("dev", 5, 1), ("test", 5, 1)):
        utterances = read_manifest(tmp_path / "out" / f"{name}.jsonl")
        words = [word for u in utterances for word in u.words]
        assert {word: words.count(word) for word in set(words)} == dict.fromkeys(set(words), 2 * takes * copies)
        assert len(set(words)) == 10
        assert all(3 <= len(u.words) <= 7 for u in utterances)
    for u in utterances:
        info = soundfile.info(u.audio)
        assert (info.samplerate, info.subtype, info.frames / 8000) == (8000, "PCM_16", u.duration)
        digits = read_lexicon(tmp_path / "out/lexicon.txt", "keep").entries.keys()
        spoken = sum(0.1 + sorted(digits, key=ORDER.index).index(word) / 100 for word in u.words)
        assert spoken + 0.05 * (len(u.words) + 1) <= u.duration <= spoken + 0.25 * (len(u.words) + 1) + 0.01
    assert "train and test: 2" in done.out  # speakers in both are said
    assert "16000 Hz" in done.out
    assert "three: the name is not DIGIT_SPEAKER_TAKE" in done.out


ORDER = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]


def test_digits_follow_the_seed(prepare, fsdd, tmp_path):
    for out, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert prepare("digits", fsdd, tmp_path / out, "--seed", seed).code == 0
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert files(tmp_path / "a")["test.jsonl"] != files(tmp_path / "c")["test.jsonl"]


# LibriSpeech


def test_librispeech_tree(prepare, tmp_path):
    data = tmp_path / "LibriSpeech"
    for subset, speakers in (("train-clean-100", (19, 26)), ("dev-clean", (84,)), ("test-clean", (61,))):
        for speaker in speakers:
            folder = data / subset / str(speaker) / "7"
            for number in range(2):
                folder.mkdir(parents=True, exist_ok=True)
                soundfile.write(folder / f"{speaker}-7-000{number}.flac", np.zeros(8000, np.int16), 16000)
            (folder / f"{speaker}-7.trans.txt").write_text(f"{speaker}-7-0001 TWO\n{speaker}-7-0000 ONE KINE\n")
    (tmp_path / "lex.txt").write_text("ONE W AH1 N\nTWO T UW1\n")
    options = ["--dev", "dev-clean", "--test", "test-clean", "--lexicon", str(tmp_path / "lex.txt")]
    done = prepare("librispeech", data, tmp_path / "out", *options)
    assert done.code == 0, done.err
    assert [u.id for u in read_manifest(tmp_path / "out/train.jsonl")] == [
        "19-7-0000", "19-7-0001", "26-7-0000", "26-7-0001"
    ]  # fmt: skip
    assert [(u.text, u.speaker) for u in read_manifest(tmp_path / "out/test-clean.jsonl")] == [
        ("ONE KINE", "61"), ("TWO", "61")
    ]  # fmt: skip
    assert "not in the lexicon, test-clean: 1 of 3 words (33.33%), 1 distinct, in 1 utterance: KINE (1)" in done.out

    done = prepare("librispeech", data, tmp_path / "out2", "--test", "test-other", *options[:2], *options[4:])
    assert done.code == 1
    assert "test-other: no SPEAKER/CHAPTER/*.trans.txt" in done.err


def test_librispeech_excerpt(prepare, corpus, tmp_path):
    lexicon = tmp_path / "lex.txt"
    lexicon.write_text("THE DH AH0\n")
    done = prepare("librispeech", corpus("librispeech"), tmp_path / "out", "--lexicon", str(lexicon))
    assert done.code == 0, done.err
    sizes = [len(read_manifest(tmp_path / "out" / f"{name}.jsonl")) for name in ("train", "dev", "test-other")]
    assert sizes == [236, 15, 100]
    assert "speakers in more than one set: none" in done.out
