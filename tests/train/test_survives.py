"""What a crash, a damaged file, a full disk or a second training may not do to an experiment folder."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from asr.errors import AsrError, DataError
from asr.report.experiments import resolve
from asr.report.log import read_log
from asr.train import loop
from asr.train.checkpoint import load_checkpoint, save_checkpoint
from asr.train.lock import FolderLock
from asr.train.run import Run
from asr.train.same import compare_trainings

EVERY_STEP = ("training.save_minutes=1e-9", "training.batch_frames=300")


class Killed(BaseException):
    """In place of a SIGKILL: nothing below the loop may catch it."""


def die(monkeypatch, name, when, owner=loop):
    """`owner.name` raises Killed at its `when`-th call, before it does anything."""
    real, calls = getattr(owner, name), []

    def dies(*arguments, **more):
        calls.append(1)
        if len(calls) == when:
            raise Killed
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, dies)
    return lambda: monkeypatch.setattr(owner, name, real)


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """An unbroken training, with no checkpoint within an epoch."""
    exp = tmp_path_factory.mktemp("whole")
    loop.train(toy.recipe(exp, "training.batch_frames=300", "training.save_minutes=null"))
    return exp


@pytest.fixture
def killed(toy, tmp_path, monkeypatch):
    """A training killed in its second epoch, saved after every step."""
    revive = die(monkeypatch, "_step", 10)
    with pytest.raises(Killed):
        loop.train(toy.recipe(tmp_path, *EVERY_STEP))
    revive()
    counters = [load_checkpoint(tmp_path / f"{n}.pt")["training"]["counters"] for n in ("previous", "last")]
    assert [(c["epoch"], c["group"]) for c in counters] == [(1, 2), (1, 3)]
    return tmp_path


def epochs(exp):
    return [e["epoch"] for e in map(json.loads, (exp / "log.jsonl").read_text().splitlines()) if e["event"] == "epoch"]


def test_a_kill_costs_what_was_done_since_the_latest_checkpoint(toy, killed, whole, monkeypatch):
    made = []
    step = loop._step
    monkeypatch.setattr(loop, "_step", lambda group, state: (made.append(1), step(group, state)))
    loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    assert len(made) == 6 * 3 - 9
    assert compare_trainings(whole, killed)[1] == []
    assert epochs(killed) == [1, 2, 3]


def test_checkpoints_within_an_epoch_are_timed_and_are_no_training(toy, killed):
    loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    last = read_log(killed).epochs[-1]
    assert last["seconds"]["checkpoints"] > 0
    parts = [last["seconds"][k] for k in ("data", "forward", "backward", "optimiser")]
    assert last["train_seconds"] == pytest.approx(sum(parts), abs=1e-3)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "missing"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(toy, killed, whole, caplog, damage):
    last = killed / "last.pt"
    good = last.read_bytes()
    middle = len(good) // 2
    bad = {"cut": good[:middle], "bit": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], "empty": b""}
    if damage == "missing":  # killed between the two renames of a save
        last.unlink()
    else:
        last.write_bytes(bad[damage])
    loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    said = [r.getMessage() for r in caplog.records if "going on from the one before it" in r.getMessage()]
    assert len(said) == (damage != "missing")
    assert all(f"{last}: not a readable checkpoint" in s and s.endswith("previous.pt") for s in said)
    assert "resumed at epoch 2, step 2" in caplog.text
    assert compare_trainings(whole, killed)[1] == []
    assert epochs(killed) == [1, 2, 3]


def test_the_damaged_one_never_takes_the_place_of_the_whole_one(toy, killed, monkeypatch):
    (killed / "last.pt").write_bytes(b"rubbish")
    die(monkeypatch, "_step", 2)
    with pytest.raises(Killed):
        loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    assert (killed / "last.damaged").read_bytes() == b"rubbish"
    groups = [load_checkpoint(killed / f"{n}.pt")["training"]["counters"]["group"] for n in ("previous", "last")]
    assert groups == [2, 3]


def test_where_none_is_whole_each_is_named(toy, killed):
    for name in ("last.pt", "previous.pt"):
        (killed / name).write_bytes(b"rubbish")
    with pytest.raises(DataError) as error:
        loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    assert [line.split(": ")[0] for line in str(error.value).split("\n")] == [
        str(killed / name) for name in ("last.pt", "previous.pt")
    ]


def test_killed_between_the_log_and_the_checkpoint_no_line_is_double(toy, tmp_path, whole, monkeypatch):
    recipe = toy.recipe(tmp_path, "training.batch_frames=300", "training.save_minutes=null")
    revive = die(monkeypatch, "_save", 2)
    with pytest.raises(Killed):
        loop.train(recipe)
    revive()
    assert epochs(tmp_path) == [1, 2]
    assert load_checkpoint(tmp_path / "last.pt")["training"]["counters"]["epoch"] == 1
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"event": "epo')
    assert [e["epoch"] for e in read_log(tmp_path).epochs] == [1, 2], "a reader meanwhile"
    revive = die(monkeypatch, "_step", 1)
    with pytest.raises(Killed):
        loop.train(recipe, resume=True)
    revive()
    assert epochs(tmp_path) == [1]
    loop.train(recipe, resume=True)
    assert epochs(tmp_path) == [1, 2, 3]
    assert [e["event"] for e in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())].count("start") == 3
    assert compare_trainings(whole, tmp_path)[1] == []


def test_killed_while_the_best_is_written(toy, tmp_path, whole, monkeypatch):
    recipe = toy.recipe(tmp_path, "training.batch_frames=300")
    revive = die(monkeypatch, "save", 3, Run)  # best and last of epoch 1, then the best of a later one
    with pytest.raises(Killed):
        loop.train(recipe)
    revive()
    loop.train(recipe, resume=True)
    assert compare_trainings(whole, tmp_path)[1] == []


def test_leftovers_of_a_kill_are_cleared_away(toy, killed):
    (killed / ".last.pt.123.tmp").write_bytes(b"half")
    loop.train(toy.recipe(killed, *EVERY_STEP), resume=True)
    assert not list(killed.glob("*.tmp")) + list(killed.glob(".*.tmp"))


@contextlib.contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("size", "named"), [(20000, r"last\.pt: cannot be written"), (3000, "cannot be written")])
def test_a_full_disk_is_one_line_and_after_room_is_made_it_goes_on(toy, killed, whole, size, named, caplog):
    """The file size is limited in place of the disk's: first only a checkpoint is too large, then the log too."""
    before = (killed / "last.pt").read_bytes()
    assert len(before) > 20000
    recipe = toy.recipe(killed, *EVERY_STEP)
    with files_of_at_most(size), pytest.raises(AsrError, match=named) as error:
        loop.train(recipe, resume=True)
    assert "go on with --resume" in str(error.value)
    assert "\n" not in str(error.value)
    assert (killed / "last.pt").read_bytes() == before
    loop.train(recipe, resume=True)
    assert compare_trainings(whole, killed)[1] == []
    assert epochs(killed) == [1, 2, 3]


