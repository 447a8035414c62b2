"""Best-path decoding: what is merged, what is not, and the frames of every token."""

from __future__ import annotations

import math

import pytest
import torch

from asr.ctc.greedy import Token, greedy_decode


def log_probs(*paths, tokens=4):
    """Rows that follow the given ids, each with probability 0.7 at frame 0, 0.8 at odd and 0.9 at later even ones."""
    time = max(map(len, paths))
    x = torch.full((len(paths), time, tokens), 0.01)
    for i, path in enumerate(paths):
        for t, id in enumerate(path):
            x[i, t, id] = 0.7 if t == 0 else (0.8 if t % 2 else 0.9)
    return x.log()


def ids(tokens):
    return [t.id for t in tokens]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([1, 1, 2, 2], [1, 2]),
        ([1, 0, 1], [1, 1]),
        ([0, 1, 1, 0, 0, 1, 2], [1, 1, 2]),
        ([0, 0, 0], []),
        ([3], [3]),
        ([1, 2, 1], [1, 2, 1]),
    ],
)
def test_repeats_merge_unless_a_blank_stands_between(path, expected):
    assert ids(greedy_decode(log_probs(path), torch.tensor([len(path)]))[0]) == expected


def test_tokens_carry_their_frames_and_best_log_probability():
    tokens = greedy_decode(log_probs([2, 2, 2, 0, 2, 3]), torch.tensor([6]))[0]
    assert [(t.id, t.start, t.end) for t in tokens] == [(2, 0, 3), (2, 4, 5), (3, 5, 6)]
    assert [t.log_prob for t in tokens] == pytest.approx([math.log(0.9), math.log(0.9), math.log(0.8)], abs=1e-6)
    assert isinstance(tokens[0], Token)


def test_frames_past_the_length_are_not_read():
    x = log_probs([1, 0, 2, 2, 3], [3, 3, 3, 3, 3])
    decoded = greedy_decode(x, torch.tensor([3, 0]))
    assert [(t.id, t.start, t.end) for t in decoded[0]] == [(1, 0, 1), (2, 2, 3)]
    assert decoded[1] == []
    x[0, 3:] = float("nan")
    assert greedy_decode(x, torch.tensor([3, 0])) == decoded


def test_E5_the_blank_is_the_given_id():
    assert ids(greedy_decode(log_probs([3, 0, 3, 0, 0]), torch.tensor([5]), blank=3)[0]) == [0, 0]


def test_nothing_in_nothing_out():
    assert greedy_decode(torch.zeros(2, 0, 4), torch.tensor([0, 0])) == [[], []]
    assert greedy_decode(torch.zeros(0, 5, 4), torch.tensor([], dtype=torch.long)) == []
