#!/usr/bin/env bash
# Digit strings, end to end: joins recordings into strings, trains four encoders, prints the table, draws the plots,
# decodes a string.
#
#   bash recipes/digits/run.sh --data DIR [--toy] [--retrain] [key.sub=value ...]
#
# --data  the Free Spoken Digit Dataset, a clone of https://github.com/Jakobovski/free-spoken-digit-dataset
# --toy   a minute, to see that everything works; without --data on synthetic speech. The models learn nothing.
# Everything else goes to `asr compare`: overrides such as training.epochs=40, and --retrain to train anew.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"
recipe_options "$@"
prepare prepare_digits.py "the folder of the Free Spoken Digit Dataset, 3,000 digits of six speakers, CC BY-SA 4.0; \
get it by git clone https://github.com/Jakobovski/free-spoken-digit-dataset (or try --toy)" test --limit 24
compare_and_decode results test softmax lsh linear bilstm
