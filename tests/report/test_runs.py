"""`asr runs`: what the ledger's lines say when they are put together."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from asr.cli.main import app
from asr.train.lock import FolderLock


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """One finished run, one killed and begun anew in the same folder, and the lock of that folder."""
    monkeypatch.delenv("ASR_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp" / "lsh").mkdir(parents=True)
    begin = {"event": "begin", "host": "node3", "gpus": [], "code": {"commit": "0123456789", "dirty": True}}
    start = {"event": "start", "device": "cpu", "threads": 2, "processes": 1, "parameters": 3125, "planned_epochs": 9}
    end = {"event": "end", "wall_seconds": 7200, "epochs": 9, "best_epoch": 8, "best_per": 12.345}
    runs = [
        {**begin, "run": "a", "time": 1.0, "name": "linear", "exp": f"{tmp_path}/exp/linear"},
        {**start, "run": "a", "time": 2.0, "resumed_from": {"epoch": 3, "step": 1}},
        {**begin, "run": "b", "time": 3.0, "name": "lsh", "exp": f"{tmp_path}/exp/lsh"},
        {**begin, "run": "c", "time": 4.0, "name": "lsh", "exp": f"{tmp_path}/exp/lsh"},
        {**end, "run": "a", "time": 9.0, "reason": "error", "error": "GPU lost", "energy_joules": {"nvml": 7.2e5}},
        {**start, "run": "c", "time": 9.5, "resumed_from": None},
    ]
    path = tmp_path / "exp" / "ledger.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in runs) + '{"run": "d", "ev')
    epoch = {"event": "epoch", "epoch": 1, "dev_per": 50.0}
    (tmp_path / "exp" / "lsh" / "log.jsonl").write_text(json.dumps(epoch) + "\n")
    return path


def runs(*arguments):
    return CliRunner().invoke(app, ["runs", *map(str, arguments)])


def of(result):
    assert result.exit_code == 0, result.output
    return {one["run"]: one for one in map(json.loads, result.stdout.splitlines())}


def test_states_of_runs_that_have_no_end(ledger, tmp_path):
    """The lock tells a run from a killed one; what it reached stands in its log."""
    FolderLock(tmp_path / "exp" / "lsh").release()
    assert {run: one["state"] for run, one in of(runs("--json")).items()} == {
        "a": "error",
        "b": "killed",
        "c": "killed",
    }
    lock = FolderLock(tmp_path / "exp" / "lsh")
    found = of(runs(tmp_path, "--json"))
    lock.release()
    assert (found["b"]["state"], found["c"]["state"]) == ("killed", "running")
    assert (found["c"]["epochs"], found["c"]["best_per"], found["c"]["ended"]) == (1, 50.0, None)
    (tmp_path / "exp" / "lsh" / ".lock").unlink()
    assert of(runs("--json"))["c"]["state"] == "no end", "nobody can tell, as on another machine's disk"


def test_a_damaged_log_hides_no_other_run_and_nan_is_no_best(ledger, tmp_path):
    log = tmp_path / "exp" / "lsh" / "log.jsonl"
    epochs = [{"event": "epoch", "epoch": i, "dev_per": per} for i, per in enumerate((float("nan"), 40.0, 45.0), 1)]
    log.write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    assert [of(runs("--json"))["c"][key] for key in ("best_epoch", "best_per")] == [2, 40.0]
    log.write_text("nonsense\n" + log.read_text())
    result = runs("--json")
    assert set(of(result)) == {"a", "b", "c"}
    assert str(log) in result.stderr


def test_the_table_and_what_is_left_out(ledger):
    result = runs()
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert [row[1] for row in rows] == ["linear", "lsh", "lsh"], "newest last"
    assert rows[0][2:] == [
        "exp/linear", "error (resumed in epoch 4)", "9/9", "12.35 (8)", "2 h 00 min", "720.0 nvml", "3,125",
        "cpu, 2 threads", "node3", "01234567+",
    ]  # fmt: skip
    assert rows[2][4:6] == ["1/9", "50.00 (1)"]
    assert ": GPU lost" in result.stdout
    assert result.stderr.strip() == "exp/ledger.jsonl: left out, cut off by a kill or damaged: line 7"


def test_filters_and_places(ledger, tmp_path):
    assert list(of(runs("--json", "name=ls*"))) == ["b", "c"]
    assert list(of(runs("--json", "name=ls*", "--last", "1"))) == ["c"]
    assert list(of(runs("--json", ledger, "host=node3", "state=error"))) == ["a"]
    assert list(of(runs("--json", tmp_path / "exp" / "lsh"))) == ["a", "b", "c"], "an experiment folder"
    result = runs("nmae=x")
    assert result.exit_code == 2
    assert "nmae=x: is no KEY=PATTERN of a run; keys are began, best_epoch" in result.stderr
    (tmp_path / "empty").mkdir()
    result = runs(tmp_path / "empty")
    assert result.exit_code == 2
    assert "no ledger.jsonl here or in the folders below" in result.stderr


def test_the_environment_names_the_ledger(ledger, tmp_path, monkeypatch):
    ledger.rename(tmp_path / "all.jsonl")
    monkeypatch.setenv("ASR_LEDGER", str(tmp_path / "all.jsonl"))
    assert list(of(runs("--json"))) == ["a", "b", "c"]
