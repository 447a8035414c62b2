#!/usr/bin/env bash
# The copy task, end to end: trains softmax, linear and LSH attention to repeat sequences, prints the table, draws the curves.
#
#   bash recipes/copy/run.sh [--paper] [--toy] [--workers N] [--retrain] [key.sub=value ...]
#
# --paper    the size of "Transformers are RNNs", for a GPU's patience: hours on a CPU
# --toy      a few seconds, to see that everything works. The models learn nothing.
# --workers  trainings at a time, each on one thread (one a core where it is left out)
# Everything else changes all three recipes, for example 'seeds=[0]' or training.updates=3000. After Ctrl-C the same
# command goes on with the trainings that are not done; --retrain repeats them all.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"
recipe_options "$@"
[ -z "$data" ] || _usage_error "--data: the copy task makes its own sequences"

setup
prefix='' out=$here/results
if [ "$table" = paper ]; then prefix=paper- out=$here/results/paper; fi
if $toy; then
    out=$here/results/toy
    arguments=(
        --retrain 'seeds=[0]' training.{updates=20,log_updates=5,test_batches=1} model.layers=1 task.batch=8
        ${arguments[@]+"${arguments[@]}"}
    )
fi
say "training softmax, linear and LSH attention"
"$PYTHON" "$here/../../tools/copy_task.py" "$here/$prefix"{softmax,linear,lsh}.yaml --out "$out" ${arguments[@]+"${arguments[@]}"}
say "done; table, curves and plot are in $out"
