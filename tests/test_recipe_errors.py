"""asr.recipe_errors: every mistake is one line with file, line, key path and what to write."""

import pytest

from asr import recipe_errors
from asr.errors import RecipeError
from asr.recipe_loader import load_recipe

BASE = "data: {train: train.jsonl, dev: dev.jsonl}\n"
LR, EPOCHS = "training.optimiser.lr", "training.epochs"


@pytest.fixture
def load(tmp_path):
    """`load(text)` is the recipe, or the error's text with the folder taken off."""

    def load(text, *overrides):
        path = tmp_path / "x.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_recipe(path, overrides)
        except RecipeError as error:
            return str(error).replace(f"{tmp_path}/", "")

    return load


def as_file(key, text):
    """A recipe with one key set, on line 4 at the deepest, and the line of that key."""
    *sections, last = key.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(sections)]
    return BASE + "\n".join([*lines, f"{'  ' * len(sections)}{last}: {text}"]) + "\n", len(sections) + 2


REFUSED = [
    ("1_000", "'1_000'; write 1000"),
    ("012", "'012'; write 12"),
    ("-007", "'-007'; write -7"),
    ("1:30", "'1:30'; write one decimal number, without ':'"),
    ("'0.1'", "the quoted string '0.1'; write 0.1 without quotes"),
    ("null", "null; leave the key out to get its default"),
    ("", "nothing; leave the key out to get its default"),
    (".inf", "'.inf'; write a finite number"),
    (".nan", "'.nan'; write a finite number"),
    ("1e999", "1e999; write a finite number"),
    ("true", "true"),
    ("nine", "'nine'"),
    ("[1]", "a list of 1"),
    ("{a: 1}", "a mapping"),
    ("0", "0"),
    ("-3", "-3"),
]


@pytest.mark.parametrize("text", ["1e-4", ".5", "1e4", "3", "0.5e-3"])
def test_I1_numbers_for_a_float_key(load, text):
    recipe, _ = as_file(LR, text)
    assert load(recipe).training.optimiser.lr == float(text)
    assert load(BASE, f"{LR}={text}").training.optimiser.lr == float(text)


@pytest.mark.parametrize(("text", "expected"), [("1e4", 10000), ("3", 3), ("2.0", 2), ("+5", 5)])
def test_I1_numbers_for_an_integer_key(load, text, expected):
    got = [load(as_file(EPOCHS, text)[0]).training.epochs, load(BASE, f"{EPOCHS}={text}").training.epochs]
    assert got == [expected, expected]
    assert all(type(value) is int for value in got)


@pytest.mark.parametrize(("text", "got"), REFUSED)
@pytest.mark.parametrize(("key", "due"), [(LR, "a number > 0"), (EPOCHS, "an integer >= 1")])
def test_I1_refused_with_key_value_and_line(load, key, due, text, got):
    recipe, line = as_file(key, text)
    assert load(recipe) == f"x.yaml:{line}: {key}: must be {due}, got {got}"
    override = f"{key}={text}"
    assert load(BASE, override) == f"override {override!r}: {key}: must be {due}, got {got}"


@pytest.mark.parametrize("text", ["1e-4", "1.5", ".5"])
def test_I1_fractions_for_an_integer_key(load, text):
    recipe, line = as_file(EPOCHS, text)
    assert load(recipe) == f"x.yaml:{line}: {EPOCHS}: must be an integer >= 1, got {text}"


def test_I1_norway_stays_a_string(load):
    assert load(BASE + "scoring: {ignore: [NO, ON, yes, y]}\n").scoring.ignore == ["NO", "ON", "yes", "y"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("training.optimiser.learnig_rate", "training.optimiser: unknown key 'learnig_rate'; did you mean 'lr'?"),
        ("training.epoch", "training: unknown key 'epoch'; did you mean 'epochs'?"),
        ("training.lr", "training: unknown key 'lr'; it belongs under training.optimiser"),
        ("lr", "unknown key 'lr'; it belongs under training.optimiser"),
        ("learning_rate", "unknown key 'learning_rate'; it belongs under training.optimiser as 'lr'"),
        ("layers", "unknown key 'layers'; it belongs under model.encoder"),
        ("features.dim", "features: unknown key 'dim'; it belongs under model.encoder (kind: transformer)"),
        ("tokens.size", "tokens: unknown key 'size' for kind: phones; it belongs to kind: subwords"),
        (
            "model.encoder.attention.rounds",
            "model.encoder.attention: unknown key 'rounds' for kind: softmax; it belongs to kind: lsh",
        ),
        ("model.bucket_sze", "model: unknown key 'bucket_sze'; did you mean model.encoder.attention.bucket_size?"),
        ("model.xyzzy", "model: unknown key 'xyzzy'; the keys here are frontend, encoder"),
        ("<<", "unknown key '<<'; the keys here are name, seed, exp, data, features, tokens"),
    ],
)
def test_I3_unknown_key(load, key, message):
    recipe, line = as_file(key, "3")
    assert load(recipe).startswith(f"x.yaml:{line}: {message}")
    assert "\n" not in load(recipe)
    assert load(BASE, f"{key}=3").startswith(f"override '{key}=3': {message}")


