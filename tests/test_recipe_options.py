"""asr.recipe_options: which keys a trained model's options reach, and what a swapped mixer keeps."""

import pytest

from asr.errors import RecipeError
from asr.recipe_loader import load_recipe
from asr.recipe_options import combinations, with_options


@pytest.fixture
def mixers(tmp_path):
    """`mixers(encoder, *options)`: what the layers of a recipe have with one combination of options."""

    def mixers(encoder, *options):
        path = tmp_path / "x.yaml"
        path.write_text(f"data: {{train: train.jsonl, dev: dev.jsonl}}\nmodel: {{encoder: {encoder}}}\n")
        return with_options(load_recipe(path), options, "best.pt").model.encoder.mixers

    return mixers


def test_every_combination_of_values():
    assert combinations(["attention.rounds=1,2", "attention.bucket_size=8", "attention.rounds=2, 4"]) == [
        ("attention.rounds=1", "attention.bucket_size=8"),
        ("attention.rounds=2", "attention.bucket_size=8"),
        ("attention.rounds=4", "attention.bucket_size=8"),
    ]
    assert combinations(["attention.window=[1, 2],[3,4]", "attention={kind: lsh, rounds: 2},softmax"]) == [
        (window, kind)
        for window in ("attention.window=[1, 2]", "attention.window=[3,4]")
        for kind in ("attention={kind: lsh, rounds: 2}", "attention=softmax")
    ]


@pytest.mark.parametrize("option", ["training.epochs=3", "attention", "=3", "attn.rounds=2"])
def test_what_is_no_option_of_a_trained_model(option):
    with pytest.raises(RecipeError, match=f"^option '{option}': "):
        combinations([option])


@pytest.mark.parametrize("key", ["model.encoder.dropout", "model.encoder.layer_drop", "attention.feature_map.redraw"])
def test_what_only_training_uses_is_no_option(key):
    with pytest.raises(RecipeError, match=f"^option '{key}=0': .* works in training only"):
        combinations([f"{key}=0"])


HYBRID = "{layers: [{attention: softmax}, {attention: {kind: lsh, rounds: 2}}, {}], attention: linear}"


def test_a_key_reaches_the_layers_that_have_it(mixers):
    assert [getattr(mixer, "rounds", None) for mixer in mixers(HYBRID, "attention.rounds=8")] == [None, 8, None]
    assert [mixer.causal for mixer in mixers(HYBRID, "attention.causal=true")] == [True, True, True]
    assert [mixer.kind for mixer in mixers(HYBRID, "attention=lsh")] == ["lsh"] * 3
    assert [m.kind for m in mixers(HYBRID, "model.encoder.layers.0.attention=linear")] == ["linear", "lsh", "linear"]


def test_a_swapped_mixer_keeps_what_both_kinds_have(mixers):
    one = "{layers: 1, attention: {kind: lsh, causal: true, rounds: 2}}"
    (mixer,) = mixers(one, "attention.kind=softmax")
    assert (mixer.kind, mixer.causal, mixer.shared_qk) == ("softmax", True, True)
    (mixer,) = mixers(one, "model.encoder.attention={kind: softmax, causal: false}")
    assert (mixer.kind, mixer.causal, mixer.shared_qk) == ("softmax", False, True)
    (mixer,) = mixers("{layers: 1, attention: {kind: lightning, chunk: 32}}", "attention=linear")
    assert mixer.chunk == 64, "how the old one was computed says nothing about the new one"
    for options in (["attention.rounds=8", "attention=lsh"], ["attention=lsh", "attention.rounds=8"]):
        (mixer,) = mixers("{layers: 1, attention: softmax}", *options)
        assert (mixer.kind, mixer.rounds, mixer.shared_qk) == ("lsh", 8, False)
        (mixer,) = mixers(one, *options)
        assert (mixer.kind, mixer.rounds, mixer.causal) == ("lsh", 8, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "attention.rounds=8",
            "attention: unknown key 'rounds' for kind: softmax; it belongs to kind: lsh",
        ),
        ("attention=sofmax", "model.encoder.attention.kind: must be one of softmax, "),
        ("attention=", "model.encoder: attention: null fits only a list of layers"),
        ("model.encoder.layer=1", "model.encoder: unknown key 'layer'; did you mean 'layers'?"),
        ("attention.causal=yes", "model.encoder.attention.causal: must be true or false, got 'yes'; write true"),
    ],
)
def test_mistakes(mixers, option, message):
    with pytest.raises(RecipeError) as caught:
        mixers("{attention: softmax}", option)
    assert message in str(caught.value)
    assert str(caught.value).startswith("override 'model.encoder.")
