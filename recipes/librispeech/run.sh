#!/usr/bin/env bash
# LibriSpeech, end to end: prepares the corpus, trains five encoders for an epoch, prints the table, draws the plots,
# decodes a recording.
#
#   bash recipes/librispeech/run.sh --data DIR [--toy] [--retrain] [key.sub=value ...]
#
# --data  the folder LibriSpeech of https://www.openslr.org/12 with train-clean-100 and test-other
# --toy   a minute, to see that everything works; without --data on synthetic speech. The models learn nothing.
# Everything else goes to `asr compare`: overrides such as training.epochs=40, and --retrain to train anew.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"
recipe_options "$@"
prepare prepare_librispeech.py "the folder of LibriSpeech with train-clean-100 and test-other, read books, CC BY 4.0; \
get it from https://www.openslr.org/12 (or try --toy)" test-other --limit 4 --dev-speakers 1
compare_and_decode results test-other softmax softmax-materialised lsh linear bilstm
