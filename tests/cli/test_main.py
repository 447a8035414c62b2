"""The command `asr` as a user meets it: help, errors, exit codes, and the commands that only read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from asr.cli import doctor, main, show
from asr.errors import AsrError
from asr.recipe_loader import dump_recipe, load_recipe

BASE = "data: {train: train.jsonl, dev: dev.jsonl}\n"


@pytest.fixture
def asr():
    return lambda *args: CliRunner().invoke(main.app, [str(a) for a in args])


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(BASE)
    return path


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_help_lists_the_commands_without_loading_torch():
    code = "import sys; from asr.cli.main import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.partition("Commands:\n")[2].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert listed == list(main.COMMANDS)


def test_module_and_version():
    result = subprocess.run([sys.executable, "-m", "asr", "--version"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("asr ")


def test_show_prints_the_resolved_recipe(asr, recipe):
    result = asr("show", recipe, "model.encoder.layers=4", "seed=7")
    assert result.exit_code == 0
    assert result.stdout == dump_recipe(load_recipe(recipe, ["model.encoder.layers=4", "seed=7"]))
    assert yaml.safe_load(result.stdout)["model"]["encoder"]["layers"] == 4


def test_I3_errors_are_lines_on_stderr_and_exit_2(asr, recipe):
    result = asr("show", recipe, "training.learnig_rate=1", "seed=x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: override 'seed=x': seed: must be an integer >= 0 and < 4294967296, got 'x'",
        "error: override 'training.learnig_rate=1': training: unknown key 'learnig_rate'; "
        "it belongs under training.optimiser as 'lr'",
    ]


def test_show_checks_files_on_request(asr, recipe, tmp_path):
    result = asr("show", recipe, "--check-files")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"error: {recipe}:1: data.train: no such file: {tmp_path}/train.jsonl"


@pytest.mark.parametrize("args", [[], ["shw"], ["show"], ["show", "a.yaml", "--nope"]])
def test_wrong_usage(asr, args):
    result = asr(*args)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


class OtherError(AsrError):
    exit_code = 7


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [(OtherError("one\ntwo"), 7, "error: one\nerror: two\n"), (KeyboardInterrupt(), 130, "interrupted\n")],
)
def test_exit_codes(asr, monkeypatch, raised, code, line):
    def broken(recipe: Path) -> None:
        raise raised

    monkeypatch.setattr(show, "show", broken)
    result = asr("show", "x")
    assert (result.exit_code, result.stderr) == (code, line)


def test_unexpected_errors_keep_their_traceback():
    code = (
        "import sys; from asr.cli import main, show\n"
        "def broken() -> None: 1 / 0\n"
        "show.show = broken; sys.argv = ['asr', 'show']; main.main()"
    )
    result = python(code)
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; sys.argv = ['asr', 'schema']; from asr.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_schema_agrees_with_the_loader(asr, recipe):
    document = json.loads(asr("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator(document)
    assert validator.is_valid(yaml.safe_load(dump_recipe(load_recipe(recipe))))
    assert validator.is_valid({"extends": "base.yaml", "model": {"encoder": {"layers": 3}}})
    assert validator.is_valid({"data": {"test": {"a": "a.jsonl"}}})
    for layers in ([{"attention": "softmax"}, {"attention": {"rounds": 2}, "repeat": 8}], [{"repeat": 2}]):
        assert validator.is_valid({"model": {"encoder": {"layers": layers, "attention": "lsh"}}})
    for layers in ([{"attention": "x"}], [{"repeats": 2}], []):
        assert not validator.is_valid({"model": {"encoder": {"layers": layers}}})
    for batch in (4000, "auto", {"kind": "auto"}, {"memory_mb": 2048, "found": None}):
        assert validator.is_valid({"training": {"batch_frames": batch}}), batch
    for batch in (0, "lots", {"kind": "number"}, {"memory": 3}, [3]):
        assert not validator.is_valid({"training": {"batch_frames": batch}}), batch
    for wrong in [{"sead": 1}, {"seed": "x"}, {"model": {"encoder": {"kind": "x"}}}, {"training": {"epochs": 0}}, []]:
        assert not validator.is_valid(wrong), wrong


def line(**changes):
    item = {"id": "a", "audio": "a.wav", "start": 0, "duration": 1.0, "speaker": "s", "text": "one two"}
    return json.dumps({**item, **changes}) + "\n"


def test_validate(asr, tmp_path):
    import numpy as np
    import soundfile

    soundfile.write(tmp_path / "a.wav", np.zeros(16000, np.float32), 16000)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(line() + line(id="b", speaker="t"))
    bad.write_text(line() + line(id="b", duration=-1) + line(id="c", audio="nope.wav") + line(id="d", duration=9))
    result = asr("validate", good)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split() == [str(good), "2", "2", "0.00", "1.00/1.00/1.00", "4", "2", "0", "0"]
    result = asr("validate", good, tmp_path / "none.jsonl", bad)
    assert result.exit_code == 1
    assert [out.split(":")[1] for out in result.stdout.splitlines()[:3]] == ["2", "3", "4"]
    assert str(tmp_path / "none.jsonl") in result.stderr
    assert len(result.stdout.splitlines()) == 6
    assert asr("validate", "--no-audio", bad).stdout.splitlines()[-1].split()[-1] == "1"
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 16000), 16000, format="FLAC")
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:9000])  # only decoding finds the cut
    assert asr("validate", good).exit_code == 0
    assert "truncated" in asr("validate", "--decode", good).stdout


def test_doctor_passes_here(asr):
    result = asr("doctor")
    assert result.exit_code == 0, result.output
    for kind in ("softmax", "linear", "lsh", "bilstm"):
        assert f"ok    training step with {kind}: loss " in result.stdout


def test_doctor_names_what_is_broken_and_goes_on(asr, monkeypatch):
    def broken():
        raise OSError("libfoo.so:\n  cannot open")

    monkeypatch.setattr(doctor, "checks", lambda: [("foo", broken), ("bar", lambda: "fine")])
    result = asr("doctor")
    assert result.exit_code == 1
    assert result.stdout == "FAIL  foo: OSError: libfoo.so: cannot open\nok    bar: fine\n"
    assert result.stderr == "1 of the checks failed\n"


def test_doctor_sees_missing_packages():
    requirements = dict(doctor.requirements())
    assert requirements["torch"] == ""
    assert "pytest" not in requirements
    with pytest.raises(RuntimeError, match="not installed; pip install no-such-thing"):
        doctor._version("no-such-thing", "")
    assert "optional; pip install 'asr[demo]'" in doctor._version("no-such-thing", "demo")


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_explains_itself(asr, command):
    result = asr(command, "--help")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: root {command} ")
