"""Prepare CMU AN4 (spelled names, numbers, dates; 16 kHz): train.jsonl, dev.jsonl, test.jsonl, lexicon.txt.

--data is either the distributed an4 folder (etc/an4_train.fileids, etc/an4_train.transcription, etc/an4.dic, wav/) or a
folder with transcripts.tsv (id, speaker, text), train.ids, test.ids, an4.dic and audio/ID.flac. The official test set
is left as it is; dev is all utterances of some training speakers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import prepare_common as common
from prepare_shards import Shards

from asr.data.audio_stats import AudioStats
from asr.data.lexicon import read_lexicon
from asr.data.text import read_lines
from asr.errors import DataError


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--dev-speakers", type=common.positive, default=7, help="training speakers held out for dev")
    parser.add_argument("--seed", type=common.count, default=0, help="chooses the dev speakers")
    args = parser.parse_args()
    shards = Shards(args)
    data = common.folder(args.data)
    dropped: dict[str, str] = {}
    stats: dict[str, AudioStats] = {}
    if (data / "etc").is_dir():
        train, test, lexicon = _original(data, "train", dropped), _original(data, "test", dropped), data / "etc/an4.dic"
    else:
        transcripts = common.read_transcripts(data / "transcripts.tsv")
        train, test = (
            common.pick(
                common.read_ids(data / f"{name}.ids"), transcripts, lambda id: data / "audio" / f"{id}.flac", dropped
            )
            for name in ("train", "test")
        )
        lexicon = data / "an4.dic"
    train, test = common.spread(train, args.limit), common.spread(test, args.limit)
    rest, dev = common.split_speakers(common.measure(train, dropped, stats, shards), args.dev_speakers, args.seed)
    sets = {"train": rest, "dev": dev, "test": common.measure(test, dropped, stats, shards)}
    common.write_sets(args.out, sets, read_lexicon(lexicon, "keep"), dropped, shards, stats)


def _original(data: Path, name: str, dropped: dict[str, str]) -> list[common.Item]:
    """Items of one set of the distributed layout; audio of `an4_clstk/fash/an1` is wav/an4_clstk/fash/an1.{wav,sph}."""
    path = data / "etc" / f"an4_{name}.transcription"
    texts: dict[str, str] = {}
    for number, line in read_lines(path):
        match = re.fullmatch(r"\s*(?:<s>)?(.*?)(?:</s>)?\s*\(([^()\s]+)\)\s*", line)
        if not match:
            raise DataError(f"{path}:{number}: '<s> WORDS </s> (id)' is expected, got {line!r}")
        if match[2] in texts:
            raise DataError(f"{path}:{number}: id {match[2]!r} stands twice")
        texts[match[2]] = match[1].strip()
    items: list[common.Item] = []
    for entry in common.read_ids(data / "etc" / f"an4_{name}.fileids"):
        place = Path(entry)
        if place.name not in texts:
            dropped[place.name] = f"no transcript in {path}"
            continue
        candidates = [data / "wav" / f"{entry}{suffix}" for suffix in (".wav", ".sph")]
        audio = next((file for file in candidates if file.is_file()), candidates[0])
        items.append((place.name, audio, place.parent.name, texts[place.name]))
    return items


if __name__ == "__main__":
    sys.exit(common.run(main))
