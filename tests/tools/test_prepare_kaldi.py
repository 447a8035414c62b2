"""Kaldi data directories as people hand them over: shuffled, piped, with segments that overshoot."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.audio.config import FeaturesConfig
from asr.audio.read import read_audio
from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.data.store import FeatureStore

PROGRAM = str(Path(__file__).resolve().parents[2] / "tools/prepare_kaldi.py")


@pytest.fixture
def kaldi(run_tool):
    """Run the program; returns (exit code, output, errors)."""
    return partial(run_tool, "prepare_kaldi")


def tone(seconds: float = 0.5, rate: int = 16000, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(-9000, 9000, round(seconds * rate)).astype(np.int16)


def wav(path: Path, **about) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(**about), about.get("rate", 16000), format="WAV")
    return path


def data_dir(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("wav_scp", "wav.scp").replace("feats_scp", "feats.scp")).write_text(text, "utf-8")
    return folder


def test_C1_no_command_is_run(kaldi, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, odd, semicolon = wav(Path("a.wav")), wav(Path("$(touch PWNED2).wav"), seed=1), wav(Path(";touch PWNED3.wav"))
    assert odd.is_file()
    entries = {
        "u1": "touch PWNED; cat a.wav |",
        "u2": "$(touch PWNED2).wav",
        "u3": ";touch PWNED3.wav",
        "u4": "| tee PWNED4",
        "u5": "sph2pipe -f wav -p -c 1 $(touch PWNED5) |",
        "u6": "sph2pipe -f wav a.wav; touch PWNED6 |",
        "u7": "sox a.wav -t wav - |",
        "u8": "a.wav",
    }
    data = data_dir(
        Path("d"),
        wav_scp="".join(f"{id} {entry}\n" for id, entry in entries.items()),
        text="".join(f"{id} YES\n" for id in entries),
    )
    code, out, err = kaldi("import", f"train={data}", "--out", "out")
    assert code == 0, err
    assert [(u.id, u.audio.name) for u in read_manifest("out/train.jsonl")] == [
        ("u2", odd.name), ("u3", semicolon.name), ("u8", good.name)
    ]  # fmt: skip
    assert not list(tmp_path.rglob("*PWNED[0-9]")) + list(tmp_path.rglob("PWNED"))
    assert "u1: d/wav.scp:1: the command 'touch PWNED; cat a.wav' is not run, as it could do anything; only" in out
    assert "u4: d/wav.scp:4: '| tee PWNED4' is no file to read from" in out
    for line in (5, 6):
        assert f"d/wav.scp:{line}: the command 'sph2pipe" in out
    assert "u7: d/wav.scp:7: the command 'sox a.wav -t wav -' is not run" in out


def test_C1_a_pickle_in_an_archive_is_not_loaded(kaldi, tmp_path):
    pytest.importorskip("kaldiio")

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "PWNED"),)

    ark = tmp_path / "a.ark"
    ark.write_bytes(b"u1 PKL" + pickle.dumps(Evil()))
    data = data_dir(tmp_path / "d", wav_scp=f"u1 {ark}:3\n", text="u1 YES\n")
    code, _, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 1
    assert f"{ark}:3: here does not begin a WAV file or an AUDIO record" in err
    assert not (tmp_path / "PWNED").exists()


def test_sph2pipe_is_read_natively_with_its_channel(kaldi, tmp_path):
    left, right = tone(seed=1), tone(seed=2)
    head = b"NIST_1A\n   1024\nchannel_count -i 2\nsample_count -i 8000\nsample_rate -i 16000\nsample_n_bytes -i 2\n"
    head += b"sample_byte_format -s2 01\nsample_coding -s3 pcm\nend_head\n"
    sphere = tmp_path / "two channels.sph"
    sphere.write_bytes(head.ljust(1024) + np.stack([left, right], 1).astype("<i2").tobytes())
    data = data_dir(
        tmp_path / "d",
        wav_scp=f"A /opt/sph2pipe_v2.5/sph2pipe -f wav -p -c 1 '{sphere}' |\nB sph2pipe -c2 -f wav '{sphere}' |\n"
        f"C sph2pipe -f wav -p -c 3 '{sphere}' |\nD sph2pipe -f ulaw '{sphere}' |\n",
        text="A ONE\nB TWO\nC THREE\nD FOUR\n",
        utt2spk="A x\nB y\nC x\nD x\n",
    )
    code, out, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 0, err
    a, b = read_manifest(tmp_path / "out/d.jsonl")
    for utterance, samples in ((a, left), (b, right)):
        heard = read_audio(utterance.audio, channel=utterance.extra["channel"]).samples.numpy()
        np.testing.assert_array_equal(heard * 32768, samples)
    assert "asks for channel '3'" in out
    assert "asks for the format 'ulaw'" in out
    assert "the same audio under different ids: 0 groups across sets, 0 within one set" in out


IDS = ["a-1", "A2", "a1", "B1", "a_1"]


def shuffled(folder: Path, shift: int, audio: Path) -> Path:
    def lines(step: int, value) -> str:
        return "".join(f"{IDS[(i * step + shift) % 5]} {value(IDS[(i * step + shift) % 5])}\n" for i in range(5))

    return data_dir(
        folder,
        wav_scp=lines(2, lambda id: audio / f"{IDS.index(id)}.wav"),
        text=lines(3, lambda id: f"WORD {id.upper()}"),
        utt2spk=lines(4, lambda id: f"s{IDS.index(id)}"),
    )


def test_C3_by_id_and_in_byte_order_under_any_locale(kaldi, tmp_path):
    for i in range(5):
        wav(tmp_path / "audio" / f"{i}.wav", seed=i, seconds=0.1 + i / 100)
    made = []
    for shift in (0, 2):
        data = shuffled(tmp_path / f"{shift}" / "set", shift, tmp_path / "audio")
        out, back = tmp_path / f"out{shift}", tmp_path / f"back{shift}"
        if shift:
            env = os.environ | {"LC_ALL": "en_US.UTF-8", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
            command = [sys.executable, PROGRAM, "import", data, "--out", out]
            subprocess.run(command, env=env, check=True, capture_output=True)
        else:
            assert kaldi("import", data, "--out", out)[0] == 0
        assert kaldi("export", out / "set.jsonl", "--out", back, "--speaker-prefix")[0] == 0
        made.append({p.relative_to(f): p.read_bytes() for f in (out, back) for p in sorted(f.iterdir()) if p.is_file()})
    assert made[0] == made[1]
    utterances = read_manifest(tmp_path / "out0/set.jsonl")
    assert [u.id for u in utterances] == ["A2", "B1", "a-1", "a1", "a_1"]  # LC_ALL=C sort
    for u in utterances:
        i = IDS.index(u.id)
        assert (u.text, u.speaker, u.audio.name) == (f"WORD {u.id.upper()}", f"s{i}", f"{i}.wav")
        assert u.duration == (1600 + 160 * i) / 16000
    assert (tmp_path / "back0/text").read_text().splitlines() == [
        "s0-a-1 WORD A-1", "s1-A2 WORD A2", "s2-a1 WORD A1", "s3-B1 WORD B1", "s4-a_1 WORD A_1"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["wav.scp", "text", "utt2spk"])
def test_C3_duplicate_id_names_both_lines(kaldi, tmp_path, name):
    for i in range(5):
        wav(tmp_path / "audio" / f"{i}.wav", seed=i)
    data = shuffled(tmp_path / "set", 0, tmp_path / "audio")
    path = data / name
    path.write_text(path.read_text() + "a-1 other.wav\n")
    code, _, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 1
    assert f"error: {path}:6: id 'a-1' stands already in line 1; ids must be unique\n" in err
    assert not (tmp_path / "out").exists()


def test_C5_segment_ends(kaldi, tmp_path):
    recording = wav(tmp_path / "r.wav", seconds=2.03, rate=8000)
    spans = ["0 2.03", "0 2.04", "0 9", "1 -1", "2.03 2.5", "1 1", "0 2.2", "0.12345 nan", "-1 2"]
    data = data_dir(
        tmp_path / "d",
        wav_scp=f"r {recording}\n",
        segments="".join(f"u{i} r {span}\n" for i, span in enumerate(spans)) + "u9 q 0 1\n",
        text="".join(f"u{i} YES\n" for i in range(10)),
        utt2spk="".join(f"u{i} s\n" for i in range(10)),
    )
    code, out, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 0, err
    utterances = {u.id: u for u in read_manifest(tmp_path / "out/d.jsonl")}
    heard = {id: len(read_audio(u.audio, start=u.start, duration=u.duration).samples) for id, u in utterances.items()}
    assert heard == {"u0": 16240, "u1": 16240, "u3": 8240, "u6": 16240}
    assert [line for line in out.splitlines() if "segment cut by" in line] == [
        "  u1: segment cut by 0.010 s, where its recording ends",
        "  u6: segment cut by 0.170 s, where its recording ends",
    ]
    assert "u2: " in out
    assert "ends at 9 s, 6.970 s after the audio (2.030 s); 0.5 s are allowed" in out
    assert "starts at 2.03 s but the audio ends at 2.030 s" in out
    assert f"u5: {data}/segments:6: the segment starts at 1 s and ends at 1 s" in out
    assert "got 'r 0.12345 nan'" in out
    assert "got 'r -1 2'" in out
    assert f"u9: {data}/segments:10: recording 'q' is not in wav.scp" in out

    code, out, _ = kaldi("import", data, "--out", tmp_path / "strict", "--max-overshoot", "0")
    assert code == 0
    assert {u.id for u in read_manifest(tmp_path / "strict/d.jsonl")} == {"u0", "u3"}


def test_B5_unicode_spaces(kaldi, tmp_path):
    audio = wav(tmp_path / "a.wav")
    separators = ["\u00a0", "\u3000", "\u2028", "\u200b", "\t", "  "]
    data = data_dir(
        tmp_path / "d",
        wav_scp="".join(f"u{i} {audio}\n" for i in range(6)),
        text="".join(f"u{i} ONE{space}TWO\n" for i, space in enumerate(separators)),
    )
    code, out, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 0, err
    assert [(u.id, u.text) for u in read_manifest(tmp_path / "out/d.jsonl")] == [
        (f"u{i}", "ONE TWO") for i in (0, 1, 2, 4, 5)
    ]
    assert f"u3: {data}/text:4: invisible character U+200B at position 4" in out

    (data / "text").write_text("u0\u00a0ONE TWO\n", "utf-8")
    code, _, err = kaldi("import", data, "--out", tmp_path / "out2")
    assert code == 1
    assert f"{data}/text:1: " in err
    assert "U+00A0" in err


@pytest.mark.parametrize(
    ("spell", "hint"),
    [
        (str.upper, "upper and lower case differ: ann-1 and ANN-1 (3 pairs)"),
        (lambda id: f"{id}.wav", "one has a file name extension: ann-1 and ann-1.wav (3 pairs)"),
        (lambda id: id.replace("-", "_"), "'-' and '_' differ: ann-1 and ann_1 (3 pairs)"),
        (lambda id: id.replace("-", "-00"), "leading zeros of numbers differ: ann-1 and ann-001 (3 pairs)"),
        (lambda id: f"rec-{id}", "the second has the prefix 'rec-': ann-1 and rec-ann-1 (3 pairs)"),
        (lambda id: f"{id[:3]}_{id}", "the second has a prefix, the speaker it seems: ann-1 and ann_ann-1 (3 pairs)"),
        (lambda id: id.partition("-")[2] + "x", None),
    ],
)
def test_ids_that_miss_each_other(kaldi, tmp_path, spell, hint):
    ids = ["ann-1", "ann-2", "bob-3"]
    audio = wav(tmp_path / "a.wav")
    data = data_dir(
        tmp_path / "d",
        wav_scp="".join(f"{id} {audio}\n" for id in ids),
        text="".join(f"{spell(id)} YES\n" for id in ids),
    )
    code, _, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 1
    assert f"error: {data}: its files have no id in common\n  file     ids  in all files  not in all  e.g.\n" in err
    assert (f"  wav.scp and text: {hint}" in err) if hint else (" and text: " not in err)


def test_some_ids_missing_are_dropped_and_shown(kaldi, tmp_path):
    audio = wav(tmp_path / "a.wav")
    data = data_dir(
        tmp_path / "d", wav_scp=f"a {audio}\nb {audio}\nc /none.wav\n", text="a X\nc Z\n", spk2utt="s c b\nt a\n"
    )
    code, out, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 0, err
    assert [(u.id, u.speaker) for u in read_manifest(tmp_path / "out/d.jsonl")] == [("a", "t")]
    assert "b: not in text" in out
    assert "c: /none.wav: cannot be opened: No such file or directory" in out
    (data / "utt2spk").write_text("a u\n")
    code, _, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 1
    assert f"{data}/spk2utt:2: utterance 'a' belongs to 't' here and to 'u' in {data}/utt2spk:1" in err


def test_sounds_and_features_in_archives(kaldi, tmp_path):
    kaldiio = pytest.importorskip("kaldiio")
    sounds = {f"u{i}": tone(seed=i) for i in range(3)}
    features = {id: np.random.RandomState(i).randn(5 + i, 40).astype("f4") for i, id in enumerate(sounds)}
    data = tmp_path / "d"
    data.mkdir()
    with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/w.ark,{data}/wav.scp") as writer:
        for id, samples in sounds.items():
            writer(id, (16000, samples))
    with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/f.ark,{data}/feats.scp", compression_method=2) as writer:
        for id, matrix in features.items():
            writer(id, matrix)
    data_dir(data, text="".join(f"{id} YES\n" for id in sounds))
    with open(data / "wav.scp", "a") as file:
        file.write(f"u9 {tmp_path}/w.ark:7\n")
    with open(data / "text", "a") as file:
        file.write("u9 YES\n")
    code, out, err = kaldi("import", data, "--out", tmp_path / "out", "--features")
    assert code == 0, err
    utterances = read_manifest(tmp_path / "out/d.jsonl")
    assert [u.id for u in utterances] == list(sounds)
    for u in utterances:
        np.testing.assert_array_equal(read_audio(u.audio).samples.numpy() * 32768, sounds[u.id])
    assert "w.ark:7: here does not begin a WAV file" in out
    store = FeatureStore(tmp_path / "out/kaldi_features/d")
    for id, matrix in features.items():
        np.testing.assert_allclose(store[id].numpy(), matrix, atol=0.05)  # lossy compression

    (tmp_path / "f.ark").write_bytes((tmp_path / "f.ark").read_bytes()[:-20])
    code, out, err = kaldi("import", data, "--out", tmp_path / "out", "--features")
    assert code == 0, err
    store = FeatureStore(tmp_path / "out/kaldi_features/d")
    assert set(store.failed) == {"u2"}
    assert "bytes are announced" in store.failed["u2"]


def test_archives_without_kaldiio_name_the_extra(kaldi, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldiio", None)
    monkeypatch.setitem(sys.modules, "kaldiio.matio", None)
    (tmp_path / "a.ark").write_bytes(b"u1 AUDIO\x04....")
    data = data_dir(tmp_path / "d", wav_scp=f"u1 {tmp_path}/a.ark:3\n", text="u1 YES\n")
    code, _, err = kaldi("import", data, "--out", tmp_path / "out")
    assert code == 1
    assert "pip install 'asr[kaldi]'" in err


def test_export_and_import_give_the_same_back(kaldi, tmp_path):
    stereo = tmp_path / "stereo.wav"
    soundfile.write(stereo, np.stack([tone(1, seed=5), tone(1, seed=6)], 1), 16000)
    flac = tmp_path / "x.flac"
    soundfile.write(flac, tone(1, seed=7), 16000)
    long, pipe = wav(tmp_path / "long.wav", seconds=2, seed=8), wav(tmp_path / "a.wav |", seed=9)
    utterances = [
        Utterance("s-1", long, 0.5, "s", "ONE", start=0.25),
        Utterance("s-2", long, 0.500125, "s", "TWO  WORDS", start=1.123),
        Utterance("s-3", stereo, 1.0, "s", "THREE", extra={"channel": 1}),
        Utterance("t-4", flac, 1.0, "t", ""),
        Utterance("t-5", pipe, 0.5, "t", "FÜNF"),
        Utterance("t-6", tmp_path / "none.wav", 0.5, "t", "SIX"),
    ]
    write_manifest(tmp_path / "m.jsonl", utterances)
    code, out, err = kaldi("export", tmp_path / "m.jsonl", "--out", tmp_path / "set")
    assert code == 0, err
    assert "5 utterances" in out
    assert "3 recordings written anew" in out
    assert "t-6: " in out
    assert "|" not in (tmp_path / "set/wav.scp").read_text()
    code, out, err = kaldi("import", tmp_path / "set", "--out", tmp_path / "back")
    assert code == 0, err
    for before, after in zip(utterances, read_manifest(tmp_path / "back/set.jsonl"), strict=False):
        assert (before.id, before.speaker, before.words) == (after.id, after.speaker, after.words)
        expected = read_audio(
            before.audio, channel=before.extra.get("channel"), start=before.start, duration=before.duration
        )
        heard = read_audio(after.audio, start=after.start, duration=after.duration)
        np.testing.assert_array_equal(heard.samples, expected.samples)


def test_features_go_out_and_come_back(kaldi, tmp_path):
    kaldiio = pytest.importorskip("kaldiio")
    utterances = [Utterance(id, wav(tmp_path / f"{id}.wav", seed=i), 0.5, "s", "YES") for i, id in enumerate("bac")]
    write_manifest(tmp_path / "m.jsonl", utterances)
    store = FeatureStore.build(tmp_path / "features", utterances[:2], FeaturesConfig(), 1)
    export = ("export", tmp_path / "m.jsonl", "--out", tmp_path / "set", "--speaker-prefix", "--features")
    code, out, err = kaldi(*export, store.folder)
    assert code == 0, err
    assert "features: 2 matrices of 40 values a frame" in out
    assert f"  s-c: not in {store.folder}" in out
    matrices = kaldiio.load_scp(str(tmp_path / "set/feats.scp"))
    assert list(matrices) == ["s-a", "s-b"]
    code, _, err = kaldi("import", tmp_path / "set", "--out", tmp_path / "back", "--features")
    assert code == 0, err
    back = FeatureStore(tmp_path / "back/kaldi_features/set")
    for id in "ab":
        np.testing.assert_array_equal(matrices[f"s-{id}"], store[id].numpy())
        np.testing.assert_array_equal(back[f"s-{id}"].numpy(), store[id].numpy())
    code, _, err = kaldi(*export, tmp_path)
    assert code == 1
    assert f"error: {tmp_path}: no feature store" in err


def test_two_sets_with_one_name(kaldi, tmp_path):
    for part in ("a", "b"):
        data_dir(tmp_path / part / "train")
    code, _, err = kaldi("import", tmp_path / "a/train", tmp_path / "b/train", "--out", tmp_path / "out")
    assert code == 1
    assert err == f"error: two sets are called 'train': write NAME={tmp_path}/b/train\n"
