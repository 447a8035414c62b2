#!/usr/bin/env bash
# Wall Street Journal: prepares the discs, computes features, trains four encoders, prints them beside the paper's rows.
#
#   bash recipes/wsj/run.sh --wsj0 DIR --wsj1 DIR [--prepare] [--allow-missing] [--retrain] [key.sub=value ...]
#       [--dev dev93|cv05] [--labels 72|39]
#   bash recipes/wsj/run.sh --toy [--wsj0 DIR --wsj1 DIR]
#
# DIR: the discs of LDC93S6A or LDC93S6B, and of LDC94S13A or LDC94S13B, or the merged folders. Prepared data are used
# again unless --prepare is given. --allow-missing: go on although utterances are missing or damaged.
# --dev cv05: validate on 5 % of the training speakers, which are then not trained on; --labels 39: phones without stress.
# --toy: one-layer models, two epochs, in a folder of its own; without DIR on made-up discs of synthetic speech. It shows
# that everything works; the models learn nothing.
# Everything else goes to `asr compare`: overrides such as training.epochs=40, and --retrain to train anew.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"

wsj0=
wsj1=
dev=dev93
labels=72
toy=false
prepare=false
preparation=(--oov spn)
arguments=()
while (($#)); do
    case $1 in
    --wsj0 | --wsj1)
        if (($# < 2)) || [ ! -d "$2" ]; then
            echo "error: $1 ${2:-}: no such folder" >&2
            exit 2
        fi
        printf -v "${1#--}" %s "$(cd "$2" && pwd)"
        shift
        ;;
    --toy) toy=true ;;
    --prepare) prepare=true ;;
    --dev | --labels)
        case "$1 ${2:-}" in
        "--dev dev93" | "--dev cv05" | "--labels 72" | "--labels 39") printf -v "${1#--}" %s "$2" ;;
        *)
            echo "error: $1 ${2:-}: dev93 or cv05 is expected for --dev, 72 or 39 for --labels" >&2
            exit 2
            ;;
        esac
        shift
        ;;
    --allow-missing) preparation+=("$1") ;;
    -h | --help)
        sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit
        ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
if ! $toy && [ -z "$wsj0$wsj1" ] && [ ! -f "$here/data/report.json" ]; then
    echo "error: where are the discs? bash $0 --wsj0 DIR --wsj1 DIR (or --toy, for made-up ones)" >&2
    exit 2
fi

setup demo
work=$here
if $toy; then
    # Paths in a recipe are relative to it, so that a copy elsewhere has its own data, experiments and results.
    work=$here/data/toy
    prepare=true
    mkdir -p "$work"
    cp "$here"/*.yaml "$work"
    # One thread: models this small only lose by more, and by far where other programs use the cores too.
    arguments=(--retrain training.epochs=2 training.batch_frames=6000 training.threads=1 ${arguments[@]+"${arguments[@]}"})
    if [ -z "$wsj0$wsj1" ]; then
        say "making discs in $work/discs"
        "$PYTHON" "$here/../../tools/make_fake_wsj.py" "$work/discs"
        wsj0=$work/discs
        wsj1=$work/discs
    fi
fi

if $prepare || [ ! -f "$work/data/report.json" ]; then
    say "preparing $work/data"
    # Made-up discs bring the counts that are due; the real ones have those that tools/wsj/sets.py lists.
    [ ! -f "$wsj0/counts.json" ] || preparation+=(--counts "$wsj0/counts.json")
    [ -z "$wsj0" ] || preparation+=(--wsj0 "$wsj0")
    [ -z "$wsj1" ] || preparation+=(--wsj1 "$wsj1")
    "$PYTHON" "$here/../../tools/prepare_wsj.py" --out "$work/data" "${preparation[@]}"
fi

recipes=$work
results=$work/results
if $toy || [ "$dev $labels" != "dev93 72" ]; then
    # The same recipes with other sizes, validation set or labels, in a folder of their own: nothing is overwritten.
    recipes=$work/data/recipes/${dev}_$labels
    results=$work/results/${dev}_$labels
    mkdir -p "$recipes"
    for name in softmax lsh linear bilstm; do
        {
            echo "extends: ../../../$name.yaml"
            [ "$labels" = 72 ] || echo "tokens: {stress: fold}"
            [ "$dev" = dev93 ] || cat <<'YAML'
data:
  train: ../../train_tr95.jsonl
  dev: ../../train_cv05.jsonl
  test: {cv05: ../../train_cv05.jsonl}
YAML
            case $toy-$name in
            true-bilstm) echo "model: {encoder: {layers: 1, hidden: 24}}" ;;
            true-*) echo "model: {encoder: {layers: 1, dim: 48, heads: 2, feedforward: 96}}" ;;
            esac
        } >"$recipes/$name.yaml"
    done
fi

say "training and comparing"
asr compare "$recipes"/{softmax,lsh,linear,bilstm}.yaml --out "$results" ${arguments[@]+"${arguments[@]}"}

say "done; tables and plots are in $results"
