"""`asr log`: the epochs of one training."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from asr.cli.main import app
from asr.train.lock import FolderLock

START = {
    "event": "start", "name": "lsh", "parameters": 3125, "utterances": 1, "processes": 2, "device": "cpu", "threads": 1,
    "versions": {"torch": "2.10"}, "resumed": True,
}  # fmt: skip


def epoch(number, **more):
    seconds = {"forward": 6.0, "backward": 3.0, "validation": 1.0, "checkpoints": 0.0, "total": 10.0}
    return {
        "event": "epoch", "epoch": number, "loss": 1.5, "lr": 1e-4, "grad_norm": 0.5, "train_seconds": 9.0,
        "best": False, "seconds": seconds, "frames_per_second": 12345.6, "peak_memory_mb": 700.0, "skipped_steps": 0,
        **more,
    }  # fmt: skip


def validated(per, best):
    return {
        "dev_loss": 2.0,
        "dev_per": per,
        "dev_sdi": [1, 2, 3],
        "blank_share": 0.5,
        "length_ratio": 0.9,
        "best": best,
    }


def log(*arguments):
    return CliRunner().invoke(app, ["log", *map(str, arguments)])


def write(folder, *events):
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_epochs_and_where_the_time_went(tmp_path):
    nan = validated(float("nan"), best=False)
    write(tmp_path, START, epoch(1, **validated(50.0, best=True)), epoch(2), epoch(3, **nan))
    lock = FolderLock(tmp_path)
    result = log(tmp_path)
    lock.release()
    assert result.exit_code == 0, result.output
    head, *_, foot = result.stdout.splitlines()
    assert head == "lsh: 3,125 parameters, 1 utterance; 2 processes on cpu, 1 thread, torch 2.10; resumed"
    assert foot == ("running after 3 epochs, best dev PER 50.00 %; 30 s: forward 60%, backward 30%, validation 10%")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert rows[0] == [
        "1", "1.500", "2.000", "50.00 *", "1/2/3", "50", "0.90", "1.0e-04", "0.50", "9.0", "1.0", "12,346", "700",
    ]  # fmt: skip
    assert rows[1][:7] == ["2", "1.500", "", "", "", "", ""]
    assert rows[2][3] == "NaN"
    last = log(tmp_path, "--last", 1)
    assert [line.split("│")[1].strip() for line in last.stdout.splitlines() if "│" in line] == ["3"]
    assert "stopped after 3 epochs" in last.stdout


def test_nothing_yet_and_nothing_at_all(tmp_path):
    write(tmp_path)
    assert "not begun" in log(tmp_path).stdout
    result = log(tmp_path / "elsewhere")
    assert result.exit_code == 2
    assert "no log.jsonl here" in result.stderr
