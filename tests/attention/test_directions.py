"""Two directions of a causal mixer: what each frame sees, and that a row's padding is in neither's way."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from asr.attention.directions import BothDirections, DirectionalConfig, reverse
from asr.attention.linear import LinearConfig


class Forwards(DirectionalConfig):
    """Causal linear attention in the role of a recurrence."""

    kind: Literal["forwards"] = "forwards"

    def build_causal(self, dim, heads, rotary):
        return LinearConfig(causal=True).build(dim, heads, rotary)


def test_reverse_turns_each_row_within_its_length():
    x = torch.arange(1, 9).view(2, 4, 1)
    assert reverse(x, torch.tensor([4, 3]))[..., 0].tolist() == [[4, 3, 2, 1], [7, 6, 5, 8]]
    assert torch.equal(reverse(reverse(x, torch.tensor([2, 0])), torch.tensor([2, 0])), x)


def test_sum_adds_what_each_direction_says():
    torch.manual_seed(0)
    both = Forwards().build(12, 2)
    assert isinstance(both, BothDirections)
    x, lengths = torch.randn(1, 9, 12), torch.tensor([9])
    back = both.back(x.flip(1), lengths).flip(1)
    torch.testing.assert_close(both(x, lengths), both.ahead(x, lengths) + back)


@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_every_frame_sees_the_whole_row_and_only_it(combine):
    torch.manual_seed(0)
    both = Forwards(combine=combine).build(12, 2)
    assert not both.causal
    x = torch.randn(2, 9, 12, requires_grad=True)
    both(x, torch.tensor([9, 5]))[1, 2].sum().backward()
    assert x.grad[1, :5].abs().sum(-1).min() > 0
    assert x.grad[1, 5:].abs().max() == 0


def test_one_direction_leaves_nothing_to_combine():
    with pytest.raises(ValueError, match="causal: true has one; leave it out"):
        Forwards(causal=True, combine="concat")


def test_one_direction_is_the_mixer_itself():
    assert Forwards(causal=True).build(12, 2).causal
