"""The kill test of tools/kill_test.py in small, and `asr train --check-resume`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from asr.cli.main import app
from asr.recipe_loader import load_recipe
from asr.train import check_resume as check
from asr.train.checkpoint import load_checkpoint, save_checkpoint
from asr.train.loop import train

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


class Clean:
    """`function(*arguments)` in a process forked from one that has done nothing but import it: a start in no time."""

    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    context.set_forkserver_preload(["asr.train.check_resume"])

    def __init__(self, function, *arguments):
        self.process = self.context.Process(target=function, args=arguments)
        self.process.start()
        self.kill = self.process.kill

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join(120)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode


def _train(file):
    torch.set_num_threads(1)
    train(load_recipe(file), resume=True)


@posix
def test_killed_at_random_moments_it_equals_the_unbroken_training(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from kill_test import kill_test

    recipe = toy.recipe(
        tmp_path / "exp", "training.epochs=12", "model.encoder.dropout=0.3",
        "model.encoder.attention={kind: lsh, bucket_size: 8}", "training.spec_augment={freq_masks: 1}",
        "training.schedule={kind: plateau, patience: 0}",
    )  # fmt: skip
    assert kill_test(recipe, 4, 0, tmp_path, lambda file, exp: Clean(_train, file)) == []
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[1:5]] == [f"kill {n}" for n in range(1, 5)]
    assert said[5].startswith("4 SIGKILLs, ")
    assert said[5].endswith("equal to the unbroken training, bit for bit")

    # And a difference would be seen: one bit of one weight, one number of the log.
    from kill_test import _log_differences

    from asr.train.same import compare_trainings

    last = load_checkpoint(tmp_path / "killed" / "last.pt")
    last["model"]["output.bias"][0] *= 1 + 2**-23
    save_checkpoint(tmp_path / "killed" / "last.pt", last)
    (line,) = compare_trainings(tmp_path / "unbroken", tmp_path / "killed")[1]
    assert line.startswith("last.pt: model.output.bias: 1 of 5 numbers, by ")
    log = tmp_path / "killed" / "log.jsonl"
    log.write_text(log.read_text() + log.read_text().splitlines()[-2] + "\n")
    assert _log_differences(tmp_path / "unbroken", tmp_path / "killed") == ["log.jsonl: 13 lines for 12 epochs"]


@posix
@pytest.mark.parametrize("batch", ["300", "{kind: auto, min_updates: 4}"])
def test_check_resume_as_a_user_runs_it(toy, tmp_path, monkeypatch, batch):
    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "asr.train.check_resume"]
        return subprocess.CompletedProcess(command, Clean(check._child, *command[3:]).wait())

    monkeypatch.setattr(check.subprocess, "run", run)
    exp = tmp_path / "runs" / "mine"
    overrides = (f"exp={exp}", f"training.batch_frames={batch}")
    done = CliRunner().invoke(app, ["train", str(toy.file), *overrides, "--check-resume"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("exact: killed twice and resumed, all ")
    assert [line for line in done.stderr.splitlines() if not line.endswith(" s")] == [
        "check: unbroken: 2 epochs of 3 steps",
        "check: killed in epoch 1",
        "check: resumed, killed in epoch 2",
        "check: resumed, to the end",
    ]
    assert list(exp.parent.iterdir()) == [], "the experiment is left alone and nothing stays"


class Fake:
    """In place of the four trainings: checkpoints that differ as told."""

    def __init__(self, monkeypatch, **weights):
        self.weights = weights
        monkeypatch.setattr(check, "_run", self.run)

    def run(self, recipe, exp, kill, say, what):
        exp.mkdir(exist_ok=True)
        for name in ("last.pt", "best.pt"):
            save_checkpoint(exp / name, {"model": {"w": torch.tensor([1.0, self.weights[exp.name]])}})


def test_check_resume_names_what_differs(toy, tmp_path, monkeypatch):
    Fake(monkeypatch, unbroken=1.0, broken=1.5, again=1.0)
    verdict = check.check_resume(toy.recipe(tmp_path / "exp"))
    assert not verdict.exact
    head, first, second = verdict.text().split("\n")
    assert head == "NOT exact: killed and resumed, 2 of 4 tensors and values differ; two unbroken runs are equal"
    assert first == "  last.pt: model.w: 1 of 2 numbers, by 0.5 at most"
    assert second.startswith("  best.pt: ")


def test_check_resume_does_not_blame_resuming_for_a_machine_that_does_not_repeat_itself(toy, tmp_path, monkeypatch):
    Fake(monkeypatch, unbroken=1.0, broken=1.5, again=1.25)
    verdict = check.check_resume(toy.recipe(tmp_path / "exp"))
    assert not verdict.exact
    assert verdict.text().startswith("not decided: this machine does not repeat itself.")


def test_check_resume_takes_no_other_options(toy):
    result = CliRunner().invoke(app, ["train", str(toy.file), "--check-resume", "--overwrite"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "leave out --resume and --overwrite" in result.stderr
