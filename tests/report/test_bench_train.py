"""`asr bench train` on a manifest without audio, at sizes that take no time. No test depends on a time."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from asr.attention.lsh import LshConfig
from asr.cli import main
from asr.data.manifest import Utterance, write_manifest
from asr.encoder.bilstm import BilstmEncoder
from asr.encoder.config import BilstmConfig
from asr.kernels import linear_attention
from asr.kernels.backend import forced
from asr.recipe_loader import load_recipe
from asr.report import bench_epoch, bench_train, made_up_set
from asr.report.bare_loop import BareLoop
from asr.report.flops import count_flops
from asr.report.operators import ALL, REST, operator_seconds
from asr.train import loop
from asr.train.world import World

CPU = torch.device("cpu")
RECIPE = """
data: {train: train.jsonl, dev: dev.jsonl}
features: {sample_rate: 8000, bins: 16, cmvn: global}
model:
  frontend: {kind: stack, factor: 3}
  encoder: {kind: transformer, layers: 1, dim: 16, heads: 2, feedforward: 32, attention: {kind: linear}}
training:
  batch_frames: 300
  threads: 1
  device: cpu
  accumulate: 2
  spec_augment: {freq_masks: 1, time_masks: 1}
"""
SECONDS = [0.5 + 0.05 * n for n in range(20)]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(made_up_set, "BLOCK", 1 << 14)
    for name, seconds in (("train", SECONDS), ("dev", SECONDS[:3])):
        spoken = [
            Utterance(f"{name}{n:02}", Path("absent.wav"), s, f"s{n % 2}", "", phones=("AA", "B", "AA")[: 1 + n % 3])
            for n, s in enumerate(seconds)
        ]
        write_manifest(tmp_path / f"{name}.jsonl", spoken)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    return tmp_path / "toy.yaml"


def test_made_up_utterances_are_the_manifests(file):
    recipe = load_recipe(file)
    tokens, data = made_up_set.corpus(recipe, recipe.data.train)
    assert list(data.frames) == [1 + (round(8000 * s) - 200) // 80 for s in SECONDS]  # windows of 25 ms every 10 ms
    assert data.targets[2] == [tokens.ids[p] for p in ("AA", "B", "AA")]
    batch = data.batch([0, 5])
    assert batch.features.shape == (2, data.frames[5], 16)
    assert batch.features.std().item() == pytest.approx(1, abs=0.2)
    assert not torch.equal(batch.features[0, :40], batch.features[1, :40])


def test_speeds_shorten_the_noise(file):
    recipe = load_recipe(file, ["training.speeds=[1.0, 2.0]"])
    _, data = made_up_set.corpus(recipe, recipe.data.train)
    double = [data.speeds[2.0].frames(id) for id in data.ids]
    assert double == [1 + (round(8000 * s / 2) - 200) // 80 for s in SECONDS]
    assert all(n in pair for n, *pair in zip(data.frames_of("0/1"), data.frames, double, strict=True))


@pytest.mark.parametrize("cmvn", ["none", "utterance", "global", "speaker"])
def test_named_lengths_are_feasible_and_need_no_manifest(file, cmvn):
    recipe = load_recipe(file, [f"features.cmvn={cmvn}", "data.train=absent.jsonl"])
    with World(recipe.training) as world:
        state = bench_train._state(recipe, world, [50, 100, 290])
    assert list(state.train.frames) == [50, 100, 290]
    assert [len(t) for t in state.train.targets] == [5, 10, 29]
    assert all(1 <= token < len(state.tokens) for target in state.train.targets for token in target)
    assert state.train.batch([0, 1]).features.isfinite().all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_bare_loop_trains_the_same_model(file, precision):
    """Without what only a training has, its steps are the training's own."""
    recipe = load_recipe(
        file,
        [
            f"training.precision={precision}",
            "model.encoder.dropout=0",
            "training.spec_augment={}",
            "training.schedule={kind: constant}",
        ],
    )
    with World(recipe.training) as world:
        state = bench_train._state(recipe, world, None)
        bare = BareLoop(state)
        groups = state.groups(1)
        assert {len(group) for group in groups} == {2}
        for group in groups:
            loop._step(group, state)
        bare(bare.ready(groups))
    first = bench_train._state(recipe, world, None).model.state_dict()
    for name, value in bare.model.state_dict().items():
        torch.testing.assert_close(value, state.model.state_dict()[name], atol=1e-5, rtol=1e-3)
        assert not torch.equal(value, first[name]), name


def figures(path, *arguments):
    out = path.parent / "figures.json"
    result = CliRunner().invoke(main.app, ["bench", "train", str(path), *arguments, "-o", str(out)])
    assert result.exit_code == 0, result.output
    return {(f["part"], f["name"], f["unit"]): f["value"] for f in json.loads(out.read_text("utf-8"))}, result.output


