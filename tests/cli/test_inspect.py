"""`asr inspect` on a model trained for seconds."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from asr.cli.main import app
from asr.train.checkpoint import load_checkpoint, save_checkpoint


def inspect(*args):
    return CliRunner().invoke(app, ["inspect", *map(str, args), "--device", "cpu"])


def test_numbers_and_pictures(tiny_experiment, tmp_path):
    result = inspect(tiny_experiment, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for part in ("tiny hears dev0 (", "a frame is 20 ms", "CTC output", "Attention maps", "normaliser min"):
        assert part in result.stdout
    assert "LSH" not in result.stdout
    found = json.loads((tmp_path / "inspect.json").read_text())
    assert [one["id"] for one in found["utterances"]] == ["dev0", "dev1", "dev2", "dev3"]
    assert found["ctc"]["spikes_per_second"] == pytest.approx(found["ctc"]["reference_per_second"], rel=0.2)
    (layer,) = found["layers"]
    assert (layer["mixer"], layer["map"]["method"], layer["lsh"]) == ("LinearAttention", "values", None)
    assert len(layer["linear"]["normaliser"]["min"]) == len(layer["map"]["softmax_distance"]) == 2
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["dev0-ctc.png", "dev0-layer1.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in tmp_path.glob("*.png"))


def test_named_utterances_with_another_mixer(tiny_experiment, tmp_path):
    options = ["--utterance", "dev2", "--utterance", "dev1", "--head", "2", "--layer", "1", "--out", tmp_path]
    result = inspect(tiny_experiment, "attention={kind: lsh, shared_qk: false, bucket_size: 4}", *options)
    assert result.exit_code == 0, result.output
    assert "recall of top 32" in result.stdout
    found = json.loads((tmp_path / "inspect.json").read_text())
    assert [one["id"] for one in found["utterances"]] == ["dev2", "dev1"]
    assert (found["options"], found["layers"][0]["linear"]) != ([], {})
    names = ["dev1-ctc.png", "dev1-layer1.png", "dev2-ctc.png", "dev2-layer1.png"]
    assert sorted(p.name for p in tmp_path.glob("*.png")) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--utterance", "dev9"], "error: no utterance 'dev9' in dev; its first are dev0, dev1, dev2"),
        (["--layer", "2"], "error: --layer 2: there are layers 1 to 1"),
        (["--head", "0"], "error: --head 0: there are heads 1 to 2"),
        (["--set", "tset"], "error: no set 'tset' in the recipe; there are dev (and all)"),
        (["--set", "all"], "error: --set: name one set; `all` is for asr evaluate"),
    ],
)
def test_what_is_not_there(tiny_experiment, tmp_path, options, message):
    result = inspect(tiny_experiment, *options, "--out", tmp_path / "out")
    assert result.exit_code in (1, 2)
    assert result.stderr.strip() == message
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_numbers(tiny_experiment, tmp_path):
    exp = shutil.copytree(tiny_experiment, tmp_path / "exp")
    saved = load_checkpoint(exp / "best.pt")
    saved["model"]["output.bias"][1] = torch.nan
    save_checkpoint(exp / "best.pt", saved)
    result = inspect(exp)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {exp}: 1 values of output.bias are NaN or infinite")
