"""State space models against their recurrences, written as in the papers, one frame after the other."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from asr.attention.diagonal import DiagonalSsm, convolve, response
from asr.attention.selective import SelectiveSsm, _Scan, scan
from asr.attention.ssm import SsmConfig


def diagonal(init="lin", discretisation="zoh", state=6, dt_min=1e-3, dt_max=1e-1):
    torch.manual_seed(0)
    return DiagonalSsm(5, state, init, discretisation, dt_min, dt_max)


@pytest.mark.parametrize("init", ["lin", "inv"])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@torch.no_grad()
def test_convolution_is_the_recurrence(discretisation, init):
    core = diagonal(init, discretisation).double()
    u = torch.randn(2, 70, 5, dtype=torch.float64)
    a, dt = torch.complex(-core.log_rate.exp(), core.frequency), core.log_dt.exp()[:, None]
    if discretisation == "zoh":
        decay, drive = (a * dt).exp(), ((a * dt).exp() - 1) / a
    else:
        decay, drive = (1 + a * dt / 2) / (1 - a * dt / 2), dt / (1 - a * dt / 2)
    assert decay.abs().max() < 1
    z, out = torch.zeros(2, 5, 3, dtype=torch.complex128), []
    for t in range(70):
        z = decay * z + drive * u[:, t, :, None]
        out.append(2 * (torch.view_as_complex(core.c) * z).sum(-1).real + core.skip * u[:, t])
    torch.testing.assert_close(core(u), torch.stack(out, 1), atol=1e-9, rtol=1e-9)
    y, end = core.step(u, core.initial_state(2))
    torch.testing.assert_close(y, core(u), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(end, z, atol=1e-9, rtol=1e-9)


def test_initialisations_are_those_of_the_paper():
    lin, inv = diagonal("lin", state=4), diagonal("inv", state=4)
    assert lin.frequency[2].tolist() == pytest.approx([0, math.pi])
    assert inv.frequency[2].tolist() == pytest.approx([4 / math.pi * 3, 4 / math.pi / 3])
    for core in (lin, inv):
        torch.testing.assert_close(core.log_rate.exp(), torch.full((5, 2), 0.5))
    torch.manual_seed(0)
    dt = DiagonalSsm(4000, 2, "lin", "zoh", 1e-3, 1e-1).log_dt.exp()
    assert 1e-3 <= dt.min() < 1.1e-3
    assert 0.09 < dt.max() <= 0.1
    assert (dt < 1e-2).float().mean().item() == pytest.approx(0.5, abs=0.03), "even in the logarithm"


@torch.no_grad()
def test_short_frames_keep_their_digits_in_float32():
    core = diagonal(dt_min=1e-6, dt_max=1e-6)
    b = core.discrete()[1]
    torch.testing.assert_close(b.to(torch.complex128), core.double().discrete()[1], atol=0, rtol=1e-5)


@torch.no_grad()
def test_long_utterances_in_pieces_agree_in_float32():
    torch.manual_seed(1)
    core, u = diagonal(), torch.randn(1, 3000, 5)
    state, parts = core.initial_state(1), []
    for piece in u.split(700, dim=1):
        y, state = core.step(piece, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), core(u), atol=1e-4, rtol=0)
    torch.testing.assert_close(core(u).double(), core.double()(u.double()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("time", range(1, 12))
def test_convolution_does_not_come_round(time):
    u, kernel = torch.zeros(1, time, 2, dtype=torch.float64), torch.randn(2, time, dtype=torch.float64)
    u[0, -1] = 1
    expected = torch.zeros_like(u)
    expected[0, -1] = kernel[:, 0]
    torch.testing.assert_close(convolve(u, kernel), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(convolve(u.flip(1), kernel)[0], kernel.T, atol=1e-12, rtol=0)


@pytest.mark.parametrize("time", [0, 1, 2, 3, 4, 9, 10, 50])
def test_response_is_a_sum_of_powers(time):
    torch.manual_seed(0)
    log_a = torch.complex(-torch.rand(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64))
    weight = torch.randn(4, 2, 3, dtype=torch.complex128)
    expected = [2 * (weight * log_a.exp() ** t).sum(-1).real for t in range(time)]
    expected = torch.stack(expected, -1) if time else torch.empty(4, 2, 0, dtype=torch.float64)
    torch.testing.assert_close(response(log_a, weight, time), expected, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_selective_is_its_recurrence():
    torch.manual_seed(0)
    core = SelectiveSsm(6, 3, 1e-3, 1e-1, chunk=8).double()
    u = torch.randn(2, 29, 6, dtype=torch.float64)
    low, b, c = core.inputs(u).split([core.rank, 3, 3], dim=-1)
    dt = F.softplus(core.duration(low))
    h, out = torch.zeros(2, 6, 3, dtype=torch.float64), []
    for t in range(29):
        h = (dt[:, t, :, None] * -core.log_rate.exp()).exp() * h + (dt * u)[:, t, :, None] * b[:, t, None]
        out.append((h * c[:, t, None]).sum(-1) + core.skip * u[:, t])
    y, end = core.step(u, core.initial_state(2))
    torch.testing.assert_close(y, torch.stack(out, 1), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(end, h, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("low", "high"), [(1e-3, 1e-1), (50.0, 100.0)])  # e^100 is beyond float32
@torch.no_grad()
def test_selective_starts_with_the_durations_asked_for(low, high):
    core = SelectiveSsm(400, 3, low, high, chunk=8)
    dt = F.softplus(core.duration(torch.zeros(core.rank)))
    assert low * 0.999 < dt.min() < 2 * low
    assert 0.8 * high < dt.max() < high * 1.001
    torch.testing.assert_close(core.log_rate[7].exp(), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 16, 23])
def test_scan_is_the_recurrence_also_where_all_is_forgotten(time, backwards):
    torch.manual_seed(0)
    a, b, first = torch.rand(2, time, 3), torch.randn(2, time, 3), torch.randn(2, 3)
    a[0, ::3] = 0
    h, expected = first, [None] * time
    for t in range(time)[:: -1 if backwards else 1]:
        h = expected[t] = a[:, t] * h + b[:, t]
    torch.testing.assert_close(scan(a, b, first, backwards), torch.stack(expected, 1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("time", [1, 5, 9])
def test_gradient_of_the_scan(time):
    torch.manual_seed(0)
    shapes = [(2, time, 3), (2, time, 3), (2, 3)]
    a, b, first = (torch.rand(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    assert torch.autograd.gradcheck(_Scan.apply, (a, b, first))


def test_selective_training_keeps_no_state_for_every_frame():
    torch.manual_seed(0)
    core, u = SelectiveSsm(6, 50, 1e-3, 1e-1, chunk=16), torch.randn(2, 64, 6, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        y = core(u)
    assert max(kept) < 2 * 16 * 6 * 50
    y.sum().backward()
    assert u.grad.abs().min() > 0


@pytest.mark.parametrize("selective", [False, True])
def test_the_recurrence_stays_in_float32_under_autocast(selective):
    torch.manual_seed(0)
    core, u = SsmConfig(causal=True, selective=selective).build(8, 2).core, torch.randn(1, 20, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = core(u)
    assert torch.equal(y, core(u))
    torch.testing.assert_close(core(u.bfloat16()).double(), core.double()(u.bfloat16().double()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt_min": 0.2}, "dt_min 0.2 is above dt_max 0.1"),
        ({"state": 7}, "state 7 is odd: the eigenvalues come in conjugate pairs"),
        ({"selective": True, "init": "inv"}, "selective: true has its own init and discretisation; leave both out"),
        ({"selective": True, "discretisation": "bilinear"}, "leave both out"),
        ({"dt_min": 0.0}, "greater than 0"),
        ({"dt_max": 1e3}, "less than or equal to 100"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        SsmConfig(**options)
    assert SsmConfig(selective=True, state=7).state == 7
