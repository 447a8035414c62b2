"""Evaluation of a small untrained model on noise: the numbers are arbitrary, so they are checked by other routes."""

import io
import json

import numpy as np
import pytest
import soundfile
import torch
from rich.console import Console
from typer.testing import CliRunner

from asr.audio.cmvn import Cmvn
from asr.cli.main import app
from asr.ctc.alignment import error_counts
from asr.ctc.greedy import Token
from asr.data.manifest import Utterance, write_manifest
from asr.data.store import FeatureStore
from asr.data.tokens import build_tokens
from asr.encoder.model import CtcModel
from asr.errors import DataError, RecipeError
from asr.recipe_loader import dump_recipe, load_recipe, recipe_to_dict
from asr.recogniser import Recogniser
from asr.report import evaluate as module
from asr.report.evaluate import evaluate, evaluate_options
from asr.report.results_table import options_table
from asr.train.checkpoint import save_checkpoint
from asr.train.sets import load_set
from asr.train.validate import validate

WORDS = {"ab": "AH0 B", "day": "D EY1", "sea": "S IY1"}
MODEL = (
    "{frontend: {kind: stack, factor: 2},"
    " encoder: {layers: 2, dim: 16, heads: 2, feedforward: 16, attention: ATTENTION}}"
)


@pytest.fixture
def experiment(tmp_path):
    """`experiment(tokens, texts)` writes audio, manifest and a checkpoint; returns the experiment folder."""

    def make(tokens, texts=("ab day", "sea", "day ab ab"), attention="softmax"):
        rng = np.random.default_rng(0)
        utterances = []
        for i, text in enumerate(texts):
            path = tmp_path / f"{i}.wav"
            soundfile.write(path, rng.normal(0, 0.1, 8000 + 1600 * i).astype("float32"), 16000)
            utterances.append(Utterance(f"u{i}", path, (8000 + 1600 * i) / 16000, f"s{i % 2}", text))
        for name in ("train", "dev", "test"):
            write_manifest(tmp_path / f"{name}.jsonl", utterances)
        (tmp_path / "lexicon.txt").write_text("".join(f"{word}  {phones}\n" for word, phones in WORDS.items()))
        path = tmp_path / "r.yaml"
        path.write_text(
            f"data: {{train: train.jsonl, dev: dev.jsonl, test: {{test: test.jsonl}}, workers: 1}}\n"
            f"tokens: {tokens}\nmodel: {MODEL.replace('ATTENTION', attention)}\n"
            "scoring: {bootstrap: 50}\ntraining: {threads: 1}\n"
        )
        recipe = load_recipe(path)
        table = build_tokens(recipe.tokens, utterances)
        store = FeatureStore.build(recipe.data.features, utterances, recipe.features, 1)
        torch.manual_seed(0)
        model = CtcModel(recipe.model, recipe.features.dim, len(table))
        recipe.exp.mkdir(parents=True)
        (recipe.exp / "recipe.yaml").write_text(dump_recipe(recipe))
        content = {
            "recipe": recipe_to_dict(recipe),
            "tokens": table.state(),
            "cmvn": Cmvn.estimate(store, utterances, recipe.features).state_dict(),
            "model": model.state_dict(),
        }
        save_checkpoint(recipe.exp / "best.pt", content)
        return recipe.exp

    return make


PHONES = "{kind: phones, lexicon: lexicon.txt, oov: drop}"


def test_numbers_equal_those_of_validation(experiment):
    exp = experiment(PHONES)
    result = evaluate(exp, sets=["dev"], device="cpu")["dev"]
    recogniser = Recogniser.load(exp)
    recipe = recogniser.recipe
    data = load_set(recipe, "dev", recipe.data.dev, recogniser.tokens, recogniser.cmvn)
    expected = validate(recogniser.model, data, 20000, recogniser.device, recogniser.tokens)
    assert result["rate"] == pytest.approx(expected.per)
    assert result["hypothesis_tokens"] == expected.emitted_tokens > 0
    assert result["blank_share"] == pytest.approx(expected.blank_share)
    assert result["length_ratio"] == pytest.approx(expected.length_ratio)
    assert (result["unit"], result["rules"], result["words"]) == ("PER", ["stress folded"], None)
    assert result["rtf"] == pytest.approx(result["decoding_seconds"] / result["audio_seconds"])
    assert result["audio_seconds"] == pytest.approx(1.8, abs=0.1)