def test_two_trainings_in_one_folder_are_refused_and_the_first_is_named(toy, tmp_path):
    holder = (
        "import pathlib, sys, time; from asr.train.lock import FolderLock\n"
        "lock = FolderLock(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(AsrError, match=rf"another training is running in this folder: process {process.pid} "):
                loop.train(toy.recipe(tmp_path), **how)
        assert os.listdir(tmp_path) == [".lock"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        loop.train(toy.recipe(tmp_path, "training.epochs=1"))  # the lock of the dead is not in the way
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_lock_is_given_back_after_success_and_failure(toy, tmp_path):
    for override in ("training.epochs=1", "training.device=abacus"):
        with contextlib.suppress(AsrError):
            loop.train(toy.recipe(tmp_path, override), overwrite=True)
        FolderLock(tmp_path).release()


def test_a_training_that_only_previous_is_left_of_can_be_resumed_by_compare(toy, killed):
    (killed / "last.pt").unlink()
    (killed / "best.pt").unlink()
    (one,) = resolve([killed])
    assert one.resumable
    with pytest.raises(AsrError, match="holds a training already"):
        loop.train(toy.recipe(killed, *EVERY_STEP))


def test_the_clock_decides_when_to_save(toy, tmp_path, monkeypatch):
    saves, now = [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    save, step = loop._save, loop._step
    monkeypatch.setattr(loop, "_save", lambda run, state: (saves.append(now[0]), save(run, state)))
    monkeypatch.setattr(loop, "_step", lambda group, state: (now.__setitem__(0, now[0] + 25), step(group, state)))
    loop.train(toy.recipe(tmp_path, "training.epochs=2", "training.batch_frames=300", "training.save_minutes=1"))
    assert saves == [75, 150, 150, 225, 300, 300]  # six steps an epoch; at its end in any case


def test_curves_of_steps_made_again_are_not_drawn_twice(toy, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = toy.recipe(tmp_path, "training.tensorboard=true")
    revive = die(monkeypatch, "_save", 2)
    with pytest.raises(Killed):
        loop.train(recipe)
    revive()
    loop.train(recipe, resume=True)
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [s.step for s in curves.Scalars("loss")] == [1, 2, 3]


def test_what_differs_is_named_with_how_much(tmp_path):
    for name, weight, per in (("a", [1.0, 2.0, float("nan")], 5.0), ("b", [1.0, 2.5, float("nan")], float("nan"))):
        (tmp_path / name).mkdir()
        content = {"model": {"w": torch.tensor(weight)}, "dev_per": per, "recipe": {"exp": name, "seed": 1}}
        save_checkpoint(tmp_path / name / "last.pt", content)
    count, lines = compare_trainings(tmp_path / "a", tmp_path / "b", ("last.pt",))
    assert count == 4  # format, w, dev_per, seed; the folder is left aside
    assert lines == ["last.pt: model.w: 1 of 3 numbers, by 0.5 at most", "last.pt: dev_per: 5.0 and nan"]
    assert compare_trainings(tmp_path / "b", tmp_path / "b", ("last.pt",))[1] == []
