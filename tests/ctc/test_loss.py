"""The loss against a sum over every path, its gradient, and what it refuses."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from asr.ctc.loss import ctc_loss_sum, reference_tokens


def collapse(path, blank):
    return [t for t, before in zip(path, (None, *path), strict=False) if t != before and t != blank]


def by_enumeration(log_probs, target, blank):
    """-ln of the summed probability of every path, (time, tokens), that collapses to the target."""
    time, tokens = log_probs.shape
    paths = [p for p in itertools.product(range(tokens), repeat=time) if collapse(p, blank) == target]
    return -torch.stack([log_probs[range(time), list(p)].sum() for p in paths]).logsumexp(0)


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("target", [[], [1], [1, 1], [1, 1, 3], [3, 1], [1, 3, 1, 3, 1]])
def test_value_and_gradient_by_enumeration(target, blank):
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(len(target))).requires_grad_()
    expected = by_enumeration(x.log_softmax(-1), target, blank)
    (expected_gradient,) = torch.autograd.grad(expected, x)
    loss = ctc_loss_sum(x.log_softmax(-1)[None], torch.tensor([5]), [target], blank)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_a_padded_batch_is_the_sum_of_its_rows():
    torch.manual_seed(0)
    targets, lengths = [[1, 2], [], [3, 3, 1], [2]], [4, 3, 9, 1]
    x = torch.randn(4, 9, 5, dtype=torch.float64, requires_grad=True)
    loss = ctc_loss_sum(x.log_softmax(-1), torch.tensor(lengths), targets)
    loss.backward()
    alone = [
        ctc_loss_sum(row[None, :n].log_softmax(-1), torch.tensor([n]), [t]).item()
        for row, n, t in zip(x, lengths, targets, strict=True)
    ]
    assert loss.item() == pytest.approx(sum(alone))
    for row, n in zip(x.grad, lengths, strict=True):
        assert row[:n].abs().sum(-1).min() > 0
        assert row[n:].abs().max() == 0 if n < 9 else True


def test_half_precision_is_computed_in_float32():
    x = torch.randn(1, 300, 40, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    loss = ctc_loss_sum(x.bfloat16(), torch.tensor([300]), [[1, 2, 3]])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, ctc_loss_sum(x.bfloat16().float(), torch.tensor([300]), [[1, 2, 3]]))


def test_E1_too_few_frames_are_refused():
    x = torch.randn(2, 4, 3).log_softmax(-1)
    with pytest.raises(ValueError, match="row 1: 4 frames needed for its target, 3 given"):
        ctc_loss_sum(x, torch.tensor([4, 3]), [[1], [1, 1, 2]])
    assert ctc_loss_sum(x, torch.tensor([4, 4]), [[1], [1, 1, 2]]).isfinite()


def test_E3_empty_targets_cost_the_blanks():
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    lengths = torch.tensor([6, 4, 2])
    by_hand = -(x[0, :6, 0].sum() + x[1, :4, 0].sum() + x[2, :2, 0].sum())
    torch.testing.assert_close(ctc_loss_sum(x, lengths, [[], [], []]), by_hand)
    mixed = ctc_loss_sum(x, lengths, [[], [1, 2, 3], []])
    middle = ctc_loss_sum(x[1:2], lengths[1:2], [[1, 2, 3]])
    torch.testing.assert_close(mixed, -(x[0, :6, 0].sum() + x[2, :2, 0].sum()) + middle)


def test_E3_rows_without_frames():
    x = torch.randn(2, 5, 4, requires_grad=True)
    loss = ctc_loss_sum(x.log_softmax(-1), torch.tensor([5, 0]), [[1], []])
    loss.backward()
    torch.testing.assert_close(loss, ctc_loss_sum(x[:1].log_softmax(-1), torch.tensor([5]), [[1]]))
    assert x.grad.isfinite().all()
    assert x.grad[1].abs().max() == 0
    with pytest.raises(ValueError, match="row 0: 1 frames needed for its target, 0 given"):
        ctc_loss_sum(x.log_softmax(-1), torch.tensor([0, 5]), [[1], [1]])


def test_E3_no_frames_or_no_rows_at_all():
    for shape, lengths, targets in [((2, 0, 4), [0, 0], [[], []]), ((0, 5, 4), [], [])]:
        x = torch.randn(shape, requires_grad=True)
        loss = ctc_loss_sum(x, torch.tensor(lengths, dtype=torch.long), targets)
        loss.backward()
        assert loss.item() == 0
        assert x.grad.shape == shape


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize("id", ["blank", -1, 4, 99])
def test_E5_targets_outside_the_table_or_blank_are_refused(blank, id):
    x = torch.randn(2, 6, 4).log_softmax(-1)
    wrong = blank if id == "blank" else id
    with pytest.raises(ValueError, match=rf"row 1: target ids must lie in 0\.\.3 and differ from the blank id {blank}"):
        ctc_loss_sum(x, torch.tensor([6, 6]), [[1], [1, wrong]], blank)


def test_E5_the_blank_may_be_any_id():
    x = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(2)).log_softmax(-1)
    moved = x[..., [1, 2, 3, 0]]  # the blank is last now, the others one lower
    torch.testing.assert_close(
        ctc_loss_sum(x, torch.tensor([6]), [[1, 3]], 0), ctc_loss_sum(moved, torch.tensor([6]), [[0, 2]], 3)
    )


def test_E7_one_batch_or_two_have_equal_gradients():
    torch.manual_seed(0)
    targets = [[1 + i % 3 for i in range(n)] for n in (1, 40, 1, 40, 7, 1, 40, 2)]
    features, lengths = torch.randn(8, 90, 6), torch.tensor([90, 85, 3, 80, 20, 90, 90, 5])
    model = torch.nn.Linear(6, 4)

    def gradient(*batches):
        model.zero_grad()
        divisor = reference_tokens(targets)
        for rows in batches:
            loss = ctc_loss_sum(model(features[rows]).log_softmax(-1), lengths[rows], [targets[i] for i in rows])
            (loss / divisor).backward()
        return model.weight.grad.clone()

    torch.testing.assert_close(gradient([0, 1, 2, 3], [4, 5, 6, 7]), gradient(list(range(8))))
    torch.testing.assert_close(gradient([1], [3, 0], [7, 6, 5, 4, 2]), gradient(list(range(8))))


def test_loss_is_nats_per_reference_token():
    # Uniform over 4 tokens: one path of 1 frame for [1], each frame costs ln 4.
    x = torch.full((3, 1, 4), 0.25).log()
    targets = [[1], [2], [3]]
    loss = ctc_loss_sum(x, torch.tensor([1, 1, 1]), targets) / reference_tokens(targets)
    assert loss.item() == pytest.approx(math.log(4))
    assert reference_tokens([[], []]) == 1