def test_files_hold_the_same_numbers_every_alignment_and_the_confusions(experiment):
    exp = experiment(PHONES)
    results = evaluate(exp, device="cpu")
    assert list(results) == ["test"]  # the recipe has a test set, so dev is not the default
    assert json.loads((exp / "results" / "test.json").read_text()) == results["test"]
    text = (exp / "results" / "test.txt").read_text()
    assert f"PER {results['test']['rate']:.2f} %" in text
    assert "stress folded" in text
    alignments = text[text.index("alignments (PER)") :].splitlines()[1:]
    assert [line.split("\t")[0] for line in alignments] == ["u0", "u1", "u2"]
    for line in alignments:
        reference = [t for t in line.split("\t")[1].split(" ") if not t.startswith("+")]
        assert len(reference) == {"u0": 4, "u1": 2, "u2": 6}[line.split("\t")[0]]


def test_unusable_audio_counts_as_deleted_and_a_word_without_pronunciation_is_left_out(experiment, tmp_path, caplog):
    exp = experiment(PHONES)
    before = evaluate(exp, device="cpu", write=False)["test"]
    (tmp_path / "1.wav").write_bytes(b"not audio")
    lines = (tmp_path / "test.jsonl").read_text().replace("day ab ab", "day unheard")
    (tmp_path / "test.jsonl").write_text(lines)
    result = evaluate(exp, device="cpu", write=False)["test"]
    assert list(result["failed"]) == ["u1"]
    assert list(result["dropped"]) == ["u2"]
    assert "unheard" in result["dropped"]["u2"]
    assert (result["utterances"], result["reference_tokens"]) == (2, 6)
    assert result["deletions"] >= 2
    assert before["utterances"] == 3
    assert "1 utterance failed: u1" in caplog.text


def test_characters_are_also_scored_as_words_against_the_transcript(experiment):
    result = evaluate(experiment("{kind: characters}"), device="cpu")["test"]
    assert result["unit"] == "CER"
    assert (result["words"]["unit"], result["words"]["reference_tokens"]) == ("WER", 6)


def test_unknown_symbol_in_reference_and_hypothesis_is_an_error(experiment, monkeypatch):
    exp = experiment("{kind: phones, lexicon: lexicon.txt, oov: unk}", ("ab unheard",))
    recogniser = Recogniser.load(exp)
    target = [recogniser.tokens.ids[s] for s in ("AH", "B", "<unk>")]
    assert error_counts(target, target, unmatchable=recogniser.tokens.unk).errors == 1
    said = [[Token(i, n, n + 1, 0.0) for n, i in enumerate(target)]]
    monkeypatch.setattr(module, "greedy_decode", lambda *_, **__: said)
    result = module.evaluate(exp, device="cpu", write=False)["test"]
    assert (result["errors"], result["reference_tokens"]) == (1, 3)


