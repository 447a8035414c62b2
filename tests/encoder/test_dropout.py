"""The share that is dropped, the scale of what stays, and nothing at all outside training."""

from __future__ import annotations

import pytest
import torch

from asr.encoder.dropout import Dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
def test_share_scale_and_gradient(p):
    torch.manual_seed(0)
    layer = Dropout(p)
    x = torch.ones(101, 999, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    zero = (y == 0).float().mean().item()
    assert zero == pytest.approx(p, abs=0.005)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(x.grad, y)
    rows = torch.corrcoef((y.detach() == 0).float()[:50]).fill_diagonal_(0)
    assert rows.abs().max() < 0.25, "neighbouring rows must not repeat each other's draws"


def test_evaluation_and_p_0_leave_x_alone():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_the_seed_decides():
    x = torch.ones(7, 3)
    torch.manual_seed(1)
    first = Dropout(0.5)(x)
    torch.manual_seed(1)
    assert torch.equal(first, Dropout(0.5)(x))
    assert not torch.equal(first, Dropout(0.5)(x))
