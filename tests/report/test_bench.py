"""`asr bench` at sizes that take no time: what is measured, and what the tables say. No test depends on a time."""

from __future__ import annotations

import csv
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig
from asr.cli import main
from asr.encoder.config import BilstmConfig, ModelConfig, TransformerConfig
from asr.report import bench_epoch, bench_kernels

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


@pytest.mark.parametrize(
    "arguments", [["kernels", "--lengths", "0"], ["kernels", "--dims", "x"], ["epoch", "--lengths", ","]]
)
def test_bad_numbers_are_named(arguments):
    result = CliRunner().invoke(main.app, ["bench", *arguments])
    assert result.exit_code == 2
    assert f"{arguments[1]} {arguments[2]}: numbers from 1" in result.output
