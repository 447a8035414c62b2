"""Statistics of buckets, normalisers, states, memories and spikes, each against another way to the same number."""

import math

import pytest
import torch
from pydantic import TypeAdapter

from asr.attention.config import AttentionConfig
from asr.report.inspect.ctc import count_ctc, summarise_ctc
from asr.report.inspect.implied import queries_keys, value_map
from asr.report.inspect.layers import Layer
from asr.report.inspect.linear import effective_rank, normaliser, state_rank, summarise_linear
from asr.report.inspect.lsh import meetings, summarise_lsh
from asr.report.inspect.memory import memory_frames, summarise_memory

DIM, HEADS = 16, 2


def layer_of(rotary=False, **config):
    torch.manual_seed(0)
    return Layer(1, TypeAdapter(AttentionConfig).validate_python(config).build(DIM, HEADS, rotary).eval())


def frames(time):
    return torch.randn(1, time, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_pairs_that_meet_are_those_with_weight(rounds, causal):
    layer, x = layer_of(kind="lsh", rounds=rounds, bucket_size=4, causal=causal), frames(45)
    weight = value_map(layer, x) * (1 - torch.eye(45))  # a frame sees itself only where it sees nothing else
    keys = torch.arange(45).float() if causal else torch.full((45,), 44.0)
    found = meetings(layer.module, queries_keys(layer, x))
    torch.testing.assert_close(found.met[rounds], (weight > 0).sum(-1) / keys, equal_nan=True)


def test_recall_rises_with_rounds_to_1_where_all_meet():
    layer, x = layer_of(kind="lsh", rounds=2, bucket_size=8), frames(200)
    summary = summarise_lsh([meetings(layer.module, queries_keys(layer, x))] * 2, layer.module)
    for name in ("recall", "mass", "met"):
        assert list(summary[name]) == ["1", "2", "4", "8"]
        by_head = torch.tensor(list(summary[name].values()))
        assert (by_head.diff(dim=0) > 0.01).all()
    assert (torch.tensor(summary["recall"]["1"]) > torch.tensor(summary["met"]["1"])).all()  # hashing beats chance
    assert summary["buckets"]["count"] == 2 * 2 * HEADS * 26  # utterances, rounds, heads, buckets of 200 / 8 or above
    wide = layer_of(kind="lsh", bucket_size=200)
    summary = summarise_lsh([meetings(wide.module, queries_keys(wide, x))], wide.module)
    assert summary["recall"]["1"] == summary["mass"]["1"] == summary["met"]["1"] == pytest.approx([1.0] * HEADS)
    assert (summary["buckets"]["median"], summary["buckets"]["empty_share"]) == (200, 0)


def test_a_single_frame_has_no_keys_to_recall():
    layer = layer_of(kind="lsh")
    assert meetings(layer.module, queries_keys(layer, frames(1))).recall[1].isnan().all()


@pytest.mark.parametrize("kind", ["linear", "decay"])
@pytest.mark.parametrize("rotary", [False, True])
def test_normaliser_frame_by_frame(kind, rotary):
    layer, x = layer_of(rotary, kind=kind, causal=True), frames(9)
    q, k, _ = layer.module.project(x)[0].double().unflatten(-1, (3, HEADS, -1)).unbind(1)
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1  # (time, heads, D)
    keep, z, expected = layer.module.decay(), torch.zeros(HEADS, DIM // HEADS).double(), []
    for t in range(9):
        z = (1.0 if keep is None else keep[:, None]) * z + k[t]
        expected.append((q[t] * z).sum(-1) + layer.module.eps)
    found = normaliser(layer.module, queries_keys(layer, x), x)
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-6, atol=0)
    summary = summarise_linear([found], [])["normaliser"]
    assert summary["min"][0] == pytest.approx(float(found[0].min()))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "square", "favor"])
