"""`asr bench` at sizes that take no time: what is measured, and what the tables say. No test depends on a time."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig
from asr.cli import main
from asr.encoder.config import BilstmConfig, ModelConfig, TransformerConfig
from asr.kernels import build
from asr.recipe_loader import load_recipe
from asr.report import bench_epoch, bench_kernels, bench_mixers, bench_scaling

OPS = {"linear", "causal linear", "LSH-4"}


def test_every_method_computes_what_it_is_named_after():
    """Peers that are here agree with ours where the method is exact; LSH peers hash with other rotations."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 64, bench_kernels.HEADS, 8)
    for op, methods in bench_kernels.peers(2, 64, 8).items():
        ours = methods["asr"](q, k, v)
        assert ours.shape == (2, 64, bench_kernels.HEADS, 8)
        for name, method in methods.items():
            out = method(q, k, v)
            if name in ("asr in PyTorch", "obvious PyTorch") or (op != "LSH-4" and name == "fast-transformers"):
                torch.testing.assert_close(out, ours, atol=1e-4, rtol=1e-4, msg=f"{op}: {name}")
            else:
                assert out.numel() == ours.numel(), f"{op}: {name}"


def test_kernels_are_measured_at_every_size():
    timings = bench_kernels.measure([4], [16, 20], tokens=32, repeats=1)
    assert {(t.op, t.dim, t.time) for t in timings} == {(op, 4, n) for op in OPS for n in (16, 20)}
    assert all(t.forward_ms > 0 and t.both_ms > 0 for t in timings)
    assert {t.op for t in timings if t.method == "asr"} == OPS


def test_lengths_are_those_of_wsj():
    lengths = bench_epoch.wsj_lengths()
    assert len(lengths) == 37_416
    assert abs(sum(lengths) / len(lengths) - 783) < 2
    assert min(lengths) >= 100
    assert 2_300 < max(lengths) <= 2_400
    assert lengths == bench_epoch.wsj_lengths()


def test_models_are_the_papers():
    models = bench_epoch.models()
    sizes = {"layers": 9, "dim": 192, "heads": 6, "feedforward": 768}
    for name in ("linear", "softmax, fused", "softmax, materialised", "LSH-4"):
        assert models[name].frontend.kind == "none"
        assert models[name].encoder.model_dump(include=set(sizes)) == sizes
    assert models["softmax, materialised"].encoder.attention.implementation == "materialised"
    assert (models["Bi-LSTM"].encoder.layers, models["Bi-LSTM"].encoder.hidden) == (3, 320)


@pytest.fixture
def tiny(monkeypatch):
    def transformer(attention):
        return ModelConfig(encoder=TransformerConfig(layers=1, dim=8, heads=2, feedforward=8, attention=attention))

    models = {
        "linear": transformer(LinearConfig()),
        "softmax, fused": transformer(SoftmaxConfig()),
        "LSH-4": transformer(LshConfig()),
        "Bi-LSTM": ModelConfig(encoder=BilstmConfig(layers=1, hidden=4)),
    }
    monkeypatch.setattr(bench_epoch, "models", lambda: models)
    monkeypatch.setattr(bench_epoch, "measure", partial(bench_epoch.measure, batch_frames=600))


@pytest.mark.usefixtures("tiny")
def test_an_epoch_is_extrapolated_from_batches_of_all_lengths(monkeypatch):
    """With steps that take a microsecond a padded frame, the epoch takes as many as it has padded frames."""
    seen = set()

    class Step:
        def __init__(self, config):
            pass

        def __call__(self, sizes):
            seen.add(max(sizes))
            return 1e-6 * max(sizes) * len(sizes)

    monkeypatch.setattr(bench_epoch, "_Step", Step)
    lengths = [*range(20, 200)]
    found = bench_epoch.measure(lengths, batch_frames=600, samples=4)
    padded = sum(
        bench_epoch.padded_frames(rows, lengths) for rows in bench_epoch.plan_batches(lengths, 600, seed=0, epoch=1)
    )
    for one in found:
        assert one.seconds == pytest.approx(1e-6 * padded)
        assert one.frames_per_second == pytest.approx(sum(lengths) / one.seconds)
    assert len(seen) == 4
    assert max(seen) == 199


