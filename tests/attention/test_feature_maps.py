"""Feature maps: what each approximates or equals, and what random and learned ones keep."""

from __future__ import annotations

import math

import pytest
import torch

from asr.attention.feature_maps import (
    Favor,
    FavorConfig,
    FixedMapConfig,
    HedgehogConfig,
    Square,
    orthogonal_directions,
)
from asr.attention.linear import LinearConfig

MAPS = [*(FixedMapConfig(kind=kind) for kind in ("elu", "relu", "exp", "square")), FavorConfig(), HedgehogConfig()]


def pairs(phi, q, k):
    """φ(q)ᵀφ(k) of every pair, (batch, heads, time, time)."""
    q, k = phi(q, k)
    if phi.logarithmic:
        q, k = q.exp(), k.exp()
    return torch.einsum("bthf,bshf->bhts", q, k)


def test_square_is_the_squared_product():
    q, k = torch.randn(2, 1, 9, 2, 8, dtype=torch.float64)
    products = torch.einsum("bthd,bshd->bhts", q, k)
    torch.testing.assert_close(pairs(Square(8), q, k), products**2 / 8)
    assert Square(8).size == 8 * 9 / 2


def test_favor_estimates_the_softmax_kernel_without_bias_and_better_with_more_features():
    torch.manual_seed(0)
    q, k = 0.4 * torch.randn(2, 1, 12, 1, 8, dtype=torch.float64)
    exact = torch.exp(torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(8))

    def errors(size, draws):
        return torch.stack([pairs(Favor(8, size, seed=seed), q, k) / exact - 1 for seed in range(draws)])

    rms = {size: errors(size, 40).square().mean().sqrt() for size in (8, 64, 512)}
    for few, many in ((8, 64), (64, 512)):
        assert rms[many] == pytest.approx(rms[few] / math.sqrt(8), rel=0.5)
    assert errors(512, 300).mean().abs() < 0.01


def test_favor_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_ones():
    w = orthogonal_directions(4096, 16, seed=3)
    assert w.shape == (4096, 16)
    unit = (w / w.norm(dim=1, keepdim=True)).unflatten(0, (-1, 16))
    torch.testing.assert_close(unit @ unit.mT, torch.eye(16).expand(256, 16, 16), atol=1e-5, rtol=0)
    assert w.square().sum(1).mean() == pytest.approx(16, rel=0.05)  # chi-squared with 16 degrees of freedom
    assert w.square().sum(1).var() == pytest.approx(32, rel=0.15)
    torch.testing.assert_close(w.T @ w / 4096, torch.eye(16), atol=0.1, rtol=0)
    assert not torch.equal(w, orthogonal_directions(4096, 16, seed=4))


def test_orthogonal_directions_err_less_than_independent_ones():
    """Choromanski et al. 2021, theorem 2: the error of exp(‖z‖² / 2) as a mean of exp(wᵀz) over 8 directions."""
    z = torch.full((8,), 8**-0.5)  # of length 1
    generator = torch.Generator().manual_seed(0)
    draws = {
        "orthogonal": orthogonal_directions(80_000, 8, 0),
        "independent": torch.randn(80_000, 8, generator=generator),
    }
    error = {}
    for name, directions in draws.items():
        estimates = torch.exp(directions.unflatten(0, (-1, 8)) @ z - 0.5).mean(1)
        assert estimates.mean() == pytest.approx(1, abs=0.02)
        error[name] = (estimates - 1).square().mean()
    assert error["orthogonal"] < 0.9 * error["independent"]


