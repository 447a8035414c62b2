"""LSH attention against exact shared query-key attention over the pairs that meet."""

from __future__ import annotations

import pytest
import torch

from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig
from asr.kernels.lsh import bucket_counts, hash_buckets
from asr.kernels.lsh import lsh_attention as op


def lsh_attention(qk, v, *rest, **options):
    """The op with heads before time."""
    return op(qk.transpose(1, 2), v.transpose(1, 2), *rest, **options).transpose(1, 2)


def shared_qk(qk, v, meet, causal=False):
    """Exact attention of one head over the pairs of the bool matrix `meet`; self only where nothing else is seen."""
    n, d = qk.shape
    key = qk / (qk.norm(dim=-1, keepdim=True) + 1e-6)
    scores = qk @ key.T / d**0.5
    eye = torch.eye(n, dtype=torch.bool)
    if causal:
        meet = meet & torch.ones(n, n, dtype=torch.bool).tril()
    scores = scores.masked_fill(eye, -5e4).masked_fill(~meet, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("causal", [False, True])
def test_one_bucket_equals_softmax_with_shared_query_and_key(causal):
    torch.manual_seed(0)
    qk, v = torch.randn(2, 1, 2, 30, 8, dtype=torch.float64)
    rotation = torch.randn(4, 8, 1, dtype=torch.float64)
    out = lsh_attention(qk, v, torch.tensor([30]), rotation, bucket_size=30, causal=causal)
    for h in range(2):
        expected = shared_qk(qk[0, h], v[0, h], torch.ones(30, 30, dtype=torch.bool), causal)
        torch.testing.assert_close(out[0, h], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("time", [7, 8, 9, 40, 61])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_rounds_combine_to_exact_attention_over_the_union_of_pairs(time, rounds, causal):
    torch.manual_seed(time)
    size = 8
    qk, v = torch.randn(2, 1, 1, time, 4, dtype=torch.float64)
    rotation = torch.randn(rounds, 4, max(1, -(-time // (2 * size))), dtype=torch.float64)
    out = lsh_attention(qk, v, torch.tensor([time]), rotation, size, causal)[0, 0]
    buckets = hash_buckets(qk, rotation, bucket_counts(torch.tensor([time]), size))[0, 0]
    meet = torch.zeros(time, time, dtype=torch.bool)
    for r in range(rounds):
        order = sorted(range(time), key=lambda t: (int(buckets[r, t]), t))
        chunk = {t: place // size for place, t in enumerate(order)}
        for i in range(time):
            for j in range(time):
                meet[i, j] |= chunk[i] - chunk[j] in (0, 1)
    torch.testing.assert_close(out, shared_qk(qk[0, 0], v[0, 0], meet, causal), atol=1e-9, rtol=1e-9)


def test_buckets_are_the_reformer_hash():
    torch.manual_seed(0)
    x, rotation = torch.randn(1, 1, 100, 6), torch.randn(2, 6, 10)
    counts = bucket_counts(torch.tensor([100]), 8)
    assert counts.tolist() == [14]
    buckets = hash_buckets(x, rotation, counts)
    for r in range(2):
        turned = x[0, 0] @ rotation[r, :, :7]
        assert torch.equal(buckets[0, 0, r], torch.cat([turned, -turned], -1).argmax(-1))
    assert bucket_counts(torch.tensor([0, 1, 8, 9, 16, 17]), 8).tolist() == [1, 1, 1, 2, 2, 4]


def test_more_rounds_find_more_of_the_true_top_keys():
    torch.manual_seed(0)
    time, size = 512, 16
    centres = torch.randn(32, 16)
    qk = (centres[torch.arange(time) % 32] + 0.3 * torch.randn(time, 16)).view(1, 1, time, 16)
    v = torch.eye(time).view(1, 1, time, time)  # the output row is then the attention row itself
    key = qk[0, 0] / qk[0, 0].norm(dim=-1, keepdim=True)
    top = (qk[0, 0] @ key.T).fill_diagonal_(-1e9).topk(15).indices
    recall = []
    for rounds in (1, 2, 4, 8):
        rotation = torch.randn(rounds, 16, time // (2 * size), generator=torch.Generator().manual_seed(1))
        rows = lsh_attention(qk, v, torch.tensor([time]), rotation, size)[0, 0]
        recall.append((rows.gather(1, top) > 0).float().mean().item())
    assert recall == sorted(recall)
    assert recall[0] < 0.6
    assert recall[-1] > 0.85


def test_training_draws_new_rotations_and_evaluation_keeps_its_own():
    torch.manual_seed(0)
    layer = LshConfig(bucket_size=8).build(12, 2)
    x, lengths = torch.randn(1, 64, 12), torch.tensor([64])
    assert not torch.equal(layer(x, lengths), layer(x, lengths))
    layer.eval()
    assert torch.equal(layer(x, lengths), layer(x, lengths))
    other = LshConfig(bucket_size=8, seed=1).build(12, 2).eval()
    other.load_state_dict(layer.state_dict())
    assert not torch.equal(layer(x, lengths), other(x, lengths))


def exact_and_lsh(shared, rotary, causal=False, **options):
    """Softmax attention and LSH attention with the same weights."""
    torch.manual_seed(0)
    exact = SoftmaxConfig(shared_qk=shared, causal=causal).build(16, 2, rotary).double().eval()
    lsh = LshConfig(shared_qk=shared, causal=causal, **options).build(16, 2, rotary).double().eval()
    with torch.no_grad():
        exact.project.weight *= 4  # as uneven as attention becomes by training
    lsh.load_state_dict(exact.state_dict())
    return exact, lsh


@pytest.mark.parametrize(("shared", "causal"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("rotary", [False, True])
def test_softmax_and_lsh_are_one_mixer_where_all_frames_meet(shared, causal, rotary):
    exact, lsh = exact_and_lsh(shared, rotary, causal, bucket_size=100, rounds=2)
    x, lengths = torch.randn(3, 40, 16, dtype=torch.float64), torch.tensor([40, 17, 1])
    ours, theirs = lsh(x, lengths), exact(x, lengths)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(ours[i, :n], theirs[i, :n], atol=1e-9, rtol=0)


@pytest.mark.parametrize("shared", [True, False])
@torch.inference_mode()
def test_trained_weights_come_nearer_to_softmax_with_every_round(shared):
    x, lengths = torch.randn(2, 200, 16, dtype=torch.float64), torch.tensor([200, 150])
    errors = []
    for rounds in (1, 4, 16, 64):
        exact, lsh = exact_and_lsh(shared, False, rounds=rounds, bucket_size=8)
        errors.append((lsh(x, lengths) - exact(x, lengths))[0].abs().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 4


def test_keys_of_their_own_are_met_by_place_in_the_order_of_buckets():
    torch.manual_seed(0)
    time, size, rounds = 37, 8, 2
    q, k, v = torch.randn(3, 1, time, 1, 4, dtype=torch.float64)
    rotation = torch.randn(rounds, 4, 3, dtype=torch.float64)
    counts = bucket_counts(torch.tensor([time]), size)
    meet = torch.zeros(time, time, dtype=torch.bool)
    for r in range(rounds):
        chunks = []
        for t in (q, k):
            buckets = hash_buckets(t.transpose(1, 2), rotation, counts)[0, 0, r]
            chunks.append({at: place // size for place, at in enumerate(buckets.argsort(stable=True).tolist())})
        for i in range(time):
            for j in range(time):
                meet[i, j] |= chunks[0][i] - chunks[1][j] in (0, 1)
    assert not meet.all()
    scores = (q[0, :, 0] @ k[0, :, 0].T / 4**0.5).masked_fill(~meet, -torch.inf)
    out = op(q, v, torch.tensor([time]), rotation, size, k=k)
    torch.testing.assert_close(out[0, :, 0], scores.softmax(-1) @ v[0, :, 0], atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="not causal"):
        op(q, v, torch.tensor([time]), rotation, size, causal=True, k=k)


@torch.inference_mode()
def test_rounds_and_bucket_size_of_a_trained_layer_can_be_changed():
    x, lengths = torch.randn(1, 256, 16, dtype=torch.float64), torch.tensor([256])
    exact, trained = exact_and_lsh(True, False, rounds=2, bucket_size=16)
    errors = []
    for size in (4, 16, 64, 128, 256):
        layer = LshConfig(rounds=2, bucket_size=size).build(16, 2).double().eval()
        layer.load_state_dict(trained.state_dict())
        errors.append((layer(x, lengths) - exact(x, lengths)).abs().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 100 * errors[-1]
    more = LshConfig(rounds=8).build(16, 2).double()
    assert torch.equal(more.rotation[:2], trained.rotation), "more rounds keep those there were"
