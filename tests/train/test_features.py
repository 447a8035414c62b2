"""`asr features`: what training and evaluation read, computed ahead of them in shards."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from asr.cli.main import app
from asr.data import store_parts
from asr.train import loop


@pytest.fixture
def features(toy, tmp_path, monkeypatch):
    """Run the command on the toy recipe, whose training set has several parts here."""
    monkeypatch.setattr(store_parts, "PART_SECONDS", 3.0)

    def run(*more):
        return CliRunner().invoke(app, ["features", str(toy.file), f"data.features={tmp_path / 'f'}", *more])

    return run


def test_shards_are_what_a_training_needs(toy, tmp_path, features, capsys):
    options = ("training.speeds=[0.9,1.0]", "features.dither=1", f"data.test.again={toy.folder / 'dev.jsonl'}")
    first = features(*options, "--shard", "2/2")
    assert first.exit_code == 0, first.output
    assert first.stdout.splitlines() == [
        "train: 2 of 4 parts",
        "train at speed 0.9: 2 of 4 parts",
        "dev: 0 of 1 part",
        "again: 0 of 1 part",
    ]
    second = features(*options, "--shard", "1/2")
    assert second.stdout.splitlines() == [
        "train: 4 of 4 parts",
        "train at speed 0.9: 4 of 4 parts",
        "dev: 1 of 1 part",
        "again: 1 of 1 part",
    ]
    assert features(*options).stderr == "", "nothing is left to do"
    recipe = toy.recipe(tmp_path / "exp", f"data.features={tmp_path / 'f'}", *options, "training.epochs=1")
    loop.train(recipe)
    assert "features:" not in capsys.readouterr().err
    (tmp_path / "f").rename(tmp_path / "elsewhere")
    loop.train(toy.recipe(tmp_path / "exp2", f"data.features={tmp_path / 'f'}", *options, "training.epochs=1"))
    for store in (tmp_path / "elsewhere").iterdir():
        for file in store.iterdir():
            assert file.read_bytes() == (tmp_path / "f" / store.name / file.name).read_bytes()


@pytest.mark.parametrize("shard", ["0/2", "3/2", "x", "1", "1/", "-1/2"])
def test_a_shard_that_is_none_is_refused(features, shard):
    result = features(f"--shard={shard}")
    assert result.exit_code == 2
    assert f"error: --shard {shard}: I/N is expected with I from 1 to N, such as 1/4" in result.stderr


def test_a_manifest_in_error_is_named(toy, tmp_path, features):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    result = features(f"data.train={tmp_path / 'bad.jsonl'}")
    assert result.exit_code == 1
    assert f"{tmp_path / 'bad.jsonl'}:1: " in result.stderr
