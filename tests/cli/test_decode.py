"""`asr decode` as its user meets it: exit codes, and which stream says what."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
import soundfile

from asr.cli.main import main
from asr.decode import loop


@pytest.fixture
def asr(monkeypatch, capfd):
    """`asr("decode", …, stdin=b"…")` runs the command: (exit code, standard output, standard error)."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["asr", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as stopped:
            main()
        return (stopped.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def noise(tmp_path):
    """`noise(name, seconds, rate)` writes seeded noise and gives its path."""

    def write(name, seconds=0.7, rate=16000):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.random.default_rng(len(name)).normal(0, 0.1, round(seconds * rate)), rate)
        return path

    return write


def test_results_alone_on_stdout_and_exit_0(asr, tiny_experiment, noise):
    code, out, err = asr("decode", tiny_experiment, noise("a.wav"), noise("b.flac"))
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["a", "b"]
    assert "decoded 2 of 2" in err


def test_the_checkpoint_alone_is_enough(asr, tiny_experiment, noise, tmp_path):
    alone = tmp_path / "elsewhere" / "any name.pt"
    alone.parent.mkdir()
    alone.write_bytes((tiny_experiment / "best.pt").read_bytes())
    path = noise("a.wav")
    assert asr("decode", alone, path, "-f", "json")[1] == asr("decode", tiny_experiment, path, "-f", "json")[1] != ""


def test_I5_some_failed_is_3_and_all_failed_is_4(asr, tiny_experiment, noise, tmp_path):
    (tmp_path / "text.wav").write_text("this is no audio")
    bad = [tmp_path / "text.wav", tmp_path / "missing.wav"]
    code, out, err = asr("decode", tiny_experiment, noise("a.wav"), *bad, noise("b.wav"), "--batch-size", 4)
    assert code == 3
    assert len(out.splitlines()) == 2
    assert all(err.count(str(path)) >= 2 for path in bad)  # when it happens, and in the summary
    assert "2 failed" in err
    assert "Traceback" not in err
    code, out, err = asr("decode", tiny_experiment, *bad)
    assert (code, out) == (4, "")


def test_H1_batch_size_changes_nothing(asr, tiny_experiment, noise):
    paths = [noise("a.wav", 2.0), noise("bb.wav", 0.5), noise("ccc.wav", 1.1)]
    alone = asr("decode", tiny_experiment, *paths, "-f", "json", "--batch-size", 1)[1].splitlines()
    batch = asr("decode", tiny_experiment, *paths, "-f", "json", "--batch-size", 3)[1].splitlines()
    for one, other in zip(map(json.loads, alone), map(json.loads, batch), strict=True):
        assert [t["symbol"] for t in one["tokens"]] == [t["symbol"] for t in other["tokens"]]
        assert [t["start"] for t in one["tokens"]] == [t["start"] for t in other["tokens"]]
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=1e-3)


@pytest.mark.parametrize("samples", [1, 399, 400, 401, 1200])
def test_D1_short_audio_disturbs_no_other(asr, tiny_experiment, noise, samples):
    long, short = noise("long.wav", 5.0), noise("s.wav", samples / 16000)
    code, out, err = asr("decode", tiny_experiment, short, long, "-f", "json")
    alone = asr("decode", tiny_experiment, long, "-f", "json")[1]
    assert code == 0
    assert json.loads(out.splitlines()[1])["text"] == json.loads(alone)["text"]
    if samples < 400:
        assert json.loads(out.splitlines()[0])["text"] == ""
        assert "s.wav" in err


def test_D5_rates_agree_after_resampling_and_are_refused_on_request(asr, tiny_experiment, noise):
    path = noise("x.wav", 0.7, 8000)
    code, out, err = asr("decode", tiny_experiment, path)
    assert (code, len(out.splitlines())) == (0, 1)
    code, out, err = asr("decode", tiny_experiment, path, "--no-resample")
    assert (code, out) == (4, "")
    assert "8000 Hz" in err
    assert "16000 Hz" in err


def test_stdin(asr, tiny_experiment, noise):
    path = noise("x.wav")
    code, out, _ = asr("decode", tiny_experiment, "-", stdin=path.read_bytes())
    assert code == 0
    assert out.split("\t")[0] == "stdin"
    assert out.split("\t")[1] == asr("decode", tiny_experiment, path)[1].split("\t")[1]


@pytest.mark.parametrize("format", ["txt", "json", "tsv", "ctm"])
def test_I7_one_file_per_input_is_not_overwritten_without_the_flag(asr, tiny_experiment, noise, tmp_path, format):
    noise("in/a/x.wav"), noise("in/b/x.wav")
    command = ("decode", tiny_experiment, tmp_path / "in", "-f", format, "-o", tmp_path / "out")
    code, out, _ = asr(*command)
    assert (code, out) == (0, "")
    written = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert written == [f"a/x.{format}", f"b/x.{format}"]
    (tmp_path / "out/b/x").with_suffix(f".{format}").write_text("precious")
    code, _, err = asr(*command)
    assert code == 2
    assert "--overwrite" in err
    assert (tmp_path / "out/b/x").with_suffix(f".{format}").read_text() == "precious"
    assert asr(*command, "--overwrite")[0] == 0


def test_wrong_usage_is_2_and_says_what_to_write(asr, tiny_experiment, noise, tmp_path):
    code, _, err = asr("decode", tiny_experiment, noise("x.wav"), "--format", "xml")
    assert code == 2
    assert "txt, json, tsv, ctm" in err
    assert asr("decode", tiny_experiment)[0] == 2
    (tmp_path / "file").write_text("")
    assert asr("decode", tiny_experiment, noise("x.wav"), "-o", tmp_path / "file")[0] == 2


def test_an_experiment_that_is_none_is_one_line(asr, noise, tmp_path):
    code, out, err = asr("decode", tmp_path / "nowhere", noise("x.wav"))
    assert code in (1, 2)
    assert out == ""
    assert "nowhere" in err
    assert "Traceback" not in err


def test_interrupted_is_130(asr, tiny_experiment, noise, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "read_audio", interrupt)
    code, _, err = asr("decode", tiny_experiment, noise("x.wav"))
    assert code == 130
    assert "Traceback" not in err
