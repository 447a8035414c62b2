"""SummaryMixing: the mean is of the real frames, and of the past ones only when causal."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from asr.attention.summary import Branches, SummaryConfig


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_equation_row_by_row(causal):
    torch.manual_seed(0)
    layer = SummaryConfig(causal=causal).build(12, 3).double()
    x, lengths = torch.randn(3, 8, 12, dtype=torch.float64), [8, 5, 1]
    y = layer(x, torch.tensor(lengths))
    for row, n in enumerate(lengths):
        local, summary = layer.local(x[row : row + 1, :n])[0], layer.summary(x[row : row + 1, :n])[0]
        for t in range(n):
            mean = summary[: t + 1].mean(0) if causal else summary.mean(0)
            expected = F.gelu(layer.combine(torch.cat([local[t], mean])))
            torch.testing.assert_close(y[row, t], expected, atol=1e-12, rtol=1e-12)


def test_order_of_frames_does_not_matter_to_the_mean():
    torch.manual_seed(0)
    layer = SummaryConfig().build(12, 3)
    x = torch.randn(1, 9, 12)
    turned = layer(x.flip(1), torch.tensor([9])).flip(1)
    torch.testing.assert_close(turned, layer(x, torch.tensor([9])), atol=1e-6, rtol=1e-5)


def test_branches_see_their_own_part_of_the_frame():
    torch.manual_seed(0)
    branches = Branches(12, 3)
    x = torch.randn(2, 4, 12)
    changed = x.clone()
    changed[..., 4:8] += 1
    same = (branches(x) == branches(changed)).all(0).all(0)
    assert same.tolist() == [True] * 4 + [False] * 4 + [True] * 4
    first = F.gelu(x[..., :4] @ branches.weight[0] + branches.bias[:4])
    torch.testing.assert_close(branches(x)[..., :4], first)