def test_an_epoch_its_parts_and_its_operators(file):
    found, text = figures(file, "--steps", "0", "--threads", "1")
    assert found["data", "utterances of an epoch", ""] == len(SECONDS)
    for part in ("step", "operators", "epoch"):
        shares = [v for (p, name, unit), v in found.items() if p == part and unit[0] == "%" and "all but" not in name]
        assert sum(shares) == pytest.approx(100)
    of_a_step = {name for part, name, unit in found if (part, unit) == ("step", "ms")}
    assert of_a_step == {"data", "forward", "backward", "optimiser", "rest"}
    for kind in ("products", "mixer ops", "CTC", "norms", "data", "clip and optimiser", "dropout", REST):
        assert found["operators", kind, "% of a step"] > 0, kind
    assert found["operators", "convolutions", "% of a step"] == 0
    assert {name for part, name, unit in found if (part, unit) == ("epoch", "s")} == {
        "training",
        "validation",
        "checkpoint",
    }
    assert found["model", "GFLOP of a step", ""] > 0
    assert found["bare loop", "the training's time", "times"] > 0
    assert "| bare loop | the training's processor time |" in text
    assert not file.with_name("exp").exists(), "nothing is left behind"


def test_without_data_the_lengths_are_wsjs(file, monkeypatch):
    (file.parent / "train.jsonl").unlink()
    monkeypatch.setattr(bench_epoch, "wsj_lengths", lambda: [70, 90] * 10)
    found, text = figures(file, "--steps", "2", "training.inter_ctc={}", "model.encoder.layers=2")
    assert "train.jsonl is not there: WSJ's lengths instead" in text
    assert "no bare loop beside a training with inter_ctc" in text
    assert found["data", "frames of an utterance, mean", ""] == 80
    assert not any(part in ("bare loop", "epoch") for part, *_ in found)


def test_lengths_and_csv(file):
    out = file.parent / "figures.csv"
    arguments = ["bench", "train", str(file), "--lengths", "30,40", "--steps", "1", "-o", str(out)]
    result = CliRunner().invoke(main.app, arguments)
    assert result.exit_code == 0, result.output
    rows = {(row["part"], row["name"]): float(row["value"]) for row in csv.DictReader(out.open(encoding="utf-8"))}
    assert rows["data", "utterances of an epoch"] == 10_000
    assert rows["data", "frames of an utterance, mean"] == 35


@pytest.mark.parametrize("arguments", [["train"], ["kernels", "toy.yaml"]])
def test_a_recipe_belongs_to_train(arguments):
    result = CliRunner().invoke(main.app, ["bench", *arguments])
    assert result.exit_code == 2
    assert "asr bench train RECIPE" in result.output


def both(op, *inputs):
    leaves = [x.requires_grad_() for x in inputs]
    return count_flops(lambda: op(*leaves).sum().backward())


def test_flops_of_ops_that_torch_does_not_know():
    lengths = torch.tensor([10, 7])
    q, k, v = torch.randn(3, 2, 10, 4, 8)
    heads = 2 * 4 * 10
    assert both(lambda *t: linear_attention(*t, lengths), q, k, v) == 3 * heads * 4 * 8 * 8
    with forced("reference"):
        assert both(lambda *t: linear_attention(*t, lengths), q, k, v) == 3 * heads * 4 * 8 * 8
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    assert both(nn.functional.scaled_dot_product_attention, q, k, v) >= 3 * heads * 4 * 10 * 8
    assert both(nn.Linear(8, 5), torch.randn(3, 8)) == 3 * 2 * 3 * 8 * 5
    grouped = nn.Conv2d(6, 4, (1, 3), groups=2)
    x = torch.randn(2, 6, 1, 12)
    assert both(grouped, x) == 3 * 2 * 2 * 10 * 4 * 3 * 3
    lstm = BilstmEncoder(BilstmConfig(layers=1, hidden=6), 8)
    assert both(lambda x: lstm(x, torch.tensor([10, 7])), torch.randn(2, 10, 8)) == 3 * 2 * 20 * 2 * 24 * (8 + 6)


def test_flops_of_lsh():
    mixer = LshConfig(rounds=3, bucket_size=4).build(16, 2)
    x = torch.randn(2, 32, 16, requires_grad=True)
    found = count_flops(lambda: mixer(x, torch.tensor([32, 32])).sum().backward())
    projections = 3 * 2 * 64 * 16 * 16 * 3  # shared queries and keys, values, output
    hashes = 2 * 64 * 16 * 3 * 4
    assert found == projections + hashes + 3 * 2 * 64 * 2 * 3 * 8 * 16


def test_operators_are_told_apart():
    a, b, x = torch.randn(64, 64), torch.randn(2, 3, 9, 9), torch.randn(64, 64)
    kernel = torch.randn(3, 3, 3, 3)

    def run():
        a @ a
        nn.functional.conv2d(b, kernel)
        x.tanh()
        with torch.profiler.record_function("data"):
            x @ x

    seconds = operator_seconds([run], CPU)
    assert tuple(seconds) == ALL
    present = {kind for kind, s in seconds.items() if s > 0}
    assert present == {"products", "convolutions", "element by element, copies", "data", REST}
