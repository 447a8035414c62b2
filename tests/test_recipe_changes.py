"""asr.recipe_changes: options that leave a trained model what it is, and those that make another function of it."""

import pytest

from asr.recipe_changes import changes
from asr.recipe_loader import load_recipe
from asr.recipe_options import with_options


@pytest.fixture
def changed(tmp_path):
    """`changed(attention, *options)`: the changes to a model that was trained with that mixer."""

    def changed(attention, *options):
        path = tmp_path / "x.yaml"
        path.write_text(f"data: {{train: a, dev: b}}\nmodel: {{encoder: {{layers: 2, attention: {attention}}}}}\n")
        recipe = load_recipe(path)
        return changes(recipe.model, with_options(recipe, options, "best.pt").model)

    return changed


LINEAR_CAUSAL = "{kind: linear, causal: true, chunk: 7}"


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("lsh", ["attention.rounds=64", "attention.bucket_size=8", "attention.seed=3"]),
        ("lsh", ["attention=softmax"]),  # the limit of many rounds
        ("softmax", ["attention=lsh"]),
        ("{kind: lsh, causal: true}", ["attention=softmax"]),
        ("softmax", ["attention.implementation=materialised"]),
        ("softmax", ["attention={kind: linear, feature_map: favor}"]),  # which estimates softmax
        ("{kind: linear, feature_map: favor}", ["attention.feature_map.size=512", "attention.feature_map.seed=1"]),
        (LINEAR_CAUSAL, ["attention.chunk=32"]),
        ("retention", ["attention.chunk=32"]),
        ("{kind: ssm, selective: true}", ["attention.chunk=32"]),
    ],
)
def test_the_same_function_computed_otherwise(changed, attention, options):
    assert changed(attention, *options) == []


@pytest.mark.parametrize(
    ("attention", "options", "lines"),
    [
        ("softmax", ["attention.causal=true"], ["causal: false → true"]),
        (LINEAR_CAUSAL, ["attention.causal=false", "attention.chunk=64"], ["causal: true → false"]),
        ("softmax", ["attention.window=[8, 8]"], ["window: null → [8, 8]"]),
        ("softmax", ["attention.chunk_frames=16"], ["chunk_frames: null → 16"]),
        ("{kind: softmax, window: [4, 4]}", ["attention=lsh"], ["attention: softmax → lsh", "window: [4, 4] → null"]),
        ("softmax", ["attention=linear"], ["attention: softmax → linear"]),
        (
            "lsh",
            ["attention={kind: softmax, shared_qk: false}"],
            ["attention: lsh → softmax", "shared_qk: true → false"],
        ),
        ("linear", ["attention.feature_map=relu"], ['feature_map: {"kind": "elu"} → {"kind": "relu"}']),
        ("softmax", ["model.encoder.positions=none"], ["positions: sinusoidal → none"]),
        ("softmax", ["model.frontend=stack"], ["frontend.kind: none → stack"]),
        ("lstm", ["model.encoder.heads=3"], ["heads: 6 → 3"]),
    ],
)
def test_another_function_of_the_same_weights(changed, attention, options, lines):
    assert changed(attention, *options) == lines


def test_another_map_than_the_one_that_estimates_softmax(changed):
    (line,) = changed("{kind: linear, feature_map: favor}", "attention.feature_map=elu")
    assert line.startswith('feature_map: {"kind": "favor"')
    assert line.endswith('→ {"kind": "elu"}')


def test_layers_that_change_alike_are_one_line(changed):
    hybrid = ["model.encoder.layers=[{attention: {kind: softmax, causal: true}}, {attention: linear}]"]
    assert changed("softmax", *hybrid, "model.encoder.attention=null") == [
        "causal: false → true",
        "attention: softmax → linear",
    ]
