"""Every shipped recipe loads, is shown in full, builds a model that runs; models of a table differ in that alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from asr.audio.fbank import fbank
from asr.cli import main
from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.recipe_loader import load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
OTHER = {"copy"}  # no speech: tests/tools/test_copy_task.py
SHIPPED = sorted(
    path
    for pattern in ("*/*.yaml", "*/mixers/*.yaml")
    for path in RECIPES.glob(pattern)
    if path.relative_to(RECIPES).parts[0] not in OTHER
)
TOKENS = 42

each = pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(RECIPES).with_suffix("").as_posix())


def test_all_recipes_are_found():
    corpora = {path.parent.name for path in RECIPES.glob("*/run.sh")} - OTHER
    assert {"an4", "demo", "digits", "librispeech"} <= corpora <= {path.parent.name for path in SHIPPED}


@each
def test_half_a_second_of_noise(path):
    recipe = load_recipe(path)
    samples = 0.1 * torch.randn(recipe.features.sample_rate // 2, generator=torch.Generator().manual_seed(0))
    features = fbank(samples, recipe.features)
    model = CtcModel(recipe.model, recipe.features.dim, TOKENS).eval()
    with torch.inference_mode():
        log_probs, lengths = model(features[None], torch.tensor([len(features)]))
    frames = model.output_length(len(features))
    assert lengths.tolist() == [frames]
    assert frames >= 10  # enough for the phones of half a second
    assert log_probs.shape == (1, frames, TOKENS)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, frames))


@each
def test_show_prints_what_loads_as_the_same_recipe(path, tmp_path):
    result = CliRunner().invoke(main.app, ["show", str(path)])
    assert result.exit_code == 0, result.output
    again = tmp_path / "recipe.yaml"
    again.write_text(result.stdout, "utf-8")
    assert load_recipe(again) == load_recipe(path)


@pytest.mark.parametrize("names", ["digits/*", "librispeech/*", "an4/paper*"])
def test_recipes_of_a_table_differ_in_the_encoder_only(names):
    def shared(recipe: Recipe) -> dict:
        rest = recipe.model_dump(exclude={"name", "exp", "model", "published"})
        if names == "an4/paper*":  # as many epochs as an hour allows each
            assert rest["training"].pop("max_minutes") == 60
            rest["training"].pop("epochs")
        return rest | {"frontend": recipe.model.frontend}

    recipes = [load_recipe(path) for path in RECIPES.glob(f"{names}.yaml")]
    assert len(recipes) >= 5  # the base among them
    assert all(shared(recipe) == shared(recipes[0]) for recipe in recipes)
    encoders = [recipe.model.encoder for recipe in recipes]
    kinds = {encoder.kind if encoder.kind == "bilstm" else encoder.mixers[0].kind for encoder in encoders}
    assert kinds == {"softmax", "lsh", "linear", "bilstm"}


def test_mixers_on_an4_have_one_size_and_one_training():
    recipes = [load_recipe(path) for path in (RECIPES / "an4/mixers").glob("*.yaml")]
    sizes = {recipe.name: CtcModel(recipe.model, recipe.features.dim, TOKENS).parameter_count for recipe in recipes}
    assert len(sizes) >= 20
    assert all(abs(size / sizes["softmax"] - 1) < 0.03 for size in sizes.values()), sizes
    shared = [recipe.model_dump(exclude={"name", "exp", "model"}) for recipe in recipes]
    assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize("corpus", ["an4", "librispeech"])
def test_the_papers_encoder_on_other_corpora(corpus):
    """Same sizes as in recipes/wsj, which follows the paper's section 4.3; AN4 has rotary positions to learn at all."""
    wsj = load_recipe(RECIPES / "wsj/base.yaml").model.model_dump()
    model = load_recipe(RECIPES / corpus / ("paper.yaml" if corpus == "an4" else "base.yaml")).model.model_dump()
    if corpus == "an4":
        assert model["encoder"].pop("positions") == "rotary"
        wsj["encoder"].pop("positions")
    assert model == wsj
