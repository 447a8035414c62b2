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


def merged(run_tool, program, before, out, *options, parts=3):
    """The files of `--shard` 1 to N in another order, and `--merge` N; those of the shards are gone by then."""
    for part in (*range(2, parts + 1), 1):
        done = run_tool(program, *before, "--out", out, *options, "--shard", f"{part}/{parts}")
        assert done.code == 0, done.err
        assert not list(out.glob("*.jsonl")), "a shard writes no manifest"
        assert f"measured; when all are there: --merge {parts}" in done.out
    done = run_tool(program, *before, "--out", out, *options, "--merge", parts)
    assert done.code == 0, done.err
    return files(out)


def test_shards_merged_are_the_whole(corpus, tmp_path, run_tool):
    def prepare(out, *more):
        return run_tool("prepare_folder", "--data", corpus, "--out", tmp_path / out, *more)

    assert prepare("whole").code == 0
    for part in ("3/3", "1/3"):
        assert prepare("merged", "--shard", part).code == 0
    early = prepare("merged", "--merge", "3")
    assert early.code == 1
    assert "--shard 2/3 has not been run" in early.err
    whole = files(tmp_path / "whole")
    assert merged(run_tool, "prepare_folder", ("--data", corpus), tmp_path / "merged") == whole
    assert b"dropped: 1 utterance\n" in whole["report.txt"]
    assert "train.jsonl" in whole


def test_digits_in_shards(tmp_path, run_tool):
    data, random = tmp_path / "data", np.random.default_rng(0)
    (data / "recordings").mkdir(parents=True)
    for take in range(12):
        for digit in (1, 2, 3):
            for speaker in ("ann", "bob"):
                path = data / "recordings" / f"{digit}_{speaker}_{take}.wav"
                soundfile.write(path, random.normal(0, 0.1, 500 + 100 * digit), 8000)
    for bad in ("2_ann_3", "3_bob_11"):
        (data / "recordings" / f"{bad}.wav").write_bytes(b"noise" * 100)
    assert run_tool("prepare_digits", "--data", data, "--out", tmp_path / "whole").code == 0
    whole = files(tmp_path / "whole")
    assert merged(run_tool, "prepare_digits", ("--data", data), tmp_path / "merged", parts=4) == whole
    assert b"dropped: 2 utterances" in whole["report.txt"]
    assert sum(name.startswith("wav/") for name in whole) > 10


def test_a_kaldi_directory_in_shards(tmp_path, run_tool):
    """Segments of one recording go together; sounds are taken out of an archive by the shard that has them."""
    data, random = tmp_path / "kaldi", np.random.default_rng(0)
    data.mkdir()
    scp, segments = [], []
    with open(data / "sounds.ark", "wb") as archive:
        for n in range(5):
            path = data / f"r{n}.wav"
            soundfile.write(path, random.normal(0, 0.1, 16000), 16000)
            scp.append(f"r{n} {path}")
            if n % 2:
                scp[-1] = f"r{n} {archive.name}:{archive.tell()}"
                archive.write(path.read_bytes())
            segments += [f"r{n}-{k} r{n} {k / 2} {k / 2 + 0.6}" for k in range(2)]  # the second passes the end
        scp.append(f"r5 {archive.name}:{archive.tell() - 100}")
    segments += ["r5-0 r5 0 0.5", "r0-late r0 2 3"]
    text = "".join(f"{line.split()[0]} YES\n" for line in segments)
    for name, content in {"wav.scp": "\n".join(scp), "segments": "\n".join(segments), "text": text}.items():
        (data / name).write_text(content)
    call = ("import", f"train={data}")
    assert run_tool("prepare_kaldi", *call, "--out", tmp_path / "whole").code == 0
    whole = files(tmp_path / "whole")
    got = merged(run_tool, "prepare_kaldi", call, tmp_path / "merged")
    where = [str(tmp_path / name).encode() for name in ("merged", "whole")]
    assert {name: content.replace(*where) for name, content in got.items()} == whole
    assert b"dropped: 2 utterances" in whole["report.txt"]
    assert whole["report.txt"].count(b"segment cut by 0.100 s") == 5
    assert sorted(name for name in whole if name.startswith("wav/")) == ["wav/train/r1.wav", "wav/train/r3.wav"]


def test_shards_of_other_options_or_data_are_refused(corpus, tmp_path, run_tool):
    def prepare(*more):
        return run_tool("prepare_folder", "--data", corpus, "--out", tmp_path / "out", *more)

    def refused(wanted):
        done = prepare("--merge", "1")
        assert done.code == 1
        assert wanted in done.err

    prepare("--shard", "1/1", "--limit", "8")
    refused("1-of-1.json: was run with other options than this run: limit;")
    prepare("--shard", "1/1")
    soundfile.write(corpus / "s1" / "new.wav", np.zeros(4000), 16000)
    (corpus / "s1" / "new.txt").write_text("ONE")
    refused("new.wav (and 0 more); the data are not those of the shards")
    (tmp_path / "out/shards/1-of-1.json").write_text("{")
    refused("1-of-1.json: cannot be read; run --shard 1/1 again")


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "x/3", "2"])
def test_a_shard_that_is_none_is_refused(corpus, tmp_path, run_tool, wrong):
    assert run_tool("prepare_folder", "--data", corpus, "--out", tmp_path / "o", "--shard", wrong).code == 2
