"""`asr decode` as its user meets it: what is recognised, exit codes, and which stream says what."""

from __future__ import annotations

import io
import json
import sys

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


def test_what_was_said_on_stdout_alone(asr, tiny_experiment, spoken):
    code, out, err = asr("decode", tiny_experiment, spoken("a.wav", "LOW HIGH MID"), spoken("b.flac", "MID"))
    assert (code, out) == (0, "a\tLOW HIGH MID\nb\tMID\n")
    assert "decoded 2 of 2" in err


def test_token_times_lie_on_the_sound(asr, tiny_experiment, spoken):
    _, out, _ = asr("decode", tiny_experiment, spoken("a.wav", "LOW HIGH MID"), "-f", "json")
    record = json.loads(out)
    assert (record["duration"], record["rate"]) == (1.05, 16000)
    assert [token["symbol"] for token in record["tokens"]] == ["LOW", "HIGH", "MID"]
    for n, token in enumerate(record["tokens"]):
        begin = 0.15 + 0.3 * n  # seconds; each tone lasts 0.15 s
        assert begin - 0.05 < token["start"] < token["end"] < begin + 0.15 + 0.05
        assert -1.0 < token["log_prob"] <= 0.0


def test_ctm_and_tsv_rows(asr, tiny_experiment, spoken):
    path = spoken("a.wav", "LOW HIGH")
    rows = [line.split() for line in asr("decode", tiny_experiment, path, "-f", "ctm")[1].splitlines()]
    assert [(row[0], row[1], row[4]) for row in rows] == [("a", "1", "LOW"), ("a", "1", "HIGH")]
    table = [line.split("\t") for line in asr("decode", tiny_experiment, path, "-f", "tsv")[1].splitlines()]
    assert [row[3] for row in table] == ["token", "LOW", "HIGH"]
    assert float(rows[1][2]) + float(rows[1][3]) == pytest.approx(float(table[2][2]), abs=0.002)


def test_the_checkpoint_alone_is_enough(asr, tiny_experiment, spoken, tmp_path):
    alone = tmp_path / "elsewhere" / "any name.pt"
    alone.parent.mkdir()
    alone.write_bytes((tiny_experiment / "best.pt").read_bytes())
    assert asr("decode", alone, spoken("a.wav", "MID LOW"))[1] == "a\tMID LOW\n"


def test_I5_some_failed_is_3_and_all_failed_is_4(asr, tiny_experiment, spoken, tmp_path):
    (tmp_path / "text.wav").write_text("this is no audio")
    bad = [tmp_path / "text.wav", tmp_path / "missing.wav"]
    good = spoken("a.wav", "LOW"), spoken("b.wav", "HIGH")
    code, out, err = asr("decode", tiny_experiment, good[0], *bad, good[1], "--batch-size", 4)
    assert (code, out) == (3, "a\tLOW\nb\tHIGH\n")
    assert all(err.count(str(path)) >= 2 for path in bad)  # when it happens, and in the summary
    assert "2 failed" in err
    assert "Traceback" not in err
    code, out, _ = asr("decode", tiny_experiment, *bad)
    assert (code, out) == (4, "")
    code, out, err = asr("decode", tiny_experiment, bad[0], *good, "--fail-fast")
    assert (code, out) == (4, "")
    assert "2 not tried" in err


def test_H1_batch_size_changes_nothing(asr, tiny_experiment, spoken):
    paths = [spoken("a.wav", "LOW HIGH MID LOW"), spoken("bb.wav", "MID"), spoken("ccc.wav", "HIGH HIGH")]
    alone = asr("decode", tiny_experiment, *paths, "-f", "json", "--batch-size", 1)[1].splitlines()
    batch = asr("decode", tiny_experiment, *paths, "-f", "json", "--batch-size", 3)[1].splitlines()
    for one, other in zip(map(json.loads, alone), map(json.loads, batch), strict=True):
        assert [(t["symbol"], t["start"], t["end"]) for t in one["tokens"]] == [
            (t["symbol"], t["start"], t["end"]) for t in other["tokens"]
        ]
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=1e-3)


