"""Both implementations against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from asr.attention.softmax import SoftmaxConfig


@pytest.mark.parametrize("implementation", ["sdpa", "materialised"])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_formula(implementation, causal):
    torch.manual_seed(0)
    layer = SoftmaxConfig(implementation=implementation, causal=causal).build(12, 2).double()
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    q, k, v = layer.project(x[0]).split(12, -1)
    heads = []
    for h in range(2):
        cut = slice(6 * h, 6 * h + 6)
        rows = []
        for i in range(9):
            n = i + 1 if causal else 9
            w = torch.exp(q[i, cut] @ k[:n, cut].T / 6**0.5)
            rows.append((w @ v[:n, cut]) / w.sum())
        heads.append(torch.stack(rows))
    expected = layer.output(torch.cat(heads, -1))
    torch.testing.assert_close(layer(x, torch.tensor([9]))[0], expected)
