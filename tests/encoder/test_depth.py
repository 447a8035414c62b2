"""Blocks and branches left out in training, and what comes out after inner layers."""

from __future__ import annotations

import pytest
import torch

from asr.encoder.config import ModelConfig
from asr.encoder.depth import StochasticDepth, passed_by
from asr.encoder.model import CtcModel

ENCODERS = {
    "pre": {"kind": "transformer", "layers": 3, "dim": 8, "heads": 2, "feedforward": 16, "convolution": 3},
    "post": {"kind": "transformer", "layers": 3, "dim": 8, "heads": 2, "feedforward": 16, "norm": "post"},
    "bilstm": {"kind": "bilstm", "layers": 3, "hidden": 4},
    "lstm": {"kind": "lstm", "layers": 3, "hidden": 4},
}
LENGTHS = torch.tensor([9, 5])


def build(name, **more):
    torch.manual_seed(0)
    return CtcModel(ModelConfig.model_validate({"encoder": ENCODERS[name] | more}), 6, 4)


def x():
    return torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(1))


def test_a_branch_is_left_out_or_grows_and_its_expectation_is_itself():
    depth = StochasticDepth(0.25).train()
    ones = torch.ones(20000, 1, 2)
    y = depth(ones)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert torch.equal(y[..., 0], y[..., 1]), "an utterance is one draw"
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert depth.eval()(ones) is ones


def test_the_share_grows_with_the_depth():
    assert StochasticDepth.linear(0.4, 4) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_how_often_a_block_is_passed_by():
    torch.manual_seed(0)
    assert sum(passed_by(0.3) for _ in range(5000)) == pytest.approx(1500, abs=150)


@pytest.mark.parametrize("name", ["pre", "post"])
def test_off_is_off_bit_for_bit_and_evaluation_never_leaves_anything_out(name):
    plain, off = build(name).train(), build(name, layer_drop=0.0, stochastic_depth=0.0).train()
    torch.manual_seed(5)
    wanted = plain(x(), LENGTHS)[0]
    torch.manual_seed(5)
    assert torch.equal(off(x(), LENGTHS)[0], wanted)
    assert torch.equal(
        build(name, layer_drop=0.9, stochastic_depth=0.9).eval()(x(), LENGTHS)[0], build(name).eval()(x(), LENGTHS)[0]
    )


def test_a_block_passed_by_changes_nothing_and_gets_no_gradient():
    model = build("pre", layer_drop=0.6, dropout=0.0).train()
    for seed in range(20):
        torch.manual_seed(seed)
        gone = [float(torch.rand(())) < 0.6 for _ in range(3)]
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        model(x(), LENGTHS)[0].square().sum().backward()
        grads = [next(block.parameters()).grad is None for block in model.encoder.blocks]
        assert grads == gone


def test_stochastic_depth_leaves_out_branches_of_single_utterances():
    model = build("pre", stochastic_depth=0.5, dropout=0.0).train()
    outputs = {str(model(x(), LENGTHS)[0][1, 0].tolist()) for _ in range(20)}
    assert len(outputs) > 5


@pytest.mark.parametrize("name", ENCODERS)
def test_after_an_inner_layer_comes_what_a_shorter_stack_would_give(name):
    model = build(name).eval()
    log_probs, lengths = model(x(), LENGTHS, (1, 3))
    assert log_probs.shape == (2, 2, 9, 4)
    assert lengths.tolist() == [9, 5]
    whole = model(x(), LENGTHS)[0]
    assert torch.equal(log_probs[1], whole)
    shorter = build(name, layers=1).eval()
    weights = {k: v for k, v in model.state_dict().items() if k in shorter.state_dict()}
    shorter.load_state_dict(weights)
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(log_probs[0, row, :n], shorter(x(), LENGTHS)[0][row, :n])
    assert model(x()[:, :0], torch.tensor([0, 0]), (1, 3))[0].shape == (2, 2, 0, 4)