@pytest.mark.parametrize("samples", [0, 1, 399, 400, 401, 1200])
def test_D1_short_audio_disturbs_no_other(asr, tiny_experiment, spoken, tmp_path, samples):
    long, short = spoken("long.wav", "LOW MID HIGH"), tmp_path / "s.wav"
    soundfile.write(short, soundfile.read(long)[0][:samples], 16000)
    code, out, err = asr("decode", tiny_experiment, short, long)
    assert code == (0 if samples else 3)  # a file without samples is not short but empty
    assert out.splitlines()[-1] == "long\tLOW MID HIGH"
    if samples:
        assert out.splitlines()[0] == "s\t"
    assert "s.wav" in err


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_D5_other_rates_are_resampled_or_refused_on_request(asr, tiny_experiment, spoken, rate):
    path = spoken("x.wav", "MID LOW HIGH", rate)
    code, out, err = asr("decode", tiny_experiment, path)
    assert (code, out) == (0, "x\tMID LOW HIGH\n")
    code, out, err = asr("decode", tiny_experiment, path, "--no-resample")
    assert (code, out) == (4, "")
    assert f"{rate} Hz" in err
    assert "16000 Hz" in err


def test_H7_the_limit_is_an_option(asr, tiny_experiment, spoken):
    paths = spoken("a.wav", "LOW"), spoken("long.wav", "LOW HIGH MID LOW"), spoken("b.wav", "MID")
    code, out, err = asr("decode", tiny_experiment, *paths, "--max-seconds", 1)
    assert (code, out) == (3, "a\tLOW\nb\tMID\n")
    assert "lasts 1.4 s, the limit is 1 s" in err


def test_stdin(asr, tiny_experiment, spoken):
    data = spoken("x.wav", "HIGH LOW").read_bytes()
    assert asr("decode", tiny_experiment, "-", stdin=data)[:2] == (0, "stdin\tHIGH LOW\n")
    code, out, err = asr("decode", tiny_experiment, "-", stdin=b"no audio at all, only text, but enough of it")
    assert (code, out) == (4, "")
    assert "stdin: " in err


@pytest.mark.parametrize("format", ["txt", "json", "tsv", "ctm"])
def test_I7_one_file_per_input_is_not_overwritten_without_the_flag(asr, tiny_experiment, spoken, tmp_path, format):
    spoken("in/a/x.wav", "LOW")
    spoken("in/b/x.wav", "HIGH")
    command = ("decode", tiny_experiment, tmp_path / "in", "-f", format, "-o", tmp_path / "out")
    code, out, _ = asr(*command)
    assert (code, out) == (0, "")
    written = {p.relative_to(tmp_path / "out").as_posix(): p for p in (tmp_path / "out").rglob("*.*")}
    assert sorted(written) == [f"a/x.{format}", f"b/x.{format}"]
    first, second = (written[name].read_text() for name in sorted(written))
    assert "LOW" in first
    assert "HIGH" in second
    written[f"b/x.{format}"].write_text("precious")
    code, _, err = asr(*command)
    assert code == 2
    assert "--overwrite" in err
    assert written[f"b/x.{format}"].read_text() == "precious"
    assert asr(*command, "--overwrite")[0] == 0
    assert written[f"b/x.{format}"].read_text() == second


def test_wrong_usage_is_2_and_says_what_to_write(asr, tiny_experiment, spoken, tmp_path):
    path = spoken("x.wav", "LOW")
    code, _, err = asr("decode", tiny_experiment, path, "--format", "xml")
    assert code == 2
    assert "txt, json, tsv, ctm" in err
    assert asr("decode", tiny_experiment)[0] == 2
    (tmp_path / "file").write_text("")
    assert asr("decode", tiny_experiment, path, "-o", tmp_path / "file")[0] == 2


def test_an_experiment_that_is_none_is_one_line(asr, spoken, tmp_path):
    code, out, err = asr("decode", tmp_path / "nowhere", spoken("x.wav", "LOW"))
    assert (code, out) == (1, "")
    assert "nowhere" in err
    assert len(err.splitlines()) == 1


def test_interrupted_is_130(asr, tiny_experiment, spoken, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "read_audio", interrupt)
    code, _, err = asr("decode", tiny_experiment, spoken("x.wav", "LOW"))
    assert code == 130
    assert len(err.splitlines()) == 1


def test_real_speech_goes_through(asr, tiny_experiment, corpus):
    code, out, _ = asr("decode", tiny_experiment, corpus("sphere_samples"))
    ids = [line.split("\t")[0] for line in out.splitlines()]
    assert code == 3  # the faulty files among them
    assert {"pcm16_le", "shn_pcm16_le", "ulaw", "reference"} <= set(ids)
    text = dict(line.split("\t") for line in out.splitlines())
    assert text["pcm16_le"] == text["pcm16_be"] == text["shn_pcm16_le"] == text["reference"]
