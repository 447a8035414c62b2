"""asr.recipe_loader: extends, overrides, paths, defaults, and the way back to YAML and plain types."""

import json
from pathlib import Path

import pytest

from asr.errors import RecipeError
from asr.recipe_loader import dump_recipe, load_recipe, recipe_from_dict, recipe_to_dict

BASE = "data: {train: train.jsonl, dev: dev.jsonl}\n"


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def error(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def test_name_exp_and_features_follow_from_the_files(write, tmp_path):
    recipe = load_recipe(write("r/linear.yaml", "data: {train: ../d/train.jsonl, dev: /abs/dev.jsonl}\n"))
    assert recipe.name == "linear"
    assert recipe.exp == tmp_path / "r/exp/linear"
    assert recipe.data.train == tmp_path / "d/train.jsonl"
    assert recipe.data.dev == Path("/abs/dev.jsonl")
    assert recipe.data.features == tmp_path / "d/features"


def test_given_name_exp_and_features_stay(write, tmp_path):
    path = write("x.yaml", "name: mine\nexp: out\ndata: {train: t, dev: d, features: f}\n")
    recipe = load_recipe(path)
    assert (recipe.name, recipe.exp, recipe.data.features) == ("mine", tmp_path / "out", tmp_path / "f")


def test_relative_path_given_from_another_folder(write, tmp_path, monkeypatch):
    write("r/x.yaml", BASE)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("r/x.yaml", ["data.dev=mine/dev.jsonl", "data.test={a: a.jsonl}"])
    assert recipe.data.train == tmp_path / "r/train.jsonl"
    assert recipe.data.dev == tmp_path / "mine/dev.jsonl"
    assert recipe.data.test == {"a": tmp_path / "a.jsonl"}
    assert recipe.exp == tmp_path / "r/exp/x"


def test_extends_merges_mappings_and_replaces_lists(write, tmp_path):
    write("common/base.yaml", BASE + "scoring: {ignore: [a, b]}\ntraining: {epochs: 7, optimiser: {lr: 1e-3}}\n")
    write("mid.yaml", "extends: common/base.yaml\ntraining: {clip: 2}\n")
    recipe = load_recipe(write("leaf.yaml", "extends: mid.yaml\nscoring: {ignore: [NO]}\ntraining: {epochs: 3}\n"))
    assert recipe.training.epochs == 3
    assert recipe.training.clip == 2
    assert recipe.training.optimiser.lr == 1e-3
    assert recipe.scoring.ignore == ["NO"]
    assert recipe.data.train == tmp_path / "common/train.jsonl"
    assert recipe.name == "leaf"


def test_another_kind_replaces_the_inherited_section(write):
    write("base.yaml", BASE + "model: {encoder: {layers: 4, dim: 64, heads: 4, attention: {kind: lsh, rounds: 2}}}\n")
    bilstm = load_recipe(write("a.yaml", "extends: base.yaml\nmodel: {encoder: {kind: bilstm, hidden: 8}}\n"))
    assert recipe_to_dict(bilstm)["model"]["encoder"] == {"kind": "bilstm", "layers": 3, "hidden": 8, "dropout": 0.1}
    linear = load_recipe(write("b.yaml", "extends: base.yaml\nmodel: {encoder: {attention: {kind: linear}}}\n"))
    assert linear.model.encoder.attention.kind == "linear"
    assert linear.model.encoder.dim == 64
    same = load_recipe(write("c.yaml", "extends: base.yaml\nmodel: {encoder: {attention: {kind: lsh}}}\n"))
    assert same.model.encoder.attention.rounds == 2


def test_kind_left_out_is_the_default_or_the_inherited_one(write):
    write("base.yaml", BASE + "training: {schedule: {patience: 4}}\nmodel: {encoder: {kind: bilstm}}\n")
    recipe = load_recipe(write("x.yaml", "extends: base.yaml\nmodel: {encoder: {hidden: 5}}\n"))
    assert (recipe.training.schedule.kind, recipe.training.schedule.patience) == ("plateau", 4)
    assert (recipe.model.encoder.kind, recipe.model.encoder.hidden) == ("bilstm", 5)


def test_extends_in_a_circle_and_missing(write):
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "\nextends: ./a.yaml\n")
    message = error(write("c.yaml", "extends: a.yaml\n"))
    assert message.endswith(
        "b.yaml:2: extends: the files extend each other in a circle: c.yaml → a.yaml → b.yaml → a.yaml"
    )
    assert "m.yaml:2: extends: no such file: " in error(write("m.yaml", "seed: 1\nextends: nope.yaml\n"))
    assert "l.yaml:1: extends: must be the name of one" in error(write("l.yaml", "extends: [a.yaml]\n"))


