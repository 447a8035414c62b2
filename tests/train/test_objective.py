"""The terms of the loss by hand, and what a recipe may not ask of them."""

from __future__ import annotations

import pytest
import torch

from asr.ctc.loss import ctc_losses
from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.errors import RecipeError
from asr.report.log import read_log
from asr.train import loop
from asr.train.objective import losses, symmetric_divergence
from asr.train.sets import Batch

DEEP = "model.encoder.layers=3"


def model_of(recipe):
    torch.manual_seed(0)
    return CtcModel(ModelConfig.model_validate(recipe.model.model_dump()), 16, 5).eval()


def batch(views=1):
    torch.manual_seed(1)
    features = torch.randn(2 * views, 30, 16)
    return Batch(
        ["a", "b"] * views, features, torch.tensor([30, 21] * views), [30, 21] * views, [[1, 2, 2], [3]] * views, views
    )


def test_plain_ctc_is_plain_ctc(toy, tmp_path):
    recipe = toy.recipe(tmp_path)
    model, one = model_of(recipe), batch()
    found = losses(model, one, recipe, 0)
    assert torch.equal(found.total, ctc_losses(*model(one.features, one.lengths), one.targets))
    assert list(found.parts) == ["ctc"]


def test_inter_ctc_is_the_weighted_sum(toy, tmp_path):
    recipe = toy.recipe(tmp_path, DEEP, "training.inter_ctc={layers: [1, 2], weight: 0.25}")
    model, one = model_of(recipe), batch()
    found = losses(model, one, recipe, 0)

    x, lengths = model.frontend(one.features, one.lengths)
    x = model.encoder._positioned(x, 0)
    by_hand = []
    for block in model.encoder.blocks:
        x = block(x, lengths)
        log_probs = model.output(model.encoder.norm(x)).log_softmax(-1)
        by_hand.append(ctc_losses(log_probs, lengths, one.targets))
    torch.testing.assert_close(found.total, 0.75 * by_hand[2] + 0.25 * (by_hand[0] + by_hand[1]) / 2)
    torch.testing.assert_close(found.parts["ctc"], by_hand[2])
    torch.testing.assert_close(found.parts["inter_ctc"], (by_hand[0] + by_hand[1]) / 2)


@pytest.mark.parametrize(("layers", "middle"), [(2, 1), (3, 1), (9, 4)])
def test_the_middle_layer_where_none_is_named(toy, tmp_path, layers, middle):
    recipe = toy.recipe(tmp_path, f"model.encoder.layers={layers}", "training.inter_ctc={}")
    assert recipe.inter_layers == (middle,)


def test_consistency_is_half_the_symmetric_divergence_of_two_views(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.consistency={weight: 0.3}")
    model, two = model_of(recipe), batch(views=2)
    found = losses(model, two, recipe, 0)
    (a, b), lengths = model(two.features, two.lengths)[0].unflatten(0, (2, -1)), model.output_length
    ctc = ctc_losses(torch.cat([a, b]), torch.tensor([10, 7, 10, 7]), two.targets)
    divergence = []
    for row, n in enumerate((lengths(30), lengths(21))):
        p, q = a[row, :n].exp(), b[row, :n].exp()
        divergence.append(0.5 * ((q * (q / p).log()).sum() + (p * (p / q).log()).sum()))
    torch.testing.assert_close(found.parts["consistency"], torch.stack(divergence))
    torch.testing.assert_close(found.total, (ctc[:2] + ctc[2:]) / 2 + 0.3 * torch.stack(divergence))
    assert found.total.shape == (2,)


def test_no_gradient_goes_through_a_target_or_padding():
    a, b = (torch.randn(1, 4, 3, requires_grad=True) for _ in range(2))
    symmetric_divergence(a.log_softmax(-1), b.log_softmax(-1), torch.tensor([3])).sum().backward()
    # Of ½ KL(q‖softmax a) with q fixed the gradient is ½ (softmax a − q).
    wanted = 0.5 * (a.softmax(-1) - b.softmax(-1)).detach()
    wanted[:, 3] = 0
    torch.testing.assert_close(a.grad, wanted)
    torch.testing.assert_close(b.grad, -wanted)


def test_equal_views_cost_nothing():
    a = torch.randn(2, 5, 4).log_softmax(-1)
    assert symmetric_divergence(a, a, torch.tensor([5, 2])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("training.inter_ctc={layers: [3]}", DEEP), r"training\.inter_ctc\.layers: \[3\] are not inner layers"),
        (("training.inter_ctc={layers: [2, 1]}", DEEP), "rising order"),
        (("training.inter_ctc={}",), "a model of one layer has no inner layers"),
        (("training.inter_ctc={weight: 1}", DEEP), "weight"),
        (("training.consistency={}", "model.encoder.dropout=0"), "both views of an utterance are one"),
        (("training.speeds=[]",), "speeds"),
        (("training.speeds=[1.0, 3.0]",), "speeds"),
        (("training.speeds=[1.1, 1.1]",), "one is given twice"),
        (("training.precision=fp16",), "precision"),
        (("model.encoder.layer_drop=1",), "layer_drop"),
        (("model.encoder={kind: bilstm, layer_drop: 0.1}",), "layer_drop"),
    ],
)
def test_recipes_refused(toy, tmp_path, options, message):
    with pytest.raises(RecipeError, match=message):
        toy.recipe(tmp_path, *options)


def test_the_log_has_the_terms_and_they_add_up(toy, tmp_path):
    options = (
        DEEP, "training.inter_ctc={weight: 0.4}", "training.consistency={weight: 0.5}", "training.epochs=4",
        "training.spec_augment={freq_masks: 2, time_masks: 2}", "training.batch_frames=600",
    )  # fmt: skip
    loop.train(toy.recipe(tmp_path, *options))
    epochs = read_log(tmp_path).epochs
    for epoch in epochs:
        parts = epoch["loss_parts"]
        assert epoch["loss"] == pytest.approx(
            0.6 * parts["ctc"] + 0.4 * parts["inter_ctc"] + 0.5 * parts["consistency"]
        )
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert epochs[0]["frames"] == read_log(tmp_path).start["frames"], "once, however many views there are"