def test_favor_is_redrawn_by_training_batches_only_and_goes_on_after_reloading():
    torch.manual_seed(0)
    config = LinearConfig(feature_map=FavorConfig(size=6, redraw=3))
    x, lengths = torch.randn(1, 4, 8), torch.tensor([4])

    def run(layer, batches):
        seen = []
        for _ in range(batches):
            layer(x, lengths)
            seen.append(layer.map.directions.clone())
        return seen

    first = config.build(8, 2)
    a = run(first, 3)
    b = run(first.eval(), 7)
    second = config.build(8, 2)
    second.load_state_dict(first.state_dict())
    torch.rand(5)  # the global generator has no say
    c, d = run(first.train(), 4), run(second.train(), 4)
    assert all(torch.equal(w, a[0]) for w in [*a, *b])
    assert first.map.batches == second.map.batches == 7
    assert torch.equal(c[0], c[2])
    assert not torch.equal(c[0], a[0])
    assert not torch.equal(c[3], c[2])
    assert all(torch.equal(u, v) for u, v in zip(c, d, strict=True))
    third = config.build(8, 2)
    assert torch.equal(third.map.directions, a[0])
    third.load_state_dict(first.state_dict())
    assert torch.equal(third.map.directions, c[3])


def test_favor_without_redraw_keeps_its_directions():
    layer = LinearConfig(feature_map=FavorConfig(size=6, redraw=0)).build(8, 2)
    before = layer.map.directions.clone()
    for _ in range(5):
        layer(torch.randn(1, 4, 8), torch.tensor([4]))
    assert torch.equal(layer.map.directions, before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", MAPS, ids=lambda c: c.kind)
def test_zero_queries_and_keys(config, causal):
    """Where the similarity of zeros is not zero the result is the plain mean of the values; else it is zero."""
    layer = LinearConfig(feature_map=config, causal=causal).build(8, 2)
    with torch.no_grad():
        layer.project.weight[:16] = 0
        layer.project.bias[:16] = 0
    x = torch.randn(1, 10, 8, requires_grad=True)
    y = layer(x, torch.tensor([10]))
    values = layer.project(x)[..., 16:]
    if config.kind in ("relu", "square"):
        expected = torch.zeros_like(values)
    elif causal:
        expected = values.cumsum(1) / torch.arange(1, 11)[:, None]
    else:
        expected = values.mean(1, keepdim=True).expand_as(values)
    torch.testing.assert_close(y, layer.output(expected), atol=1e-5, rtol=1e-4)
    y.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_hedgehog_learns_to_imitate_softmax():
    """Zhang et al. 2024, section 4.2: the cross entropy to softmax's weights falls; its least is their entropy."""
    torch.manual_seed(0)
    q, k = 1.5 * torch.randn(2, 4, 16, 2, 8)
    target = (torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(8)).softmax(-1)
    phi = HedgehogConfig().build(8, 2)
    optimiser = torch.optim.Adam(phi.parameters(), lr=0.02)

    def distance():
        weights = pairs(phi, q, k)
        return (target * (target.log() - (weights / weights.sum(-1, keepdim=True)).log())).sum(-1).mean()

    before = distance().item()
    for _ in range(120):
        optimiser.zero_grad()
        distance().backward()
        optimiser.step()
    assert distance().item() < 0.5 * before


def test_identity_needs_the_norm_of_the_output():
    identity = FixedMapConfig(kind="identity")
    with pytest.raises(ValueError, match="needs normaliser: output"):
        LinearConfig(feature_map=identity)
    LinearConfig(feature_map=identity, normaliser="output")


@pytest.mark.parametrize("kind", ["elu", "exp", "square", "favor"])
def test_long_sums_in_float16_and_bfloat16_keep_their_digits(kind):
    torch.manual_seed(0)
    feature_map = FavorConfig(size=32) if kind == "favor" else FixedMapConfig(kind=kind)
    for normaliser in ("sum", "output"):
        layer = LinearConfig(feature_map=feature_map, normaliser=normaliser).build(16, 2)
        with torch.no_grad():
            layer.project.bias += 0.5  # nothing cancels: undivided sums grow with the time
        x, lengths = 3 * torch.randn(1, 3000, 16), torch.tensor([3000])
        exact = layer.double()(x.double(), lengths)
        layer.float()
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                y = layer(x, lengths)
            assert (y - exact).abs().mean() < 0.02 * exact.abs().mean()