def test_overrides(write):
    path = write("x.yaml", BASE + "model: {encoder: {attention: {kind: lsh, bucket_size: 8}}}\n")
    recipe = load_recipe(
        path,
        [
            "training.optimiser.lr=1e-3",
            "training.epochs=1e1",
            "scoring.ignore=[NO, '1']",
            "training.optimiser.betas=[.8, .9]",
            "training.epochs=5",
            "name=a=b",
        ],
    )
    assert recipe.training.optimiser.lr == 1e-3
    assert recipe.training.epochs == 5
    assert recipe.scoring.ignore == ["NO", "1"]
    assert recipe.training.optimiser.betas == (0.8, 0.9)
    assert recipe.name == "a=b"
    assert recipe.model.encoder.attention.bucket_size == 8


@pytest.mark.parametrize("order", [1, -1])
def test_overrides_of_a_kind_and_its_keys_in_either_order(write, order):
    path = write("x.yaml", BASE + "model: {encoder: {attention: {kind: linear, chunk: 3}}}\n")
    overrides = ["model.encoder.attention.kind=lsh", "model.encoder.attention.rounds=9"][::order]
    attention = load_recipe(path, overrides).model.encoder.attention
    assert (attention.kind, attention.rounds) == ("lsh", 9)


def kinds(recipe):
    return [mixer.kind for mixer in recipe.model.encoder.mixers]


def test_a_bare_name_is_a_kind(write):
    write("base.yaml", BASE + "model: {encoder: {layers: 1, attention: {kind: lsh, rounds: 2}}, frontend: conv}\n")
    path = write("x.yaml", "extends: base.yaml\nmodel: {encoder: {attention: lsh}}\ntraining: {schedule: cosine}\n")
    recipe = load_recipe(path)
    assert recipe.model.encoder.attention.rounds == 2, "like {kind: lsh}, it keeps what is inherited"
    assert (recipe.model.frontend.kind, recipe.training.schedule.kind) == ("conv", "cosine")
    swapped = load_recipe(path, ["model.encoder=bilstm", "tokens=characters"])
    assert (swapped.model.encoder.kind, swapped.tokens.kind) == ("bilstm", "characters")
    for overrides in (["attention=lsh", "attention.bucket_size=8"], ["attention.bucket_size=8", "attention=lsh"]):
        attention = load_recipe(path, [f"model.encoder.{one}" for one in overrides]).model.encoder.attention
        assert (attention.rounds, attention.bucket_size) == (2, 8)


@pytest.mark.parametrize("base", ["softmax", "linear", "{kind: linear, feature_map: {kind: favor, size: 9}}"])
def test_a_bare_name_for_a_key_that_other_kinds_have_too(write, base):
    """`feature_map` is a section of linear attention and a word in decay."""
    path = write("x.yaml", BASE + f"model: {{encoder: {{attention: {base}}}}}\n")

    def load(*overrides):
        return load_recipe(path, [f"model.encoder.attention{one}" for one in overrides]).model.encoder.attention

    assert load("=linear", ".feature_map=relu").feature_map.kind == "relu"
    assert load("=decay", ".feature_map=relu").feature_map == "relu"
    for overrides in ([".feature_map=favor", ".feature_map.size=4"], [".feature_map.size=4", ".feature_map=favor"]):
        assert load("=linear", *overrides).feature_map.size == 4


def test_hybrid_stacks(write):
    layers = "[{attention: softmax}, {attention: {kind: lsh, rounds: 2}, repeat: 2}, {}]"
    path = write("x.yaml", BASE + f"model: {{encoder: {{attention: linear, layers: {layers}}}}}\n")
    recipe = load_recipe(path)
    assert kinds(recipe) == ["softmax", "lsh", "lsh", "linear"]
    assert load_recipe(write("resolved.yaml", dump_recipe(recipe))) == recipe
    assert recipe_from_dict(json.loads(json.dumps(recipe_to_dict(recipe)))) == recipe
    assert kinds(load_recipe(path, ["model.encoder.attention=lsh"])) == ["softmax", "lsh", "lsh", "lsh"]
    changed = load_recipe(
        path,
        [
            "model.encoder.layers.1.attention.rounds=7",
            "model.encoder.layers.2.attention=lsh",
            "model.encoder.attention=null",
        ],
    )
    assert [getattr(mixer, "rounds", None) for mixer in changed.model.encoder.mixers] == [None, 7, 7, 4]
    assert load_recipe(write("resolved.yaml", dump_recipe(changed))) == changed
    assert kinds(load_recipe(path, ["model.encoder.layers=2"])) == ["linear", "linear"]
    own = write("own.yaml", BASE + "model: {encoder: {layers: [{attention: lsh}]}}\n")
    assert load_recipe(own).model.encoder.attention is None
    assert kinds(load_recipe(own, ["model.encoder.layers=2"])) == ["softmax", "softmax"]