def test_I3_the_same_key_twice(load):
    assert load(BASE + "training:\n  epochs: 1\n  clip: 1\n  epochs: 2\n") == (
        "x.yaml:5: training.epochs: given twice, first at x.yaml:3"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE + "training:\n\tepochs: 1\n", "x.yaml:3: invalid YAML: a tab where YAML wants spaces"),
        (
            BASE + "training:\n  epochs: 1\n    clip: 1\n",
            "x.yaml:4: invalid YAML: a key where none may stand: it is ind",
        ),
        (BASE + "name: a: b\n", "x.yaml:2: invalid YAML: a key where none may stand"),
        (BASE + "training:\n    epochs: 1\n  clip: 1\n", "x.yaml:4: invalid YAML: indented as no line before it"),
        (BASE + "training: {epochs: 1\n\n", "x.yaml:2: invalid YAML: a bracket that is not closed"),
        (BASE + "name: 'x\n\n", "x.yaml:2: invalid YAML: a quote that is not closed"),
        ("data: {train:a, dev: b}\n", "x.yaml:1: data.train: is required and missing"),
        ("", "x.yaml:1: the file is empty"),
        ("- data\n- model\n", "x.yaml:1: a list at the top"),
    ],
)
def test_I3_slips_of_yaml(load, text, message):
    assert load(text).startswith(message)
    assert "\n" not in load(text) or "; a colon wants a space after it" in load(text)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (
            "model.encoder.kind",
            "trnsformer",
            "one of transformer, bilstm, lstm, got 'trnsformer'; did you mean 'transformer'?",
        ),
        ("training.schedule.kind", "null", "one of constant, plateau, step, cosine, noam, one_cycle, got null"),
        ("features.cmvn", "globl", "one of none, utterance, speaker, global, got 'globl'; did you mean 'global'?"),
        ("training.tensorboard", "yes", "true or false, got 'yes'; write true"),
        ("training.tensorboard", "0", "true or false, got 0; write false"),
        ("training.max_minutes", "soon", "a number > 0 or null, got 'soon'"),
        ("model.encoder.dropout", "1", "a number >= 0 and < 1, got 1"),
        ("name", "5", "a string, got 5; put it in quotes: '5'"),
        ("data.dev", "5", "a path, got 5; put it in quotes: '5'"),
        ("data.dev", "null", "a path, got null"),
        ("data.test", "[a]", "a mapping, got a list of 1"),
        ("data.test.a", "[b]", "a path, got a list of 1"),
        (
            "training",
            "",
            "a mapping, got nothing; indent what belongs to it, or leave the key out to get its default",
        ),
        ("model.encoder", "5", "a mapping, got 5"),
        ("training.optimiser.betas", "[.9]", "a list of 2 numbers, got a list of 1"),
        ("training.optimiser.betas", "[.9, .9, .9]", "a list of 2 numbers, got a list of 3"),
        ("training.optimiser.betas", ".9", "a list of 2 numbers, got .9"),
        ("published", "5", "a mapping or null, got 5"),
    ],
)
def test_wrong_values(load, key, text, message):
    override = f"{key}={text}"
    assert load(BASE, override) == f"override {override!r}: {key}: must be {message}"


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        (LR, "0,001", "write 0.001"),
        ("model.encoder.dropout", "10%", "write 0.1"),
        ("training", "epochs:3", "a key, a colon, a space and a value are due"),
        ("training", "epochs = 3", "a key, a colon, a space and a value are due"),
        ("training", "[epochs]", "write its keys without '-' before them"),
        ("scoring.ignore", "SIL", "write [SIL]"),
        ("data.test", "test.jsonl", "write {test: test.jsonl}"),
        ("model.encoder.attention", "mamba", "here that is {kind: ssm, selective: true}"),
        ("model.encoder.attention", "Perfomer", "here that is {kind: linear, feature_map: favor}"),
        ("model.encoder", "conformer", "here that is {kind: transformer, block: conformer, convolution: 31}"),
        ("tokens", "bpe", "here that is {kind: subwords, model: bpe}"),
        ("tokens", "chars", "did you mean 'characters'?"),
    ],
)
def test_what_to_write_instead(load, key, text, hint):
    assert load(BASE, f"{key}={text}").endswith(f"; {hint}")


def test_every_usual_name_is_answered_with_what_a_recipe_takes(load):
    for name, here in recipe_errors._USUAL_KINDS.items():
        places = ("model.encoder.attention", "model.encoder", "tokens")
        (place,) = [place for place in places if f"here that is {here}" in str(load(BASE, f"{place}={name}"))]
        assert not isinstance(load(BASE, f"{place}={here}"), str)


