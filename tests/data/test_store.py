from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import fbank
from asr.audio.read import read_audio
from asr.data import extract
from asr.data.manifest import Utterance
from asr.data.store import FeatureStore
from asr.errors import DataError, RecipeError

CONFIG = FeaturesConfig(bins=20)


def utterance(path: Path, seconds: float, id: str | None = None, **fields) -> Utterance:
    return Utterance(id or path.stem, path, seconds, "s", "hello", **fields)


@pytest.fixture
def five(tmp_path) -> list[Utterance]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(5):
        path = tmp_path / f"u{i}.wav"
        soundfile.write(path, rng.normal(0, 0.1, 8000 + 1600 * i), 16000)
        made.append(utterance(path, 0.5 + 0.1 * i))
    return made


def test_holds_what_fbank_gives_without_copies_or_warnings(tmp_path, five):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = FeatureStore.build(tmp_path / "f", five, CONFIG)
    for u in five:
        expected = fbank(read_audio(u.audio).samples, CONFIG)
        assert torch.equal(store[u.id], expected)
        assert store.frames(u.id) == len(expected)
    assert len(store) == 5
    assert "u0" in store
    assert store["u3"].untyped_storage().data_ptr() == store["u0"].untyped_storage().data_ptr()
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again["u4"], store["u4"])
    with pytest.raises(DataError, match="no features for utterance 'x'"):
        store["x"]


def test_file_is_in_manifest_order_and_a_stray_write_stays_in_memory(tmp_path, five):
    store = FeatureStore.build(tmp_path / "f", five[::-1], CONFIG)
    (file,) = store.folder.glob("*.f32")
    data = np.fromfile(file, "<f4").reshape(-1, 20)
    assert np.array_equal(data, torch.cat([store[u.id] for u in five[::-1]]).numpy())
    store["u0"].zero_()
    assert np.array_equal(np.fromfile(file, "<f4").reshape(-1, 20), data)


def test_segments_and_channels(tmp_path):
    stereo = np.random.default_rng(0).normal(0, 0.1, (16000, 2))
    path = tmp_path / "x.wav"
    soundfile.write(path, stereo, 16000)
    parts = [
        utterance(path, 0.5, "left", start=0.25, extra={"channel": 0}),
        utterance(path, 0.5, "both", start=0.25),
        utterance(path, 0.5, "wrong", start=0.25, extra={"channel": "A"}),
        utterance(path, 0.5, "late", start=0.75),
    ]
    store = FeatureStore.build(tmp_path / "f", parts, CONFIG)
    assert torch.equal(store["left"], fbank(read_audio(path, channel=0, start=0.25, duration=0.5).samples, CONFIG))
    assert torch.equal(store["both"], fbank(read_audio(path, start=0.25, duration=0.5).samples, CONFIG))
    assert "channel" in store.failed["wrong"]
    assert "ends at 1.250 s" in store.failed["late"]


def test_A5_D1_bad_files_are_left_out_with_their_reasons(tmp_path, five, caplog):
    whole = five[0].audio.read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) * 4 // 10])
    (tmp_path / "tiny.wav").write_bytes(whole[:6])
    soundfile.write(tmp_path / "short.wav", np.zeros(399), 16000)
    bad = [utterance(tmp_path / f"{name}.wav", 0.5) for name in ("cut", "tiny", "missing")]
    bad.append(utterance(tmp_path / "short.wav", 399 / 16000))
    store = FeatureStore.build(tmp_path / "f", [*bad, *five], CONFIG)
    assert len(store) == 5
    assert list(store.failed) == ["cut", "tiny", "missing", "short"]
    assert "promises 8000 samples, the file holds" in store.failed["cut"]
    assert "399 samples" in store.failed["short"]
    for id, reason in store.failed.items():
        assert f"{id}.wav" in reason
        assert f"utterance {id} left out" in caplog.text
    with pytest.raises(DataError, match=r"no features for utterance 'cut': .*truncated"):
        store["cut"]
    with pytest.raises(DataError, match="none of 4 utterances gave features; the first, 'cut'"):
        FeatureStore.build(tmp_path / "f", bad, CONFIG)
    assert len(list((tmp_path / "f").iterdir())) == 1  # nothing half-written is left


def test_reused_only_when_nothing_changed(tmp_path, five, capsys):
    folder = tmp_path / "f"
    first = FeatureStore.build(folder, five, CONFIG)
    assert "5 of 5 utterances" in capsys.readouterr().err
    same = FeatureStore.build(folder, five, CONFIG.model_copy(update={"cmvn": "global", "dither": 1.0}))
    assert same.folder == first.folder
    assert capsys.readouterr().err == ""
    others = [
        FeatureStore.build(folder, five[:4], CONFIG),
        FeatureStore.build(folder, five, FeaturesConfig(bins=24)),
        FeatureStore.build(folder, five, CONFIG.model_copy(update={"dither": 1.0}), dither=True),
    ]
    os.utime(five[0].audio, ns=(1, 1))
    others.append(FeatureStore.build(folder, five, CONFIG))
    assert len({store.folder for store in [first, *others]}) == 5
    assert not torch.equal(others[2]["u1"], first["u1"])
    assert torch.equal(others[3]["u1"], first["u1"])


