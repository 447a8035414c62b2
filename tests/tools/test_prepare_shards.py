"""A corpus prepared in shards is the corpus prepared at once."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile


@pytest.fixture
def corpus(tmp_path):
    """Eleven recordings of four speakers, one of them no audio."""
    data = tmp_path / "data"
    random = np.random.default_rng(0)
    for n in range(11):
        folder = data / f"s{n % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"u{n}.wav", random.normal(0, 0.1, 4000 + 700 * n), 16000)
        (folder / f"u{n}.txt").write_text("ONE TWO")
    (data / "s1" / "u5.wav").write_bytes(b"noise" * 100)
    return data


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_shards_merged_are_the_whole(corpus, tmp_path, run_tool):
    def prepare(out, *more):
        return run_tool("prepare_folder", "--data", corpus, "--out", tmp_path / out, *more)

    assert prepare("whole").code == 0
    for part in ("3/3", "1/3"):
        done = prepare("merged", "--shard", part)
        assert done.code == 0, done.err
        assert "files measured; when all are there: --merge 3" in done.out
    early = prepare("merged", "--merge", "3")
    assert early.code == 1
    assert "--shard 2/3 has not been run" in early.err
    assert prepare("merged", "--shard", "2/3").code == 0
    assert [p.name for p in (tmp_path / "merged").iterdir()] == ["shards"], "a shard writes no manifest"
    other = prepare("merged", "--merge", "3", "--limit", "100")
    assert other.code == 0, other.err
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    assert "train.jsonl" in files(tmp_path / "merged")


def test_a_file_that_no_shard_measured_is_named(corpus, tmp_path, run_tool):
    out = tmp_path / "out"
    run_tool("prepare_folder", "--data", corpus, "--out", out, "--shard", "1/1", "--limit", "8")
    done = run_tool("prepare_folder", "--data", corpus, "--out", out, "--merge", "1")
    assert done.code == 1
    assert "no shard has measured" in done.err
    assert "run all shards with the options of this run" in done.err


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "x/3", "2"])
def test_a_shard_that_is_none_is_refused(corpus, tmp_path, run_tool, wrong):
    assert run_tool("prepare_folder", "--data", corpus, "--out", tmp_path / "o", "--shard", wrong).code == 2
