#!/usr/bin/env bash
# CMU AN4, end to end: prepares the corpus, trains four encoders, prints the table, draws the plots, decodes a recording.
#
#   bash recipes/an4/run.sh --data DIR [--paper|--mixers] [--toy] [--retrain] [key.sub=value ...]
#
# --data   the corpus: http://www.speech.cs.cmu.edu/databases/an4/, unpacked; README.md describes other layouts
# --paper  the encoder of "Transformers are RNNs" instead of our own
# --mixers every mixer in one encoder, 8 minutes of training each: three hours, into results/mixers. Stopped and called
#          again it goes on where it was.
# --toy    a minute, to see that everything works; without --data on synthetic speech. The models learn nothing.
# Everything else goes to `asr compare`: overrides such as training.epochs=40, and --retrain to train anew.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../setup.sh"
recipe_options "$@"
prepare prepare_an4.py "the folder of CMU AN4, 50 minutes of spelled names and numbers, free for any purpose; \
get it from http://www.speech.cs.cmu.edu/databases/an4/ (or try --toy)" test --limit 28 --dev-speakers 4
case $table in
paper) compare_and_decode results/paper test paper-{softmax,lsh,linear,bilstm} ;;
mixers)
    compare_and_decode results/mixers test mixers/{softmax,softmax-window,softmax-chunks,lsh} \
        mixers/linear{,-exp,-square,-favor,-hedgehog,-output} mixers/{lightning,decay,retention,gated,gau} \
        mixers/{ssm,ssm-selective,summary,lstm,bilstm,hybrid}
    ;;
*) compare_and_decode results test softmax lsh linear bilstm ;;
esac
