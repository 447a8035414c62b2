"""The run.sh of each recipe: what it understands, and the commands it runs, with a Python that only notes them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SCRIPTS = sorted(RECIPES.glob("*/run.sh"))
CORPORA = {"an4": "test", "digits": "test", "librispeech": "test-other"}  # name → its test set

FAKE_PYTHON = """#!/bin/bash
printf '<%s>' "$@" >>"$0.log"
echo >>"$0.log"
case "$1 $2" in
"- demo") ;;  # setup asks for the packages
"- "*) printf '%s\\n' exp 'a recording.flac' 'HELLO' 'HH AH L OW' ;;
"-m asr") [ "$3" != decode ] || printf 'a recording.flac\\tHH AH L' ;;
esac
while [ $# -gt 1 ]; do # `asr compare` makes the folder of its results
    [ "$1" != --out ] || mkdir -p "$2"
    shift
done
"""

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash"), reason="needs bash and executable scripts"
)


@pytest.fixture
def checkout(tmp_path):
    """Recipes in a folder whose name holds a space, and a Python that succeeds at everything."""
    root = tmp_path / "my checkout"
    for path in [RECIPES / "setup.sh", *(file for name in CORPORA for file in (RECIPES / name).glob("**/*.*"))]:
        target = root / "recipes" / path.relative_to(RECIPES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    python = root / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return root


def run(root: Path, recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(root / "recipes" / recipe / "run.sh"), *arguments], capture_output=True, text=True, cwd=root
    )


def calls(root: Path) -> list[list[str]]:
    """The arguments of each call of Python, the package check left out."""
    lines = (root / ".venv/bin/python.log").read_text().splitlines()
    return [line[1:-1].split("><") for line in lines if line != "<-><demo>"]


@pytest.mark.parametrize("script", [*SCRIPTS, RECIPES / "setup.sh"], ids=lambda path: path.parent.name)
def test_is_valid_bash(script):
    result = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("recipe", CORPORA)
def test_help_is_the_head_of_the_script(checkout, recipe):
    result = run(checkout, recipe, "--help")
    assert result.returncode == 0
    assert f"bash recipes/{recipe}/run.sh --data DIR" in result.stdout
    assert "set -euo" not in result.stdout
    assert not (checkout / ".venv/bin/python.log").exists()


@pytest.mark.parametrize("recipe", CORPORA)
def test_without_corpus_one_line_says_where_to_get_it(checkout, recipe):
    result = run(checkout, recipe)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: --data DIR is missing: ")
    assert "http" in result.stderr
    assert not (checkout / ".venv/bin/python.log").exists()  # before anything is installed


@pytest.mark.parametrize("arguments", [["--data"], ["--data", ""], ["--data="]])
def test_data_needs_a_folder(checkout, arguments):
    result = run(checkout, "an4", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --data")


def test_paper_only_where_there_is_such_a_recipe(checkout):
    result = run(checkout, "digits", "--paper", "--toy")
    assert (result.returncode, result.stderr) == (2, "error: --paper: not in this recipe\n")


@pytest.mark.parametrize("recipe", CORPORA)
@pytest.mark.parametrize("form", [["--data", "the data"], ["--data=the data"]])
def test_the_real_corpus(checkout, recipe, form):
    result = run(checkout, recipe, *form, "training.epochs=3", "--retrain")
    assert result.returncode == 0, result.stderr
    prepare, compare, best, decode = calls(checkout)
    here = checkout / "recipes" / recipe
    assert Path(prepare[0]).resolve() == checkout / f"tools/prepare_{recipe}.py"
    assert prepare[1:] == ["--data", "the data", "--out", str(here / "data")]
    assert compare[:3] == ["-m", "asr", "compare"]
    assert compare[-4:] == ["--out", str(here / "results"), "training.epochs=3", "--retrain"]
    models = [Path(path) for path in compare[3:-4]]
    assert {"softmax", "lsh", "linear", "bilstm"} <= {path.stem for path in models}
    assert all(path.is_file() and path.parent == here for path in models)
    assert best == ["-", str(here / "results"), CORPORA[recipe]]
    assert decode == ["-m", "asr", "decode", "exp", "a recording.flac"]
    assert "reference: HH AH L OW\ndecoded:   HH AH L\n" in result.stdout


@pytest.mark.parametrize("recipe", CORPORA)
def test_toy_never_touches_what_was_trained_in_earnest(checkout, recipe):
    assert run(checkout, recipe, "--toy", "--data", "the data", "seed=1").returncode == 0
    prepare, compare, *_ = calls(checkout)
    copy = checkout / "recipes" / recipe / "data/toy-corpus"
    assert prepare[3:6] == ["--out", str(copy / "data"), "--limit"]
    assert str(copy / "softmax.yaml") in compare
    assert str(copy / "results") in compare
    assert {"--retrain", "training.epochs=1", "model.encoder.layers=1"} < set(compare)
    assert compare[-1] == "seed=1"  # after ours: the last one counts


def test_papers_encoder_on_an4(checkout):
    assert run(checkout, "an4", "--data", "the data", "--paper").returncode == 0
    _, compare, best, _ = calls(checkout)
    here = checkout / "recipes/an4"
    paths = [str(here / f"paper-{kind}.yaml") for kind in ("softmax", "lsh", "linear", "bilstm")]
    assert compare[3:] == [*paths, "--out", str(here / "results/paper")]
    assert best[1] == str(here / "results/paper")


def test_every_mixer_on_an4_in_one_table(checkout):
    assert run(checkout, "an4", "--data", "the data", "--mixers", "--toy").returncode == 0
    _, compare, *_ = calls(checkout)
    copy = checkout / "recipes/an4/data/toy-corpus"
    out = compare.index("--out")
    recipes = [Path(path) for path in compare[3:out]]
    assert recipes[0].stem == "softmax"  # which the others are related to
    assert all(path.is_file() for path in recipes)
    shipped = {path.stem for path in (RECIPES / "an4/mixers").glob("*.yaml")} - {"base"}
    assert sorted(path.relative_to(copy).as_posix() for path in recipes) == sorted(f"mixers/{n}.yaml" for n in shipped)
    assert compare[out + 1] == str(copy / "results/mixers")


def test_a_failing_step_ends_the_run(checkout):
    python = checkout / ".venv/bin/python"
    python.write_text(FAKE_PYTHON.replace('"- demo")', '*"compare"*) exit 1 ;;\n"- demo")').replace("$1 $2", "$*"))
    result = run(checkout, "an4", "--data", "the data")
    assert result.returncode == 1
    assert [call[2] for call in calls(checkout)][-1] == "compare"
    assert "done" not in result.stderr