@pytest.mark.usefixtures("tiny")
def test_tables_and_csv(tmp_path):
    out = tmp_path / "bench.csv"
    result = CliRunner().invoke(main.app, ["bench", "epoch", "--lengths", "30,40", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "30 frames each" in result.output
    assert "| linear |" in result.output
    assert "| 1.00 | 1.00 |" in result.output
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [row["model"] for row in rows] == [*bench_epoch.models()] * 2
    result = CliRunner().invoke(main.app, ["bench", "kernels", "--lengths", "16", "--dims", "4", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert "causal linear, dim 4" in result.output


def test_mixers_are_those_of_the_recipes():
    folder = Path(__file__).resolve().parents[2] / "recipes/an4/mixers"
    encoders = {path.stem: load_recipe(path).model.encoder for path in folder.glob("*.yaml") if path.stem != "base"}
    shipped = {
        name: encoder.attention for name, encoder in encoders.items() if getattr(encoder, "attention", None) is not None
    }
    assert set(encoders) - set(shipped) == {"bilstm", "hybrid"}  # which are no mixers
    assert {name: bench_mixers.MIXERS[name] for name in shipped} == shipped


@pytest.mark.parametrize(
    ("name", "causal", "state"),
    [
        ("softmax", "yes", None),
        ("softmax-window", "streams", 2 * 8 * 192 * 4),  # keys and values of the frames to the left
        ("linear", "streams", 6 * 32 * (32 + 1) * 4),  # heads · C · (D + 1)
        ("summary", "streams", None),
        ("lstm", "streams", 2 * 72 * 4),
        ("lsh", "yes", None),
    ],
)
def test_what_a_mixer_is_at_any_length(name, causal, state):
    facts = bench_mixers._facts(name, bench_mixers.MIXERS[name])
    assert facts.causal == causal
    if causal == "streams":
        assert facts.state_bytes == bench_mixers.state_bytes(bench_mixers.MIXERS[name], frames=2000) > 0  # never grows
    if state:
        assert facts.state_bytes == state


def test_peak_memory_is_that_of_the_matrices():
    """Of N frames softmax forms scores, masked scores and weights of every head; linear attention nothing like it."""
    frames, heads, mb = 1024, bench_mixers.HEADS, 2**20
    pairs = 4 * heads * frames**2 / mb
    forward, both = bench_mixers._peaks_of_a_process("softmax-materialised", 1, frames)
    assert 1.5 * pairs < forward < both < 10 * pairs
    assert bench_mixers._peaks_of_a_process("linear", 1, frames)[1] < 1.5 * pairs


def test_mixers_table_and_csv(tmp_path, monkeypatch):
    names = ["softmax", "softmax-materialised", "linear"]
    monkeypatch.setattr(bench_mixers, "MIXERS", {name: bench_mixers.MIXERS[name] for name in names})
    monkeypatch.setattr(
        bench_mixers, "MOST_BYTES", 400 * 12 * 6 * 20
    )  # of matrices of 400 and 20 frames the first is over
    monkeypatch.setattr(bench_mixers, "measure", partial(bench_mixers.measure, tokens=400))
    monkeypatch.setattr(bench_mixers, "_peaks_of_a_process", lambda *_: (1.0, 2.0))
    out = tmp_path / "bench.csv"
    result = CliRunner().invoke(main.app, ["bench", "mixers", "--lengths", "20,400", "--repeats", "1", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "| mixer | parameters | causal form | state, bytes | 20 × 20 | 1 × 400 |" in result.output
    assert "softmax-materialised, 1 × 400: left out, its matrices of frame pairs take 0.0 GiB" in result.output
    assert "| linear | 1 / 2 | 1 / 2 |" in result.output
    assert "| softmax-materialised | 1 / 2 | – |" in result.output
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [(row["mixer"], row["frames"], row["batch"]) for row in rows] == [
        (name, frames, batch) for frames, batch in (("20", "20"), ("400", "1")) for name in names
    ]
    for row in rows:
        assert row["parameters"] == str(4 * 192 * 193)
        measured = not row["left_out"]
        assert measured == (row["mixer"] != "softmax-materialised" or row["frames"] == "20")
        assert all(float(row[key]) > 0 if measured else row[key] == "" for key in ("forward_ms", "both_ms", "both_mb"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["kernels", "--lengths", "0"],
        ["kernels", "--dims", "x"],
        ["mixers", "--lengths", "x"],
        ["epoch", "--lengths", ","],
    ],
)
def test_bad_numbers_are_named(arguments):
    result = CliRunner().invoke(main.app, ["bench", *arguments])
    assert result.exit_code == 2
    assert f"{arguments[1]} {arguments[2]}: numbers from 1" in result.output


def test_scaling_compares_each_op_with_itself_and_leaves_the_threads_as_they_were():
    if reason := build.load():
        pytest.skip(reason)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = bench_scaling.threads(4, frames=70, repeats=1) + bench_scaling.half(4, tokens=140, frames=70, repeats=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [r.what for r in rows] == [f"{op}: 1 thread, 2" for op in ("linear", "causal linear", "LSH-4")] + [
        f"{op}: float32, bfloat16" for op in ("linear", "causal linear", "LSH-4")
    ]
    assert all(ms > 0 for r in rows for ms in (*r.forward_ms, *r.both_ms))
    assert all(us > 0 for us in bench_scaling.step(4, heads=2, calls=3, repeats=1))