def test_best_pronunciation_of_each_word(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(WORDS, "day(2)", "S IY1")
    exp = experiment(PHONES)
    table = Recogniser.load(exp).tokens
    said = [[Token(table.ids[p], n, n + 1, 0.0) for n, p in enumerate(phones.split())] for phones in ("AH B S IY",)]
    monkeypatch.setattr(module, "greedy_decode", lambda log_probs, *_, **__: said * len(log_probs))
    (tmp_path / "one.jsonl").write_text((tmp_path / "test.jsonl").read_text().split("\n")[0] + "\n")  # "ab day"
    first = evaluate(exp, manifests=[tmp_path / "one.jsonl"], device="cpu", write=False)["one"]
    best = evaluate(exp, manifests=[tmp_path / "one.jsonl"], device="cpu", pronunciations="best")["one"]
    assert (first["errors"], best["errors"]) == (2, 0)
    assert best["rules"] == ["stress folded", "best pronunciation of each word"]
    assert "best pronunciation of each word" in (exp / "results" / "one.txt").read_text()


def test_sets_and_manifests(experiment, tmp_path):
    exp = experiment(PHONES)
    assert list(evaluate(exp / "best.pt", sets=["all"], device="cpu", write=False)) == ["dev", "test"]
    assert list(evaluate(exp, manifests=[tmp_path / "train.jsonl"], device="cpu", write=False)) == ["train"]
    with pytest.raises(DataError, match="no set 'tset' in the recipe; there are dev, test"):
        evaluate(exp, sets=["tset"], device="cpu")


def test_scoring_and_test_sets_of_a_recipe_that_was_trained_already(experiment, tmp_path):
    exp = experiment(PHONES)
    (exp / "log.jsonl").write_text('{"event": "end"}\n')
    more = ["data.test.other=" + str(tmp_path / "dev.jsonl"), "scoring.ignore=[AH]", "scoring.pronunciations=best"]
    command = ["compare", str(tmp_path / "r.yaml"), *more, "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert list(row["rates"]) == ["test", "other"]
    assert row["rules"] == ["stress folded", "best pronunciation of each word", "ignored: AH"]
    assert "Counting: stress folded; best pronunciation of each word; ignored: AH." in done.stdout
    assert json.loads((exp / "results" / "test.json").read_text())["reference_tokens"] == 12 - 3


def test_experiment_moved_away_from_its_features(experiment, tmp_path):
    exp = experiment(PHONES)
    before = evaluate(exp, device="cpu", write=False)["test"]
    saved = torch.load(exp / "best.pt", weights_only=True)
    saved.pop("format")
    saved["recipe"]["data"]["features"] = str(tmp_path / "gone" / "features")
    save_checkpoint(exp / "best.pt", saved)
    assert evaluate(exp, device="cpu", write=False)["test"]["errors"] == before["errors"]
    assert not (tmp_path / "gone").exists()


def test_command_prints_table_or_json(experiment):
    exp = experiment(PHONES)
    table = CliRunner().invoke(app, ["evaluate", str(exp), "--set", "dev", "--device", "cpu"])
    assert table.exit_code == 0, table.output
    assert "PER" in table.stdout
    printed = CliRunner().invoke(app, ["evaluate", str(exp), "--json", "--device", "cpu"])
    assert json.loads(printed.stdout)["test"]["unit"] == "PER"


LSH = "{kind: lsh, rounds: 2, bucket_size: 4}"


def test_options_give_a_row_each_and_leave_the_plain_result_alone(experiment):
    exp = experiment(PHONES, attention=LSH)
    plain = evaluate(exp, device="cpu")
    written = (exp / "results" / "test.json").read_text()
    found = evaluate_options(exp, ["attention.rounds=1,2", "attention.rounds=4"], device="cpu")
    assert list(found) == ["as trained", "rounds=1", "rounds=2", "rounds=4"]
    keys = ("rate", "interval", "substitutions", "blank_share")
    for same in ("as trained", "rounds=2"):  # which it was trained with
        assert [found[same]["test"][key] for key in keys] == [plain["test"][key] for key in keys]
    assert (exp / "results" / "test.json").read_text() == written
    assert sorted(path.name for path in (exp / "results").glob("*.json")) == [
        "test.json",
        *(f"test@rounds={n}.json" for n in (1, 2, 4)),
    ]
    assert json.loads((exp / "results" / "test@rounds=4.json").read_text()) == found["rounds=4"]["test"]
    assert found["rounds=4"]["test"]["options"] == ["attention.rounds=4"]
    assert (exp / "results" / "test@rounds=4.txt").read_text().startswith("r with attention.rounds=4 on test")


def log_probs(exp, *options):
    recogniser = Recogniser.load(exp, options=options)
    torch.manual_seed(3)
    return recogniser.log_probs([torch.randn(60, recogniser.recipe.features.dim)])[0]


@pytest.mark.parametrize("attention", [LSH, "softmax"])
def test_softmax_and_lsh_run_on_each_others_weights(experiment, attention):
    """LSH comes down to softmax attention where every pair of frames meets, also under the other's weights."""
    exp = experiment(PHONES, attention=attention)
    trained, exact = log_probs(exp), log_probs(exp, "attention=softmax")
    few, all_pairs = (log_probs(exp, "attention=lsh", f"attention.bucket_size={size}") for size in (2, 64))
    torch.testing.assert_close(all_pairs, exact, atol=1e-4, rtol=0)
    assert (few - exact).abs().max() > 1e-3
    assert torch.equal(trained, exact) == (attention == "softmax")


def test_linear_attention_runs_on_softmax_weights_and_back(experiment):
    exp = experiment(PHONES)
    as_linear = log_probs(exp, "attention.kind=linear")
    saved = torch.load(exp / "best.pt", weights_only=True)
    saved["recipe"]["model"]["encoder"]["attention"] = {"kind": "linear"}
    save_checkpoint(exp / "linear.pt", saved)
    assert torch.equal(log_probs(exp / "linear.pt"), as_linear)
    assert torch.equal(log_probs(exp / "linear.pt", "attention=softmax"), log_probs(exp))


def test_random_features_come_near_softmax_on_its_weights(experiment):
    """Choromanski et al. 2021: FAVOR estimates softmax attention; nothing has to be trained for it."""
    exp = experiment(PHONES)
    exact = log_probs(exp, "attention=softmax")
    favor = ["attention=linear", "attention.feature_map=favor"]
    few, many = (log_probs(exp, *favor, f"attention.feature_map.size={size}") for size in (4, 4096))
    assert (many - exact).abs().mean() < 0.2 * (few - exact).abs().mean()


def test_another_number_of_random_features_and_those_that_were_saved(experiment):
    exp = experiment(PHONES, attention="{kind: linear, feature_map: {kind: favor, size: 4}}")
    trained = log_probs(exp)
    seeds = {seed: log_probs(exp, f"attention.feature_map.seed={seed}") for seed in (0, 5)}
    assert torch.equal(seeds[0], trained), "the directions of the seed it was trained with are those that were saved"
    assert (seeds[5] - trained).abs().max() > 1e-3
    assert (log_probs(exp, "attention.feature_map.size=64") - trained).abs().max() > 1e-3


def test_options_that_make_another_function_are_marked_everywhere(experiment, caplog):
    exp = experiment(PHONES, attention="{kind: linear, causal: true}")
    found = evaluate_options(exp, ["attention.causal=true,false"], device="cpu")
    said = "not what the weights were trained to be: causal: true → false"
    assert [results["test"]["changes"] for results in found.values()] == [[], [], ["causal: true → false"]]
    assert caplog.text.count(said) == 1
    listing = (exp / "results" / "test@causal=false.txt").read_text()
    assert listing.splitlines()[1] == said
    assert said not in (exp / "results" / "test@causal=true.txt").read_text()
    console = Console(width=250, file=io.StringIO())
    console.print(options_table(found))
    table = console.file.getvalue()
    rows = [line.split("│")[1].strip() for line in table.splitlines() if "PER" in line]
    assert rows == ["as trained", "causal=true", "causal=false *"]
    assert f"causal=false *: {said}." in table


def test_options_that_do_not_fit_are_refused_before_anything_is_scored(experiment):
    exp = experiment(PHONES, attention=LSH)
    with pytest.raises(DataError) as caught:
        evaluate_options(exp, ["attention=softmax,linear"], device="cpu")
    assert str(caught.value) == (
        f"{exp}/best.pt: attention=linear needs other weights than were trained: "
        "encoder.blocks.*.mixer.project.weight is (32, 16), has to be (48, 16); "
        "encoder.blocks.*.mixer.project.bias is (32,), has to be (48,)"
    )
    with pytest.raises(DataError, match=r"encoder\.norm\.weight is \(16,\), has to be absent"):
        Recogniser.load(exp, options=["model.encoder.norm=post"])
    with pytest.raises(RecipeError, match="unknown key 'ronds'; did you mean 'rounds'"):
        evaluate_options(exp, ["attention.ronds=8"], device="cpu")
    assert not (exp / "results").exists()


def test_the_command_prints_a_row_for_each_option(experiment):
    exp = experiment(PHONES, attention=LSH)
    arguments = ["evaluate", str(exp), "attention.rounds=1,4", "--device", "cpu", "--set", "dev"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1].strip() for line in result.stdout.splitlines() if "PER" in line]
    assert rows == ["as trained", "rounds=1", "rounds=4"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(result.stdout)["rounds=4"]["dev"]["unit"] == "PER"
