"""A store in parts: computed by any number of processes, whole again after any kill, and open a few at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch

from asr.audio.config import FeaturesConfig
from asr.data import store as module
from asr.data import store_parts, store_plan
from asr.data.manifest import Utterance
from asr.data.store import FeatureStore
from asr.data.store_parts import split
from asr.data.store_plan import plan_store
from asr.errors import DataError
from asr.files import locked

CONFIG = FeaturesConfig(bins=20)


@pytest.fixture
def nine(tmp_path, monkeypatch):
    """Nine utterances of half a second and more, the sixth of them missing; parts of at least a second: five."""
    monkeypatch.setattr(store_parts, "PART_SECONDS", 1.0)
    rng, made = np.random.default_rng(0), []
    for i in range(9):
        path = tmp_path / f"u{i}.wav"
        soundfile.write(path, rng.normal(0, 0.1, 8000 + 160 * i), 16000)
        made.append(Utterance(f"u{i}", path, 0.5 + 0.01 * i, "s", ""))
    made[5].audio.unlink()
    return made


@pytest.fixture
def whole(tmp_path, nine, monkeypatch):
    """The features of all, from a store of one part."""
    monkeypatch.setattr(store_parts, "PART_SECONDS", 1000.0)
    store = FeatureStore.build(tmp_path / "whole", nine, CONFIG)
    monkeypatch.setattr(store_parts, "PART_SECONDS", 1.0)
    return {u.id: store[u.id] for u in nine if u.id in store}


def same(store, whole):
    assert list(store.ids) == [f"u{i}" for i in range(9)]
    assert list(store.failed) == ["u5"]
    assert len(store) == len(whole) == 8
    for id, features in whole.items():
        assert torch.equal(store[id], features)
        assert store.frames(id) == len(features)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("lengths", [[0.5], [2.0, 0.1, 0.1], [0.4] * 10, [0.5, 0.5], [0.5, 0.6, 0.1]])
def test_parts_are_consecutive_and_whole(lengths, monkeypatch):
    monkeypatch.setattr(store_parts, "PART_SECONDS", 1.0)
    bounds = split(lengths)
    assert bounds == sorted(set(bounds)), "none is empty"
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    sums = [sum(lengths[a:b]) for a, b in pairwise(bounds)]
    assert all(total >= 1.0 for total in sums[:-1])


def test_shards_in_any_order_are_the_store(tmp_path, nine, whole, capsys):
    plan = plan_store(tmp_path / "f", nine, CONFIG)
    assert plan.count == 5
    plan.compute(range(1, 5, 2))
    assert plan.missing() == [0, 2, 4]
    with pytest.raises(DataError, match="of its 5 parts there is no 0, 2, 4"):
        FeatureStore(plan.folder)
    assert "4 of 4 utterances" in capsys.readouterr().err
    plan.compute(range(0, 5, 2))
    assert plan.missing() == []
    assert "4 of 5 utterances" in capsys.readouterr().err
    same(FeatureStore.build(tmp_path / "f", nine, CONFIG), whole)
    assert capsys.readouterr().err == "", "nothing is computed again"
    assert len(files(plan.folder)) == 10, "no lock, no temporary file"


@pytest.mark.parametrize("damage", ["cut", "gone", "index", "format"])
def test_a_damaged_part_is_named_and_computed_alone(tmp_path, nine, whole, damage, caplog, capsys):
    store = FeatureStore.build(tmp_path / "f", nine, CONFIG)
    before = {path: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    data, index = (store.folder / f"00003-of-00005{end}" for end in (".f32", ".json"))
    if damage == "cut":
        os.truncate(data, 100)
    elif damage == "gone":
        data.unlink()
        index.unlink()
    else:
        index.write_text("{" if damage == "index" else index.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(DataError, match="there is no 3" if damage == "gone" else "00003-of-00005.*damaged"):
        FeatureStore(store.folder)
    capsys.readouterr()
    same(FeatureStore.build(tmp_path / "f", nine, CONFIG), whole)
    assert "2 of 2 utterances" in capsys.readouterr().err
    assert ("00003-of-00005" in caplog.text and "damaged" in caplog.text) == (damage != "gone")
    unchanged = [path for path, time in before.items() if path.stat().st_mtime_ns == time]
    assert len(unchanged) == 8


def test_few_parts_are_open_at_a_time_and_those_read_before_stay_valid(tmp_path, nine, whole, monkeypatch):
    monkeypatch.setattr(module, "MOST_OPEN", 2)
    store = FeatureStore.build(tmp_path / "f", nine, CONFIG)
    read = {id: store[id] for _ in range(2) for id in whole}
    assert len(store._open) == 2
    for id, features in whole.items():
        assert torch.equal(read[id], features)


def test_ranks_that_share_the_work_compute_each_part_once(tmp_path, nine, whole, capsys):
    stores = {}

    def rank(number):
        stores[number] = FeatureStore.build(tmp_path / "f", nine, CONFIG, 1, share=(number, 3))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores.values():
        same(store, whole)
    said = [line.split()[1:4:2] for line in capsys.readouterr().err.splitlines()]
    assert sum(int(total) for _, total in said) == 9
    assert len(said) > 1, "and not one of them all"


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="no such locks")
def test_what_another_has_in_hand_is_waited_for_and_taken_over_if_it_dies(tmp_path, nine, whole, caplog):
    """A process has a part's lock, and is killed."""
    plan = plan_store(tmp_path / "f", nine, CONFIG)
    plan.folder.mkdir(parents=True)
    left = plan.folder / ".00002-of-00005.f32.99.tmp"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    at_work = plan.folder / ".00003-of-00005.f32.98.tmp"  # of a machine whose locks are not seen here
    at_work.write_bytes(b"half")
    lock = plan.folder / ".00002-of-00005.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, lock], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    caplog.set_level("INFO")
    build = threading.Thread(target=lambda: FeatureStore.build(tmp_path / "f", nine, CONFIG))
    build.start()
    while "waiting for 1 part that" not in caplog.text:
        time.sleep(0.01)
    assert plan.missing() == [2], "all others first"
    holder.kill()
    holder.wait()
    build.join()
    same(FeatureStore(plan.folder), whole)
    assert not left.exists()
    assert at_work.exists()