def test_a_list_of_layers_is_replaced_by_another(write):
    write("base.yaml", BASE + "model: {encoder: {layers: [{attention: lsh}, {attention: softmax}]}}\n")
    path = write("x.yaml", "extends: base.yaml\nmodel: {encoder: {layers: [{attention: linear}]}}\n")
    assert kinds(load_recipe(path)) == ["linear"]


@pytest.mark.parametrize(
    "frontend",
    [
        {"kind": "none", "factor": 1, "channels": 64},
        {"kind": "stack", "factor": 3, "channels": 64},
        {"kind": "conv", "factor": 2, "channels": 64},
    ],
)
def test_front_ends_of_older_experiment_folders_load(write, frontend):
    """They hold every key of every kind, whatever it is."""
    values = recipe_to_dict(load_recipe(write("x.yaml", BASE)))
    values["model"]["frontend"] = frontend
    loaded = recipe_from_dict(values).model.frontend
    assert (loaded.kind, loaded.factor) == (frontend["kind"], frontend["factor"])


@pytest.mark.parametrize(
    ("frontend", "message"),
    [
        ("{kind: stack, channels: 8}", "unknown key 'channels' for kind: stack; it belongs to kind: conv"),
        ("{kind: none, factor: 2}", "unknown key 'factor' for kind: none; it belongs to kind: stack or conv"),
        ("{kind: conv, factor: 3}", "model.frontend.factor: must be one of 2, 4, got 3"),
    ],
)
def test_a_front_end_has_its_own_keys(write, frontend, message):
    assert error(write("x.yaml", BASE + f"model: {{frontend: {frontend}}}\n")).endswith(message)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("{block: conformer}", "block: conformer has a convolution; give its kernel"),
        ("{block: conformer, convolution: 5, norm: post}", "block: conformer has its norms where norm: pre puts them"),
        ("{convolution: 4}", "convolution needs an odd kernel"),
        ("{layers: [{attention: softmax}, {attention: lsh}], dim: 90, heads: 4}", "softmax: dim 90 is not a multiple"),
    ],
)
def test_blocks_that_do_not_exist(write, encoder, message):
    assert f"x.yaml:2: model.encoder: {message}" in error(write("x.yaml", BASE + f"model: {{encoder: {encoder}}}\n"))


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=3", ".a=1", ""])
def test_malformed_override(write, text):
    assert error(write("x.yaml", BASE), text).startswith(f"override {text!r}: write key.sub=value")


def test_overrides_can_neither_extend_nor_break_yaml(write):
    path = write("x.yaml", BASE)
    assert error(path, "extends=y.yaml") == "override 'extends=y.yaml': extends stands in a recipe file only"
    assert error(path, "name={").startswith("override 'name={': invalid YAML: ")
    assert error(path, "scoring={ignore: [], ignore: []}") == (
        "override 'scoring={ignore: [], ignore: []}': ignore: given twice, "
        "first at override 'scoring={ignore: [], ignore: []}'"
    )


def test_dump_loads_again_and_is_complete(write, tmp_path):
    path = write(
        "x.yaml",
        BASE + "scoring: {ignore: [NO, '1e4', '012', 'null', '~', '', '1:30', ü, 'a: b', '.5']}\n"
        "training: {optimiser: {lr: 1e-7}, max_minutes: 1e-5}\npublished: {source: 'yes', per: 5}\n",
    )
    recipe = load_recipe(path)
    text = dump_recipe(recipe)
    assert load_recipe(write("elsewhere/recipe.yaml", text)) == recipe
    assert "betas: [0.9, 0.999]\n" in text
    assert f"  train: {tmp_path}/train.jsonl\n" in text
    assert "    attention:\n      kind: softmax\n" in text


def test_plain_types_and_back(write):
    recipe = load_recipe(write("x.yaml", BASE))
    values = json.loads(json.dumps(recipe_to_dict(recipe)))
    assert recipe_from_dict(values) == recipe
    values["model"]["encoder"]["dim"] = "9"
    values["training"]["old"] = 1
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(values, "best.pt")
    assert str(caught.value).splitlines()[0].startswith("best.pt: model.encoder.dim: must be an integer >= 1, got '9'")
    assert "best.pt: training: unknown key 'old'" in str(caught.value)


def test_check_files_reports_every_missing_file(write, tmp_path):
    path = write("x.yaml", BASE + "  \ntokens:\n  lexicon: lex.dict\n")
    write("train.jsonl", "")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, [f"data.test.a={tmp_path}"], check_files=True)
    assert str(caught.value).splitlines() == [
        f"{path}:1: data.dev: no such file: {tmp_path}/dev.jsonl",
        f"override 'data.test.a={tmp_path}': data.test.a: not a file: {tmp_path}",
        f"{path}:4: tokens.lexicon: no such file: {tmp_path}/lex.dict",
    ]
    write("dev.jsonl", "")
    write("lex.dict", "")
    assert load_recipe(path, [f"data.test.a={tmp_path}/dev.jsonl"], check_files=True).name == "x"
