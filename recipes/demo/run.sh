#!/usr/bin/env bash
# The demo, end to end: makes the corpus, trains four encoders, prints the table, draws the plots, decodes a recording.
#
#   bash recipes/demo/run.sh [--toy] [--retrain] [key.sub=value ...]
#
# --toy is a run of a minute that shows that everything works, with models that have learnt nothing.
# Everything else goes to `asr compare`: overrides such as training.epochs=40, and --retrain to train anew.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"

size=()
arguments=()
toy=false
for argument in "$@"; do
    case $argument in
    --toy) toy=true ;;
    -h | --help)
        sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit
        ;;
    *) arguments+=("$argument") ;;
    esac
done

setup demo
work=$here
if $toy; then
    # Paths in a recipe are relative to it, so that a copy elsewhere has its own data, experiments and results.
    work=$here/data/toy
    mkdir -p "$work"
    cp "$here"/*.yaml "$work"
    size=(--train 26 --dev 4 --test 4)
    arguments=(--retrain training.epochs=1 model.frontend.channels=4 ${arguments[@]+"${arguments[@]}"})
fi

say "making the corpus in $work/data"
"$PYTHON" "$here/../../tools/make_demo_corpus.py" "$work/data" ${size[@]+"${size[@]}"}

say "training and comparing"
asr compare "$work"/{softmax,lsh,linear,bilstm}.yaml --out "$work/results" ${arguments[@]+"${arguments[@]}"}

say "decoding a recording of a speaker that was in no training set, with the best of them"
"$PYTHON" - "$work" <<'PYTHON' >"$work/results/held_out.txt"
import json, pathlib, sys

work = pathlib.Path(sys.argv[1])
rows = [row for row in json.loads((work / "results/compare.json").read_text("utf-8"))["rows"] if row["rates"]]
item = json.loads((work / "data/test.jsonl").read_text("utf-8").splitlines()[0])
best = min(rows, key=lambda row: row["rates"]["test"]["value"])
print(best["exp"], work / "data" / item["audio"], item["text"], sep="\n")
print(*(phone.rstrip("012") for phone in item["phones"].split()))
PYTHON
{ read -r exp && read -r audio && read -r text && read -r phones; } <"$work/results/held_out.txt"
echo "model:     $exp"
echo "recording: $audio"
echo "said:      $text"
echo "reference: $phones"
decoded=$(asr decode "$exp" "$audio" | cut -f 2-)
echo "decoded:   $decoded"

say "done; tables and plots are in $work/results"
echo "To use the command yourself: '$PYTHON' -m asr, or put $(dirname "$PYTHON") on PATH" >&2