def test_failures_for_want_of_av_are_tried_again(tmp_path, five):
    five.append(utterance(tmp_path / "missing.wav", 1.0))
    store = FeatureStore.build(tmp_path / "f", five, CONFIG)
    (file,) = store.folder.glob("*.json")
    index = json.loads(file.read_text())
    index["av"] = False
    index["failed"] = {"missing": "this format needs the package `av`"}
    file.write_text(json.dumps(index))
    assert "No such file" in FeatureStore.build(tmp_path / "f", five, CONFIG).failed["missing"]


def test_wrong_input_is_refused(tmp_path, five):
    with pytest.raises(DataError, match="ids repeat"):
        FeatureStore.build(tmp_path / "f", [*five, five[0]], CONFIG)
    with pytest.raises(DataError, match="no utterances"):
        FeatureStore.build(tmp_path / "f", [], CONFIG)
    with pytest.raises(RecipeError, match="bins"):
        FeatureStore.build(tmp_path / "f", five, FeaturesConfig(sample_rate=8000, bins=120))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot store features"):
        FeatureStore.build(tmp_path / "file", five, CONFIG)


def test_processes_give_the_same_file_and_report_like_one(tmp_path, five, monkeypatch, caplog):
    soundfile.write(tmp_path / "slow.wav", np.random.default_rng(1).normal(0, 0.1, 8000), 8000)
    five.insert(2, utterance(tmp_path / "slow.wav", 1.0))
    five.append(utterance(tmp_path / "missing.wav", 1.0))
    alone = FeatureStore.build(tmp_path / "one", five, CONFIG, workers=1)
    monkeypatch.setattr(extract, "SERIAL_SECONDS", 0)
    monkeypatch.setattr(extract, "CHUNK", 2)
    caplog.clear()
    store = FeatureStore.build(tmp_path / "two", five, CONFIG, workers=2)
    assert store.failed == alone.failed
    for one, two in zip(sorted(alone.folder.glob("*")), sorted(store.folder.glob("*")), strict=True):
        assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())
    assert "8000 Hz upsampled to the model's 16000 Hz" in caplog.text
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="forks, to be quick")
def test_file_that_kills_its_process_is_left_out(tmp_path, five, monkeypatch):
    read = extract.read_audio

    def crash(path, **options):
        if "u3" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(path, **options)

    alone = FeatureStore.build(tmp_path / "one", five[:3], CONFIG, workers=1)
    for name, value in {"START": "fork", "SERIAL_SECONDS": 0, "CHUNK": 3, "read_audio": crash}.items():
        monkeypatch.setattr(extract, name, value)
    store = FeatureStore.build(tmp_path / "two", five, CONFIG, workers=2)
    assert list(store.failed) == ["u3"]
    assert "u3.wav: the process that read it died" in store.failed["u3"]
    assert torch.equal(store["u2"], alone["u2"])
    assert not multiprocessing.active_children()
    monkeypatch.setattr(extract, "MAX_DEATHS", 1)
    with pytest.raises(DataError, match=r"keep dying .* data\.workers=1"):
        FeatureStore.build(tmp_path / "three", five, CONFIG, workers=2)
    assert not [path for path in (tmp_path / "three").rglob("*") if path.is_file()]


SCRIPT = """
import sys
from pathlib import Path
from asr.audio.config import FeaturesConfig
from asr.data import extract
from asr.data.manifest import Utterance
from asr.data.store import FeatureStore

if __name__ == "__main__":
    extract.CHUNK = 1
    path, folder = sys.argv[1:]  # 2000 * 30 s: too much to be done in this process
    many = [Utterance(f"u{i}", Path(path), 30.0, "s", "") for i in range(2000)]
    FeatureStore.build(folder, many, FeaturesConfig(), workers=2)
"""


def living(group: int) -> list[str]:
    """Processes of a group that are not zombies: /proc/PID/stat is `pid (name) state parent group ...`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            found.append((path.parent / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left-over processes in /proc")
def test_ctrl_c_leaves_no_process_and_no_half_written_store(tmp_path):
    soundfile.write(tmp_path / "long.wav", np.random.default_rng(0).normal(0, 0.1, 480000), 16000)
    script, folder = tmp_path / "build.py", tmp_path / "f"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "long.wav", folder], stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.time() + 60
    while not any(path.stat().st_size for path in folder.glob("*/.*.f32.*.tmp")):
        assert process.poll() is None
        assert time.time() < deadline, "no features within a minute"
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert not [path for path in folder.rglob("*") if path.suffix in (".tmp", ".lock")]
    deadline = time.time() + 10  # multiprocessing's own resource tracker ends a moment later
    while living(process.pid):
        assert time.time() < deadline, f"still there: {living(process.pid)}"
        time.sleep(0.05)


def test_speed_on_real_speech_is_far_above_real_time(tmp_path, corpus):
    files = sorted(corpus("an4").glob("audio/**/*.flac"))[:40]
    spoken = [utterance(path, soundfile.info(path).duration) for path in files]
    began = time.process_time()
    FeatureStore.build(tmp_path / "f", spoken, FeaturesConfig(), workers=1)
    assert sum(u.duration for u in spoken) / (time.process_time() - began) > 50