def test_an_override_of_an_item_that_the_list_does_not_have(load):
    text = BASE + "model: {encoder: {layers: [{attention: softmax}, {attention: lsh}]}}\n"
    assert load(text, "model.encoder.layers.2.repeat=3") == (
        "override 'model.encoder.layers.2.repeat=3': no item 2 in the list, which has 2, counted from 0"
    )


def test_a_seed_larger_than_generators_take(load):
    assert load(BASE + f"seed: {2**70}\n").startswith("x.yaml:2: seed: must be an integer >= 0 and < ")
    assert load(BASE + f"seed: {2**32 - 1}\n").seed == 2**32 - 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("attention: sofmax", ".attention.kind: must be one of softmax, "),
        ("attention: {kind: lsh, ronds: 2}", ".attention: unknown key 'ronds'; did you mean 'rounds'?"),
        ("attention: {kind: softmax, rounds: 2}", ".attention: unknown key 'rounds' for kind: softmax; it belongs to "),
        ("attention: {kind: lsh, rounds: 0}", ".attention.rounds: must be an integer >= 1 and <= 64, got 0"),
        ("attention: {rounds: 2}", ".attention: kind is required and missing; it is one of softmax, "),
        ("atention: lsh", ": unknown key 'atention'; did you mean 'attention'?"),
        ("repeat: 0", ".repeat: must be an integer >= 1, got 0"),
        ("softmax", ": must be a mapping, got 'softmax'; write {attention: softmax}"),
    ],
)
def test_mistakes_in_a_list_of_layers(load, entry, message):
    text = f"model:\n  encoder:\n    layers:\n      - attention: softmax\n      - {entry}\n"
    assert load(BASE + text).startswith(f"x.yaml:6: model.encoder.layers.1{message}")
    assert "\n" not in load(BASE + text)


@pytest.mark.parametrize(
    ("value", "got"),
    [("nine", "'nine'"), ("0", "0"), ("[]", "a list of 0"), ("{}", "a mapping"), ("{a: 1}", "a mapping")],
)
def test_layers_are_a_number_or_a_list(load, value, got):
    expected = f"x.yaml:4: model.encoder.layers: must be an integer >= 1 or a list, got {got}"
    assert load(as_file("model.encoder.layers", value)[0]) == expected
    text = BASE + "model: {encoder: {layers: [{attention: lsh}]}}\n"
    assert load(text, f"model.encoder.layers={value}").endswith(f"must be an integer >= 1 or a list, got {got}")


def test_an_attention_that_no_layer_has_is_refused(load):
    text = BASE + "model: {encoder: {attention: lsh, layers: [{attention: softmax}]}}\n"
    assert load(text).startswith("x.yaml:2: model.encoder: attention: no layer has it")
    assert load(BASE, "model.encoder.attention=null").endswith(
        "attention: null fits only a list of layers in which every entry names its own"
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "rely",
            ".feature_map.kind: must be one of elu, relu, identity, exp, square, favor, hedgehog, got 'rely'; did you "
            "mean 'relu'?",
        ),
        ("{kind: relu, redraw: 3}", ".feature_map: unknown key 'redraw' for kind: relu; it belongs to kind: favor"),
        ("{kind: favor, size: 0}", ".feature_map.size: must be an integer >= 1, got 0"),
        ("identity", ": feature_map: identity gives weights of both signs; it needs normaliser: output"),
    ],
)
def test_wrong_feature_map(load, section, message):
    key = "model.encoder.attention"
    override = f"{key}={{kind: linear, feature_map: {section}}}"
    assert load(BASE, override) == f"override {override!r}: {key}{message}"


def test_wrong_item_of_a_list(load):
    assert load(BASE + "scoring:\n  ignore:\n    - a\n    - 7\n") == (
        "x.yaml:5: scoring.ignore.1: must be a string, got 7; put it in quotes: '7'"
    )


def test_rules_between_keys_name_the_section(load):
    assert load(BASE + "model:\n  encoder:\n    dim: 190\n    heads: 4\n") == (
        "x.yaml:3: model.encoder: dim 190 is not a multiple of heads 4"
    )
    assert load(BASE, "features.hop_ms=50").startswith(
        "override 'features.hop_ms=50': features: hop_ms must not exceed"
    )


def test_missing_keys(load):
    assert load("name: x\ndata:\n  train: a\n") == "x.yaml:2: data.dev: is required and missing"
    assert load("name: x\n") == "x.yaml:1: data: is required and missing"


def test_an_empty_path_is_not_a_folder(load):
    assert load(BASE, "data.dev=''") == "override \"data.dev=''\": data.dev: an empty path"


def test_one_line_for_each_mistake(load):
    text = BASE + "training:\n  epochs: x\n  optimizer: {}\nsead: 3\n"
    assert sorted(load(text).splitlines()) == [
        "x.yaml:3: training.epochs: must be an integer >= 1, got 'x'",
        "x.yaml:4: training: unknown key 'optimizer'; did you mean 'optimiser'?",
        "x.yaml:5: unknown key 'sead'; did you mean 'seed'?",
    ]
