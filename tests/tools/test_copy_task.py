"""The copy task: its sequences, what its recipes refuse, that models learn it, and the program as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.image
import pytest
import torch

from asr.errors import RecipeError
from asr.recipe_loader import load_config

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes/copy").glob("*.yaml"))
sys.path.append(str(ROOT / "tools"))  # as `python tools/copy_task.py` has it

from copying.config import CopyConfig, TaskConfig  # noqa: E402
from copying.model import SymbolModel  # noqa: E402
from copying.report import Run  # noqa: E402
from copying.sequences import draw  # noqa: E402
from copying.training import train  # noqa: E402

TINY = ["seeds=[0]", "task.batch=4", "task.max_length=10", "model.layers=1", "model.dim=16", "model.feedforward=16"]
SHORT = [*TINY, "training.updates=5", "training.log_updates=2", "training.test_batches=1"]


def recipe(name, *overrides):
    return load_config(CopyConfig, ROOT / f"recipes/copy/{name}.yaml", overrides)


@pytest.mark.parametrize("length", [4, 5, 16, 33])
def test_sequences_are_0_w_0_w_and_the_second_w_is_marked(length):
    torch.manual_seed(0)
    batch = draw(TaskConfig(symbols=3, max_length=length, batch=200))
    assert batch.symbols.shape == batch.targets.shape == (200, length - 1)
    seen = set()
    for symbols, n, targets, second in zip(*(t.tolist() for t in batch), strict=True):
        size = (n - 1) // 2
        word = symbols[1 : size + 1]
        assert symbols[:n] == [0, *word, 0, *word[:-1]]
        assert targets[:n] == [*word, 0, *word]
        assert [place for place, is_second in enumerate(second) if is_second] == list(range(size + 1, 2 * size + 1))
        assert set(word) <= {1, 2, 3}
        assert not any(targets[n:])
        seen.add(size)
    assert seen == set(range(max(1, length // 4), length // 2))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_build_causal_models(path):
    config = load_config(CopyConfig, path, ["task.batch=2"])
    torch.manual_seed(0)
    model = SymbolModel(config.model, config.task.symbols).eval()
    batch = draw(config.task)
    changed = batch.symbols.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 11
    before, after = (model(symbols, batch.lengths) for symbols in (batch.symbols, changed))
    if path.stem.endswith("lsh"):  # what a place meets moves with later ones, since hashing sorts
        assert model.encoder.causal
    else:
        torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_recipes_differ_in_the_mixer_alone():
    for names in (("softmax", "linear", "lsh"), ("paper-softmax", "paper-linear", "paper-lsh")):
        found = [recipe(name) for name in names]
        assert [config.name for config in found] == ["softmax", "linear", "LSH-4"]
        assert [config.model.mixers[0].kind for config in found] == ["softmax", "linear", "lsh"]
        rest = [config.model_dump(exclude={"name": True, "model": {"attention"}}) for config in found]
        assert rest[0] == rest[1] == rest[2]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.attention.causal=false",
            "attention kind: softmax would see the symbol it must predict; set causal",
        ),
        ("model.attention.chunks=8", "model.attention: unknown key 'chunks'"),
        ("training.schedule=plateau", "plateau needs validations"),
        ("training.schedule={kind: cosine, by: time}", "by: time needs a limit of minutes"),
        ("seeds=[1, 1]", "seeds: must be different numbers"),
        ("task.max_lenght=8", "task: unknown key 'max_lenght'; did you mean 'max_length'?"),
        ("task.max_length=3", "task.max_length: must be an integer >= 4, got 3"),
        ("training.epochs=3", "training: unknown key 'epochs'"),
    ],
)
def test_bad_recipes_are_refused_with_the_place(override, message):
    with pytest.raises(RecipeError) as error:
        recipe("softmax", override)
    assert message in str(error.value)
    assert override in str(error.value) or "base.yaml:" in str(error.value) or "softmax.yaml" in str(error.value)


@pytest.mark.parametrize("kind", ["softmax", "linear", "{kind: lsh, bucket_size: 2}"])
def test_models_learn_to_copy(kind):
    """One or two symbols, again: without the first half nobody gets more than 1 in 10 right."""
    kind = kind if kind[0] == "{" else f"{{kind: {kind}}}"
    config = recipe(
        "softmax", "task.batch=32", "task.max_length=6", "model.layers=2", "model.dim=32", "model.heads=4",
        "model.feedforward=64", "training.updates=150", "training.optimiser.lr=5e-3", "training.schedule.kind=constant",
        "training.test_batches=4", f"model.attention={kind[:-1]}, causal: true}}",
    )  # fmt: skip
    result = train(config, seed=0)
    assert result["test_accuracy"] > 0.97
    assert result["test_loss"] < 0.2
    assert result["test_whole"] > 0.95
    assert result["curve"][0]["loss"] > 2.0


def test_a_training_repeats_itself_and_all_mixers_see_the_same(monkeypatch):
    import copying.training

    drawn = []
    monkeypatch.setattr(copying.training, "draw", lambda task: drawn.append(draw(task)) or drawn[-1])
    first, again, other = (train(recipe(name, *SHORT), 0) for name in ("linear", "linear", "lsh"))
    assert {**first, "update_ms": 0} == {**again, "update_ms": 0}
    assert [point["update"] for point in first["curve"]] == [2, 4, 5]
    assert first["curve"] != other["curve"]
    count = len(drawn) // 3
    for one, two, three in zip(drawn[:count], drawn[count : 2 * count], drawn[2 * count :], strict=True):
        assert torch.equal(one.symbols, two.symbols)
        assert torch.equal(one.symbols, three.symbols)
    assert not torch.equal(drawn[0].symbols, drawn[1].symbols)


def test_when_a_run_counts_as_solved():
    def solved(*losses):
        return Run("a", 0, {"curve": [{"update": 10 * i, "loss": loss} for i, loss in enumerate(losses, 1)]}).solved

    assert solved(2.0, 0.05, 0.3, 0.05, 0.01) == 40
    assert solved(2.0, 0.05, 0.3) is None
    assert solved(0.01) == 10


def test_the_program_trains_reports_and_does_not_repeat_itself(run_tool, tmp_path):
    recipes = [ROOT / f"recipes/copy/{name}.yaml" for name in ("softmax", "lsh")]
    arguments = [*recipes, "--out", tmp_path, "--workers", 1]
    done = run_tool("copy_task", *arguments, *SHORT)
    assert done.code == 0, done.err
    assert [line.split(" | ")[0] for line in done.out.splitlines()[2:]] == ["| softmax", "| LSH-4"]
    assert (tmp_path / "table.md").read_text("utf-8") == done.out
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert [(row["model"], row["update"]) for row in rows] == [(m, u) for m in ("softmax", "LSH-4") for u in "245"]
    kept = json.loads((tmp_path / "runs/softmax-0.json").read_text())
    assert float(rows[2]["loss"]) == kept["result"]["curve"][2]["loss"]
    assert matplotlib.image.imread(tmp_path / "loss.png").shape[1] > 800
    again = run_tool("copy_task", *arguments, *SHORT)
    assert (again.code, again.out) == (0, done.out)
    assert "2 of 2 trainings are done already" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task.batch=4"], "no recipe: name a YAML file"),
        ([RECIPES[0], RECIPES[0]], "two recipes are called 'base'"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_usage_errors_are_one_line(run_tool, tmp_path, arguments, message):
    done = run_tool("copy_task", *arguments, "--out", tmp_path)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_the_workers_too(tmp_path):
    command = [sys.executable, "tools/copy_task.py", "recipes/copy/softmax.yaml", "--out", tmp_path, "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    overrides = [*TINY, "training.updates=100000", "training.log_updates=1"]
    process = subprocess.Popen(
        [*command, *overrides], cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while len(_children(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(_children(process.pid)) == 2  # the worker, and the tracker of what it shares
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)  # ends only when no child holds its stderr
        assert process.returncode == 130
        assert err.splitlines()[-1].startswith("stopped; the same command goes on")
        assert "Traceback" not in err
    finally:
        process.kill()


def _children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return found.stdout.split()
