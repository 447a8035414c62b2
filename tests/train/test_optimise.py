"""The learning rate of every step, and which parameters decay."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.train.config import (
    ConstantConfig,
    CosineConfig,
    NoamConfig,
    OneCycleConfig,
    OptimiserConfig,
    PlateauConfig,
    StepConfig,
    TrainingConfig,
)
from asr.train.optimise import Schedule, build_optimiser


def rates(schedule, steps):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=99.0)
    out = [schedule.apply(optimiser) for _ in range(steps)]
    assert optimiser.param_groups[0]["lr"] == out[-1]
    return out


def test_constant_with_warm_up():
    assert rates(Schedule(ConstantConfig(warmup=4), 2.0, 100), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rates(Schedule(ConstantConfig(), 2.0, 100), 2) == [2.0, 2.0]


def test_step_cuts_once():
    got = rates(Schedule(StepConfig(after=3, factor=0.25), 2.0, 100), 6)
    assert got == [2.0, 2.0, 2.0, 0.5, 0.5, 0.5]
    assert rates(Schedule(StepConfig(warmup=2, after=3), 2.0, 100), 4) == pytest.approx([1.0, 2.0, 2.0, 0.2])


def test_cosine_falls_from_the_peak_to_its_end_and_stays():
    got = rates(Schedule(CosineConfig(warmup=10, final=0.1), 1.0, 110), 130)
    assert got[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert got[10] == pytest.approx(1.0)
    assert got[60] == pytest.approx(0.1 + 0.9 / 2)
    assert got[35] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert got[109] == pytest.approx(0.1, abs=1e-3)
    assert got[110:] == pytest.approx([0.1] * 20)
    assert all(a >= b for a, b in pairwise(got[9:]))


def test_cosine_by_time_knows_no_number_of_steps():
    schedule = Schedule(CosineConfig(warmup=2, final=0.1, by="time"), 1.0, total_steps=1)
    for step, rise in ((0, 0.5), (2, 1.0), (500, 1.0)):
        schedule.step = step
        assert [schedule.lr(spent) / rise for spent in (0.0, 0.5, 1.0, 1.5)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_by_time_needs_a_time():
    with pytest.raises(ValueError, match="by: time falls over the time of max_minutes, which is not set"):
        TrainingConfig(schedule=CosineConfig(by="time"))


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert rates(Schedule(CosineConfig(warmup=500), 1.0, 20), 20) == pytest.approx([i / 500 for i in range(1, 21)])


def test_plateau_waits_for_its_patience_and_cuts():
    schedule = Schedule(PlateauConfig(factor=0.5, patience=1), 1.0, 0)
    observed = [schedule.observe(e) for e in (90.0, 80.0, 85.0, 80.0, 70.0, 71.0, 72.0, 73.0, 74.0)]
    #                                         better  better  1 bad  2 bad: cut, better, 1, 2: cut, 1, 2: cut
    assert observed == [False, False, False, True, False, False, True, False, True]
    assert rates(schedule, 1) == [0.125]


def test_plateau_never_goes_below_its_floor():
    schedule = Schedule(PlateauConfig(factor=0.1, patience=0, min_lr=0.03), 1.0, 0)
    schedule.observe(1.0)
    assert all(schedule.observe(1.0) for _ in range(3))
    assert schedule.lr() == 0.03


def test_plateau_takes_nan_as_no_news():
    schedule = Schedule(PlateauConfig(patience=0), 1.0, 0)
    assert [schedule.observe(e) for e in (float("nan"), 50.0, float("nan"), 40.0, float("nan"))] == [False] * 5
    assert schedule.best == 40.0
    assert schedule.observe(41.0)


def test_plateau_takes_inf_as_no_news():
    schedule = Schedule(PlateauConfig(patience=0), 1.0, 0)
    assert [schedule.observe(e) for e in (50.0, float("inf"), float("-inf"))] == [False] * 3
    assert (schedule.best, schedule.bad_epochs) == (50.0, 0)


def test_other_schedules_do_not_watch_the_error():
    schedule = Schedule(ConstantConfig(), 1.0, 0)
    assert not any(schedule.observe(50.0) for _ in range(10))
    assert schedule.lr() == 1.0


def test_state_goes_on_where_it_stood():
    a = Schedule(PlateauConfig(warmup=7, patience=1), 1.0, 0)
    for error in (5.0, 6.0):
        rates(a, 2)
        a.observe(error)
    b = Schedule(PlateauConfig(warmup=7, patience=1), 1.0, 0)
    b.load_state_dict(a.state_dict())
    for error in (6.0, 6.0, 6.0):
        assert a.observe(error) == b.observe(error)
        assert rates(a, 3) == rates(b, 3)


@pytest.mark.parametrize("name", ["radam", "adam", "adamw", "sgd"])
@pytest.mark.parametrize("encoder", ["transformer", "bilstm"])
def test_weight_decay_is_for_matrices_only(name, encoder):
    config = {"encoder": {"kind": encoder, "layers": 1} | ({"convolution": 5} if encoder == "transformer" else {})}
    model = CtcModel(ModelConfig.model_validate(config), 8, 5)
    optimiser = build_optimiser(OptimiserConfig(name=name, weight_decay=0.25, betas=(0.8, 0.9)), model)
    decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for parameter_name, p in model.named_parameters():
        is_vector = "bias" in parameter_name or "norm" in parameter_name
        assert decay[id(p)] == (0.0 if is_vector else 0.25), parameter_name
    if name != "sgd":
        assert optimiser.defaults["betas"] == (0.8, 0.9)


@pytest.mark.parametrize("selective", [False, True])
def test_weight_decay_leaves_the_dynamics_of_state_spaces_alone(selective):
    config = {"encoder": {"kind": "transformer", "layers": 1, "attention": {"kind": "ssm", "selective": selective}}}
    model = CtcModel(ModelConfig.model_validate(config), 8, 5)
    decayed, rest = build_optimiser(OptimiserConfig(weight_decay=0.25), model).param_groups
    core = model.encoder.blocks[0].mixer.ahead.core
    names = {id(p): name for name, p in core.named_parameters()}
    dynamics = {"log_rate", "frequency", "log_dt", "skip", "duration.bias"} & set(names.values())
    assert {names[id(p)] for p in rest["params"] if id(p) in names} == dynamics
    assert {names[id(p)] for p in decayed["params"] if id(p) in names} == set(names.values()) - dynamics


@pytest.mark.parametrize("name", ["radam", "adamw"])
def test_decay_is_decoupled_from_the_gradient(name):
    model = torch.nn.Linear(3, 3)
    before = model.weight.detach().clone()
    optimiser = build_optimiser(OptimiserConfig(name=name, lr=0.1, weight_decay=0.5), model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    torch.testing.assert_close(model.weight, before * (1 - 0.1 * 0.5))


def test_noam_rises_in_a_line_and_falls_with_the_square_root():
    got = rates(Schedule(NoamConfig(warmup=4), 2.0, 0), 64)
    assert got[:4] == [0.5, 1.0, 1.5, 2.0]
    assert got[15] == pytest.approx(2.0 * math.sqrt(4 / 16))
    assert got[63] == pytest.approx(2.0 * math.sqrt(4 / 64))
    # Vaswani et al., equation 3, whose peak is (dim · warmup)^-½ at step warmup.
    formula = [256**-0.5 * min(s**-0.5, s * 4**-1.5) for s in range(1, 65)]
    peak = (256 * 4) ** -0.5
    assert rates(Schedule(NoamConfig(warmup=4), peak, 0), 64) == pytest.approx(formula)


@pytest.mark.parametrize("total", [10, 101])
def test_one_cycle_is_torchs(total):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.3, total, pct_start=0.4, div_factor=20, final_div_factor=50
    )
    wanted = []
    for _ in range(total):
        wanted.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        theirs.step() if len(wanted) < total else None
    ours = rates(Schedule(OneCycleConfig(rise=0.4, start=1 / 20, final=1 / 1000), 0.3, total), total + 5)
    assert ours[:total] == pytest.approx(wanted)
    assert ours[total:] == pytest.approx([0.3 / 1000] * 5), "a run that goes on past its end"


@pytest.mark.parametrize("total", [1, 2])
def test_one_cycle_of_hardly_any_steps_is_a_rate(total):
    assert all(0 < rate <= 1 for rate in rates(Schedule(OneCycleConfig(), 1.0, total), 3))


def test_sgd_has_nesterovs_momentum():
    model = torch.nn.Linear(3, 3)
    theirs = [p.detach().clone().requires_grad_() for p in model.parameters()]
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.8, nesterov=True)
    optimiser = build_optimiser(OptimiserConfig(name="sgd", lr=0.1, momentum=0.8), model)
    for _ in range(3):
        for p, q in zip(model.parameters(), theirs, strict=True):
            p.grad = torch.ones_like(p)
            q.grad = torch.ones_like(q)
        optimiser.step()
        reference.step()
    for p, q in zip(model.parameters(), theirs, strict=True):
        torch.testing.assert_close(p, q)


def test_plain_sgd_has_none():
    model = torch.nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    optimiser = build_optimiser(OptimiserConfig(name="sgd", lr=0.5, momentum=0.0), model)
    for _ in range(2):
        model.weight.grad = torch.ones_like(model.weight)
        optimiser.step()
    torch.testing.assert_close(model.weight, before - 1.0)
