"""Every run is written down, whatever becomes of it; a ledger or a meter that fails costs no training."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import pytest
import torch

from asr.errors import AsrError
from asr.files import append_line
from asr.train import energy, loop
from asr.train.ledger import ledger_path
from asr.train.loop import Interrupted
from asr.train.machine import code_version


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def raising(error):
    def step(*_):
        raise error

    return step


def test_a_run_begins_starts_and_ends_and_so_does_its_continuation(toy, tmp_path):
    recipe = toy.recipe(tmp_path / "exp", "training.epochs=2")
    loop.train(recipe)
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=3"), resume=True)
    first, again = lines(tmp_path / "ledger.jsonl")[:3], lines(tmp_path / "ledger.jsonl")[3:]
    assert [one["event"] for one in (*first, *again)] == ["begin", "start", "end"] * 2
    assert len({one["run"] for one in first}) == len({one["run"] for one in again}) == 1
    assert first[0]["run"] != again[0]["run"]
    begin, start, end = first
    assert (begin["name"], begin["exp"], begin["seed"]) == ("toy", str(tmp_path / "exp"), 3)
    assert begin["versions"]["torch"] == metadata.version("torch")
    assert all(begin[key] for key in ("host", "system", "cpu", "command", "pid"))
    assert (start["device"], start["threads"], start["processes"], start["planned_epochs"]) == ("cpu", 1, 1, 2)
    assert (start["parameters"], start["resumed_from"]) == (3125, None)
    log = [event for event in lines(tmp_path / "exp" / "log.jsonl") if event["event"] == "epoch"]
    best = min(log[:2], key=lambda event: event["dev_per"])
    assert (end["reason"], end["error"], end["epochs"]) == ("finished", None, 2)
    assert (end["best_epoch"], end["best_per"]) == (best["epoch"], best["dev_per"])
    assert end["wall_seconds"] > end["train_seconds"] == log[1]["elapsed"]
    assert end["peak_memory_mb"] >= max(event["peak_memory_mb"] for event in log[:2])
    assert again[1]["resumed_from"] == {"epoch": 2, "step": 0}
    assert again[2]["epochs"] == 3
    assert begin["recipe_hash"] == again[0]["recipe_hash"], "how long a training goes on is not what it is"


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (Interrupted("stopped in epoch 1"), "interrupted", None),
        (KeyboardInterrupt(), "interrupted", None),
        (AsrError("u7 is bad\nvery bad"), "error", "u7 is bad\nvery bad"),
        (ZeroDivisionError("x"), "error", "ZeroDivisionError('x')"),
    ],
)
def test_how_it_ended(toy, tmp_path, monkeypatch, error, reason, text):
    monkeypatch.setattr(loop, "_step", raising(error))
    with pytest.raises(type(error)):
        loop.train(toy.recipe(tmp_path / "exp", f"training.ledger={tmp_path}/all/runs.jsonl"))
    end = lines(tmp_path / "all" / "runs.jsonl")[-1]
    assert (end["event"], end["reason"], end["error"], end["epochs"]) == ("end", reason, text, 0)
    assert end["best_per"] is None


def test_bad_data_is_a_run_and_a_folder_in_use_is_none(toy, tmp_path):
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=1"))
    with pytest.raises(AsrError, match="holds a training already"):
        loop.train(toy.recipe(tmp_path / "exp"))
    with pytest.raises(AsrError, match="no trainable utterance"):
        loop.train(toy.recipe(tmp_path / "other", "training.batch_frames=1"))
    events = [(one["event"], one.get("reason")) for one in lines(tmp_path / "ledger.jsonl")]
    assert events == [("begin", None), ("start", None), ("end", "finished"), ("begin", None), ("end", "error")]


def test_a_ledger_that_cannot_be_written_is_one_warning(toy, tmp_path, caplog):
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=1", f"training.ledger={tmp_path}"))
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{tmp_path}: the run is not written down there (Is a directory)"]


def test_a_command_line_that_is_no_utf8_stops_no_training(toy, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("sys.argv", ["asr", "train", "\udcff"])
    loop.train(toy.recipe(tmp_path / "exp", "training.epochs=1"))
    assert "the run is not written down there" in caplog.text


def test_key_then_environment_then_beside(toy, tmp_path, monkeypatch):
    recipe = toy.recipe(tmp_path / "exp")
    monkeypatch.delenv("ASR_LEDGER", raising=False)
    assert ledger_path(recipe) == tmp_path / "ledger.jsonl"
    monkeypatch.setenv("ASR_LEDGER", str(tmp_path / "elsewhere"))
    assert ledger_path(recipe) == tmp_path / "elsewhere"
    assert ledger_path(toy.recipe(tmp_path, f"training.ledger={tmp_path}/mine")) == tmp_path / "mine"
    monkeypatch.setenv("ASR_LEDGER", "")
    assert ledger_path(recipe) is None


def test_lines_of_many_stay_whole_and_a_cut_one_spoils_no_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"run": "cut off')
    texts = [json.dumps({"writer": writer, "text": "x" * 5000}) for writer in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: append_line(path, text), texts))
    cut, *whole = path.read_text().splitlines()
    assert cut == '{"run": "cut off'
    assert sorted(whole) == sorted(texts)


def test_rapl_counters_are_followed_over_their_wrap(tmp_path, monkeypatch):
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "max_energy_range_uj").write_text("1000000000\n")
    counter = zone / "energy_uj"
    counter.write_text("999000000\n")
    (tmp_path / "intel-rapl:1").mkdir()  # nobody may read it
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    meter = energy.EnergyMeter(torch.device("cpu"))
    counter.write_text("3000000\n")
    assert meter._packages[0].joules() == pytest.approx(4)
    counter.write_text("5000000\n")
    assert meter.stop() == {"rapl": pytest.approx(6)}


def test_energy_of_the_gpus_of_this_machine(monkeypatch, tmp_path):
    """Two processes here: GPUs 0 and 1, asked for by their UUID. NVML counts millijoules."""
    count = {"GPU-a": 1000, "GPU-b": 5000}
    fake = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: count[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: types.SimpleNamespace(uuid="ab"[i]))
    meter = energy.EnergyMeter(torch.device("cuda", 0))
    count |= {"GPU-a": 4000, "GPU-b": 9500}
    assert meter.stop() == {"nvml": 7.5}
    monkeypatch.delitem(count, "GPU-b")  # an error of the driver's own kind
    assert energy.EnergyMeter(torch.device("cuda", 0)).stop() is None
    assert energy.EnergyMeter(torch.device("cpu")).stop() is None


def test_the_code_is_a_commit_only_in_a_checkout_of_its_own(tmp_path):
    def git(*arguments):
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", "-C", tmp_path, *author, *arguments], check=True, capture_output=True, text=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "a")
    head = git("rev-parse", "HEAD").stdout.strip()
    assert code_version(tmp_path) == {"commit": head, "dirty": False}
    (tmp_path / "a.py").write_text("2")
    assert code_version(tmp_path) == {"commit": head, "dirty": True}
    (tmp_path / "site-packages").mkdir()
    assert code_version(tmp_path / "site-packages") is None