def test_state_after_the_last_frame_is_the_sum_over_all(feature_map, rotary):
    ranks, sums = [], []
    for causal in (False, True):
        layer, x = layer_of(rotary, kind="linear", feature_map={"kind": feature_map}, causal=causal), frames(30)
        qk = queries_keys(layer, x)
        ranks.append(state_rank(layer, qk, x))
        sums.append(normaliser(layer.module, qk, x)[:, -1])
    assert (ranks[0] > 1.5).all()
    torch.testing.assert_close(sums[0], sums[1])
    if feature_map != "favor":  # whose state is in units of its greatest value so far
        torch.testing.assert_close(ranks[0], ranks[1], rtol=1e-4, atol=1e-4)


def test_effective_rank():
    assert effective_rank(torch.diag(torch.tensor([3.0, 3.0, 0.0]))).item() == pytest.approx(2)
    assert effective_rank(torch.outer(torch.arange(1.0, 4), torch.ones(5))).item() == pytest.approx(1)
    assert effective_rank(torch.zeros(2, 2)).isnan()


def test_an_undivided_layer_has_no_normaliser():
    layer, x = layer_of(kind="linear", normaliser="output"), frames(5)
    assert normaliser(layer.module, queries_keys(layer, x), x) is None


def test_memory_in_milliseconds():
    layer, x = layer_of(kind="decay", decay=[0.9, 0.99], causal=True), frames(7)
    summary = summarise_memory([memory_frames(layer, x)] * 2, frame_ms=40.0)
    assert summary["median"] == pytest.approx([400.0, 4000.0], rel=1e-4)
    assert memory_frames(layer_of(kind="retention", causal=True), x)[:, 0].tolist() == pytest.approx([32, 64])
    assert memory_frames(layer_of(kind="lightning", causal=True), x)[1].item() == pytest.approx(256.5, rel=1e-3)
    assert memory_frames(layer_of(kind="lightning", decay=False, causal=True), x) is None
    assert memory_frames(layer_of(kind="softmax"), x) is None


def test_memory_that_the_frames_set():
    layer, x = layer_of(kind="gated", causal=True, tau=1.0), frames(7)
    with torch.no_grad():
        layer.module.gates[1].weight.zero_()
        layer.module.gates[1].bias.copy_(torch.tensor([0.0] * 4 + [math.log(3.0)] * 4))  # α = 1/2, 3/4
    assert summarise_memory([memory_frames(layer, x)], 10.0) == {
        name: pytest.approx([20.0, 40.0]) for name in ("p5", "median", "p95")
    }
    s4d = layer_of(kind="ssm", causal=True)
    frames_kept = memory_frames(s4d, x)
    log_a, _, _ = s4d.module.core.discrete()
    torch.testing.assert_close(1 - 1 / frames_kept, log_a.exp().abs().flatten()[None])


def test_spikes_and_blanks():
    a, b = [0.1, 0.9, 0.0], [0.2, 0.0, 0.8]
    blank = [1.0, 0.0, 0.0]
    log_probs = torch.tensor([blank, a, a, b, blank, b, blank, blank]).log()
    one = count_ctc(log_probs, 0, seconds=0.32, reference_tokens=4)
    summary = summarise_ctc([one, one], frame_ms=40.0)
    assert summary["blank_share"] == 0.5
    assert summary["blank_posterior"] == pytest.approx(4.6 / 8)
    assert summary["counts"]["spikes"] == 6
    assert summary["spike_width_ms"] == pytest.approx(40 * 4 / 3)
    assert summary["spike_posterior"] == pytest.approx((0.9 + 0.8 + 0.8) / 3)
    assert summary["spikes_per_second"] == pytest.approx(3 / 0.32)
    assert summary["reference_per_second"] == pytest.approx(4 / 0.32)
    entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.1, 0.2)]
    assert summary["entropy"] == pytest.approx(sum(entropies) * 2 / 8)


def test_without_a_spike_nothing_is_divided_by_zero():
    summary = summarise_ctc([count_ctc(torch.tensor([[0.9, 0.1]]).log(), 0, 0.04, 0)], 40.0)
    assert summary["blank_share"] == 1
    assert summary["spike_width_ms"] is summary["spike_posterior"] is None
