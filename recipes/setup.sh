# Sourced by every run.sh: finds a Python, installs the toolkit into .venv where it is missing, reports the time.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
#   setup demo                    # extras, separated by commas; sets PYTHON
#   say "making the corpus"       # a headline with the time since the start
#   asr train recipe.yaml         # the command of this installation, whatever PATH says
#
# Needs bash 3.2 or newer. Works from any directory, and in paths with spaces.

_setup_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2
}

# Prints the path of a Python >= 3.10.
base_python() {
    local name
    for name in "${PYTHON:-}" python3 python python3.13 python3.12 python3.11 python3.10 python3.14; do
        if [ -n "$name" ] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "error: no Python >= 3.10 on PATH; install one, or name it: PYTHON=/path/to/python bash $0" >&2
    return 1
}

# _has_asr PYTHON EXTRAS: is the toolkit importable there, with the packages of these extras?
_has_asr() {
    # From the root folder: inside the checkout, `import asr` works without being installed.
    (cd / && "$1" - "$2") >/dev/null 2>&1 <<'PYTHON'
import importlib.metadata as metadata, re, sys

import asr.cli.main

for requirement in metadata.requires("asr") or []:
    extra = re.search(r"""extra == ['"]([\w-]+)['"]""", requirement)
    if not extra or extra[1] in sys.argv[1].split(","):
        metadata.version(re.match(r"[\w.-]+", requirement)[0])
PYTHON
}

# setup EXTRAS: sets PYTHON to an interpreter that has the toolkit; installs it into .venv where there is none.
setup() {
    local extras=${1:-} candidate base venv=$_setup_root/.venv
    for candidate in "$venv/bin/python" "$venv/Scripts/python.exe" "${PYTHON:-}" python3 python; do
        if [ -n "$candidate" ] && _has_asr "$candidate" "$extras"; then
            PYTHON=$(command -v "$candidate")
            return
        fi
    done
    base=$(base_python) || return 1
    if [ ! -x "$venv/bin/python" ] && [ ! -x "$venv/Scripts/python.exe" ]; then
        say "making $venv with $("$base" --version)"
        "$base" -m venv "$venv" || {
            echo "error: $base cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2
            return 1
        }
    fi
    PYTHON=$venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=$venv/Scripts/python.exe
    say "installing the toolkit into $venv"
    if [ "$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null &&
        ! "$PYTHON" -c 'import torch, torchaudio' 2>/dev/null; then
        echo "PyPI's torch for Linux brings some 5 GB of CUDA. To do without, stop here and first run" >&2
        echo "  '$PYTHON' -m pip install torch torchaudio --index-url https://download.pytorch.org/whl/cpu" >&2
    fi
    (cd "$_setup_root" && "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}") ||
        return 1
    _has_asr "$PYTHON" "$extras" || {
        echo "error: the toolkit was installed but cannot be imported: '$PYTHON' -c 'import asr.cli.main' says why" >&2
        return 1
    }
}

asr() {
    "$PYTHON" -m asr "$@"
}

# What every run.sh shares. They set `here`, the folder of the recipe, before.

# recipe_options "$@": sets data (folder of the corpus, or nothing), toy (true or false), table (which models: paper,
# mixers, or nothing for the recipe's own four), and arguments (the rest, for `asr compare`). Prints the head of the
# script for --help.
recipe_options() {
    data='' toy=false table='' arguments=()
    while (($#)); do
        case $1 in
        --data | --data=)
            [ -n "${2:-}" ] || _usage_error "--data needs the folder of the corpus: --data DIR"
            data=$2
            shift
            ;;
        --data=*) data=${1#*=} ;;
        --toy) toy=true ;;
        --paper | --mixers)
            table=${1#--}
            compgen -G "$here/$table*" >/dev/null || _usage_error "$1: not in this recipe"
            ;;
        -h | --help)
            sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
            exit
            ;;
        *) arguments+=("$1") ;;
        esac
        shift
    done
}

_usage_error() {
    echo "error: $1" >&2
    exit 2
}

# prepare PROGRAM CORPUS SET OPTION...: sets work, the folder whose recipes to run, and writes its data.
#
# CORPUS says what the corpus is and where to get it, to who gave no --data. --toy works in a copy, so that what was
# trained in earnest stays: on a part of the corpus, prepared with the OPTIONs, or without --data on synthetic speech
# whose test set is called SET.
prepare() {
    local program=$1 corpus=$2 set=$3
    shift 3
    $toy || [ -n "$data" ] || _usage_error "--data DIR is missing: $corpus"
    setup demo # CMUdict; the toy corpus
    work=$here
    if $toy; then
        work=$here/data/toy-$([ -n "$data" ] && echo corpus || echo synthetic)
        mkdir -p "$work"
        cp "$here"/*.yaml "$work"
        [ ! -d "$here/mixers" ] || (mkdir -p "$work/mixers" && cp "$here"/mixers/*.yaml "$work/mixers")
        arguments=(
            --retrain training.{epochs,threads}=1 training.tensorboard=false data.workers=1 model.encoder.layers=1
            ${arguments[@]+"${arguments[@]}"}
        )
    fi
    if [ -n "$data" ]; then
        $toy || set --
        say "preparing $data"
        "$PYTHON" "$here/../../tools/$program" --data "$data" --out "$work/data" "$@"
    else
        say "no --data: making synthetic speech instead; its error rates say nothing about this corpus"
        "$PYTHON" "$here/../../tools/make_demo_corpus.py" "$work/data" --train 26 --dev 4 --test 4
        [ "$set" = test ] || cp "$work/data/test.jsonl" "$work/data/$set.jsonl"
    fi
}

# compare_and_decode RESULTS SET RECIPE...: trains and compares recipes of $work into $work/RESULTS, then decodes a
# recording of the test set SET with the best of them.
compare_and_decode() {
    local results=$work/$1 set=$2 recipes=() recipe exp audio text reference decoded
    shift 2
    for recipe in "$@"; do recipes+=("$work/$recipe.yaml"); done
    say "training and comparing $*"
    asr compare "${recipes[@]}" --out "$results" ${arguments[@]+"${arguments[@]}"}

    say "decoding a recording of $set with the best of them"
    "$PYTHON" - "$results" "$set" <<'PYTHON' >"$results/held_out.txt"
import json, pathlib, sys

from asr.data.manifest import read_manifest
from asr.data.tokens import encode_all
from asr.recogniser import Recogniser

results, name = pathlib.Path(sys.argv[1]), sys.argv[2]
rows = [row for row in json.loads((results / "compare.json").read_text("utf-8"))["rows"] if name in row["rates"]]
best = min(rows, key=lambda row: row["rates"][name]["value"])
recogniser = Recogniser.load(best["exp"])
said = read_manifest(recogniser.recipe.data.test[name])[0]
targets = encode_all(recogniser.tokens, [said]).targets
print(best["exp"], said.audio, said.text, recogniser.tokens.text_of(targets[said.id]), sep="\n")
PYTHON
    { read -r exp && read -r audio && read -r text && read -r reference; } <"$results/held_out.txt"
    echo "model:     $exp"
    echo "recording: $audio"
    echo "said:      $text"
    echo "reference: $reference"
    decoded=$(asr decode "$exp" "$audio" | cut -f 2-)
    echo "decoded:   $decoded"
    say "done; tables and plots are in $results"
    echo "To use the command yourself: '$PYTHON' -m asr, or put $(dirname "$PYTHON") on PATH" >&2
}
