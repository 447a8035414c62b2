"""One optimiser step: groups of batches with one divisor, and what happens when a number is not finite."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from asr.ctc.loss import ctc_loss_sum, reference_tokens
from asr.errors import AsrError
from asr.report.log import read_log
from asr.train import loop
from asr.train.checkpoint import load_checkpoint
from asr.train.prepare import prepare
from asr.train.run import Run
from asr.train.sets import keep_trainable
from asr.train.world import World


@pytest.fixture
def state(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "model.encoder.dropout=0", "training.clip=1e9", "training.optimiser.lr=1e-3")
    with Run(recipe, False, False) as run:
        yield prepare(recipe, run, World(recipe.training))


def spy(state):
    """The gradients that the optimiser was given at each of its steps."""
    seen, step = [], state.optimiser.step
    state.optimiser.step = lambda: (seen.append([p.grad.clone() for p in state.model.parameters()]), step())
    return seen


def gradient(state, group):
    """Of the loss as documented, over a group of batches."""
    data, model = state.train, state.model
    batch = data.batch([r for rows in group for r in rows])
    loss = ctc_loss_sum(*model(batch.features, batch.lengths), batch.targets) / reference_tokens(batch.targets)
    return torch.autograd.grad(loss, list(model.parameters()))


def test_E7_a_step_over_two_batches_is_a_step_over_one(state):
    """Targets of 1 and of 40 tokens in batches of unequal size."""
    longest = max(range(14), key=lambda r: state.train.frames[r])
    shortest = min(range(14), key=lambda r: state.train.frames[r])
    others = [r for r in range(14) if r not in (longest, shortest)]
    state.train.targets = list(state.train.targets)
    state.train.targets[longest] = [1, 2] * (state.model.output_length(state.train.frames[longest]) // 2)
    state.train.targets[shortest] = [1]
    assert len(state.train.targets[longest]) >= 30
    group = [[longest, *others[:3]], [shortest, *others[3:6]]]
    expected = gradient(state, group)
    seen = spy(state)
    loop._step(group, state)
    assert len(seen) == 1
    for got, wanted in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    assert state.counters.tokens == sum(len(state.train.targets[r]) for rows in group for r in rows)
    assert state.counters.frames == sum(state.train.frames[r] for rows in group for r in rows)


@pytest.mark.parametrize(("batches", "steps"), [(7, 2), (3, 1), (8, 2)])
def test_F5_the_last_group_steps_with_its_own_divisor(state, monkeypatch, batches, steps):
    plan = [[i] for i in range(batches)]
    monkeypatch.setattr("asr.train.state.plan_batches", lambda *_: plan)
    config = state.recipe.training.model_copy(update={"accumulate": 4})
    state = dataclasses.replace(state, recipe=state.recipe.model_copy(update={"training": config}))
    groups = state.groups(0)
    assert [r for group in groups for rows in group for r in rows] == list(range(batches))
    seen = spy(state)
    for group in groups:
        expected = gradient(state, group)
        loop._step(group, state)
        for got, wanted in zip(seen[-1], expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
        assert all(p.grad is None for p in state.model.parameters()), "nothing leaks into the next group"
    assert len(seen) == steps == state.schedule.step


def test_E1_an_infeasible_utterance_changes_no_gradient(toy, state):
    whole = state.train
    spoilt = dataclasses.replace(whole, targets=list(whole.targets))
    bad = whole.ids.index("train2")
    spoilt.targets[bad] = [1, 1] * 50
    kept = keep_trainable(spoilt, state.recipe, state.model.output_length)
    assert kept.ids == [i for i in whole.ids if i != "train2"]
    assert kept.dropped == {
        "train2": f"100 labels need 199 encoder frames, {whole.frames[bad]} feature frames give "
        f"{state.model.output_length(whole.frames[bad])}"
    }
    others = ("train0", "train1", "train3")
    without = gradient(state, [[whole.ids.index(i) for i in others]])
    state.train = kept
    rows = [kept.ids.index(i) for i in others]
    for a, b in zip(gradient(state, [rows]), without, strict=True):
        assert torch.equal(a, b)


def test_gradients_are_clipped_to_the_norm(state):
    config = state.recipe.training.model_copy(update={"clip": 0.01})
    state.recipe = state.recipe.model_copy(update={"training": config})
    seen = spy(state)
    loop._step([[0, 1]], state)
    assert torch.stack([g.norm() for g in seen[0]]).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert state.counters.grad_norm > 0.01, "the norm before clipping is what is logged"


def poison(state, row):
    """The features of this row are NaN from now on."""
    apply = state.train.cmvn.apply
    bad = state.train.store[state.train.ids[row]].data_ptr()
    state.train.cmvn.apply = lambda x, speaker=None: apply(x, speaker) * (math.nan if x.data_ptr() == bad else 1)


def test_a_step_that_is_not_finite_is_skipped_counted_and_named(state, caplog):
    poison(state, 5)
    before = {k: v.clone() for k, v in state.model.state_dict().items()}
    loop._step([[4], [5]], state)
    for key, value in state.model.state_dict().items():
        assert torch.equal(value, before[key])
    assert (state.counters.skipped, state.counters.bad_steps, state.counters.tokens) == (1, 1, 0)
    assert f"epoch 1, step 1 skipped: the loss of {state.train.ids[5]} is not finite" in caplog.text
    loop._step([[4]], state)
    assert (state.counters.skipped, state.counters.bad_steps) == (1, 0)
    assert math.isfinite(state.counters.loss_sum)
    assert any(not torch.equal(v, before[k]) for k, v in state.model.state_dict().items())


def test_ten_in_a_row_end_the_training(state):
    poison(state, 5)
    for _ in range(9):
        loop._step([[5]], state)
    loop._step([[4]], state)
    for _ in range(9):
        loop._step([[5]], state)
    wanted = (
        rf"10 steps in a row were not finite \(training\.max_nonfinite\), the last by the loss of {state.train.ids[5]};"
    )
    with pytest.raises(AsrError, match=wanted):
        loop._step([[5]], state)


def test_a_gradient_that_is_not_finite_names_the_group(state, caplog):
    """The losses are finite, so that no utterance is more to blame than another."""
    state.model.output.weight.register_hook(lambda gradient: gradient * math.inf)
    loop._step([[4], [5]], state)
    names = " ".join(state.train.ids[4:6])
    assert f"epoch 1, step 1 skipped: the gradient of {names} is not finite" in caplog.text
    assert (state.counters.skipped, state.counters.tokens) == (1, 0)


def test_the_recipe_says_how_many_in_a_row(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.max_nonfinite=1")
    with Run(recipe, False, False) as run:
        state = prepare(recipe, run, World(recipe.training))
        poison(state, 5)
        with pytest.raises(AsrError, match="1 steps in a row were not finite"):
            loop._step([[5]], state)


def test_a_model_that_gives_nan_has_no_dev_per_and_is_never_the_best(toy, tmp_path, monkeypatch, caplog):
    recipe = toy.recipe(tmp_path, "training.schedule={kind: plateau, patience: 0}")
    real = loop.validate

    def validate_(model, data, *more):
        apply = data.cmvn.apply
        bad = data.store[data.ids[1]].data_ptr()
        data.cmvn.apply = lambda x, speaker=None: apply(x, speaker) * (math.nan if x.data_ptr() == bad else 1)
        result = real(model, data, *more)
        data.cmvn.apply = apply
        return result

    monkeypatch.setattr(loop, "validate", validate_)
    loop.train(recipe)
    assert "no dev PER: the output is not finite for dev1" in caplog.text
    assert not (tmp_path / "best.pt").exists()
    assert "no validation was finite: there is no" in caplog.text
    saved = load_checkpoint(tmp_path / "last.pt")["training"]
    assert (saved["schedule"]["best"], saved["schedule"]["bad_epochs"], saved["schedule"]["factor"]) == (math.inf, 0, 1)
    assert (saved["counters"]["best_per"], saved["counters"]["best_epoch"]) == (math.inf, 0)
    assert all(math.isnan(e["dev_per"]) for e in read_log(tmp_path).epochs)


def lacks_memory_cpu(*_):
    return torch.empty(1 << 60)


def lacks_memory_gpu(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("fails", [lacks_memory_cpu, lacks_memory_gpu])
def test_F9_too_little_memory_names_the_batch(state, fails):
    state.model.register_forward_pre_hook(fails)
    ordered = sorted(range(14), key=lambda r: state.train.frames[r])
    rows = [*ordered[:2], ordered[-1]]
    longest, frames = state.train.ids[rows[-1]], state.train.frames[rows[-1]]
    with pytest.raises(AsrError) as error:
        loop._step([rows], state)
    assert str(error.value).startswith(
        f"out of memory in a batch of 3 utterances, {3 * frames} frames with padding; "
        f"the longest: {longest}, {frames / 100:.1f} s; lower training.batch_frames"
    )


def test_other_errors_stay_what_they_are(state):
    def breaks(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    state.model.register_forward_pre_hook(breaks)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        loop._step([[1]], state)


def test_an_epoch_without_a_finite_step_has_no_loss(state):
    assert math.isnan(state.counters.loss)
    poison(state, 5)
    loop._step([[5]], state)
    assert math.isnan(state.counters.loss)
    loop._step([[4]], state)
    assert state.counters.loss > 0
