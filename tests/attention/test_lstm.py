"""The LSTM mixer against its equations, and what its options do."""

from __future__ import annotations

import pytest
import torch

from asr.attention.directions import BothDirections
from asr.attention.lstm import LstmConfig


def test_equals_the_equations_frame_by_frame():
    torch.manual_seed(0)
    mixer = LstmConfig(causal=True, hidden=5).build(6, 2).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    w = mixer.lstm
    h = c = torch.zeros(2, 5, dtype=torch.float64)
    for t in range(9):
        gates = x[:, t] @ w.weight_ih_l0.T + h @ w.weight_hh_l0.T + w.bias_ih_l0 + w.bias_hh_l0
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        y = mixer(x, torch.tensor([9, 9]))[:, t]
        torch.testing.assert_close(y, mixer.output(h), atol=1e-12, rtol=1e-12)
    state = mixer.step(x, mixer.initial_state(2))[1]
    torch.testing.assert_close((state.h, state.c), (h, c), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("hidden", "cells"), [(None, 12), (5, 5)])
def test_hidden_is_of_each_direction(hidden, cells):
    both = LstmConfig(hidden=hidden).build(12, 2)
    assert isinstance(both, BothDirections)
    assert (both.ahead.lstm.hidden_size, both.back.lstm.hidden_size) == (cells, cells)
    assert both(torch.randn(1, 7, 12), torch.tensor([7])).shape == (1, 7, 12)