def test_what_is_no_store_or_two_is_refused(tmp_path, nine):
    with pytest.raises(DataError, match=r"no feature store \(there are no parts of one"):
        FeatureStore(tmp_path)
    store = FeatureStore.build(tmp_path / "f", nine, CONFIG)
    (store.folder / "00000-of-00002.json").write_text("{}")
    with pytest.raises(DataError, match="there are parts of 00002 and of 00005"):
        FeatureStore(store.folder)


@pytest.mark.skipif(os.name != "posix", reason="no such locks")
def test_a_lock_is_one_process_s_and_gone_afterwards(tmp_path):
    lock = tmp_path / "lock"
    with locked(lock) as first, locked(lock) as second:
        assert (first, second) == (True, False)
    assert not lock.exists()
    with locked(lock) as again:
        assert again


def test_stores_of_the_earlier_layout_are_named(tmp_path, nine, caplog):
    old = tmp_path / "f" / "0123456789abcdef"
    old.mkdir(parents=True)
    for name in ("index.json", "features.f32"):
        (old / name).write_text("{}")
    FeatureStore.build(tmp_path / "f", nine, CONFIG)
    assert f"{old}: features as an earlier version stored them, not used any more" in caplog.text


def test_a_full_disk_says_so_and_keeps_what_was_stored(tmp_path, nine, monkeypatch):
    plan = plan_store(tmp_path / "f", nine, CONFIG)
    real, calls = store_plan.write_part, []

    def full(folder, number, *rest):
        calls.append(number)
        if number == 2:
            raise OSError(28, "No space left on device")
        return real(folder, number, *rest)

    monkeypatch.setattr(store_plan, "write_part", full)
    with pytest.raises(DataError, match="cannot store features: No space left on device"):
        plan.compute(range(5))
    assert calls == [0, 1, 2]
    assert plan.missing() == [2, 3, 4]
