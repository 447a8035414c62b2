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
recipe_options "$@"
[ -z "$data" ] || _usage_error "--data: the demo makes its own corpus; recipes/an4 and others take one"

setup demo
work=$here
size=()
if $toy; then
    # Paths in a recipe are relative to it, so that a copy elsewhere has its own data, experiments and results.
    work=$here/data/toy
    mkdir -p "$work"
    cp "$here"/*.yaml "$work"
    size=(--train 26 --dev 4 --test 4)
    arguments=(
        --retrain training.{epochs,threads}=1 model.frontend.channels=4 ${arguments[@]+"${arguments[@]}"}
    )
fi
say "making the corpus in $work/data"
"$PYTHON" "$here/../../tools/make_demo_corpus.py" "$work/data" ${size[@]+"${size[@]}"}
compare_and_decode results test softmax lsh linear bilstm
