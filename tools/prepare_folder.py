"""Prepare your own recordings: audio files beside text files, or a table of them; one manifest per set.

    python tools/prepare_folder.py --data recordings --out data          anna/one.wav, anna/one.txt, ...
    python tools/prepare_folder.py --data . --table all.csv --out data   columns audio, text, speaker, id, split

Every audio file below --data is paired with the .txt of the same name beside it; its folder is its speaker. In a table,
audio is relative to --data, and the columns are named by its first line or, for a file without one, by --columns; only
audio and text must be there. A .tsv is separated by tabs and knows no quotes. Sets are drawn by speaker, so that nobody
is in two of them, unless the table has a column split.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import prepare_common as common
from prepare_shards import Shards

from asr.data.audio_stats import AudioStats
from asr.data.lexicon import read_lexicon
from asr.data.manifest import Utterance
from asr.data.text import read_lines, split_words
from asr.errors import DataError
from asr.wording import counted

SUFFIXES = frozenset(
    f".{end}" for end in ("wav", "flac", "mp3", "m4a", "ogg", "opus", "aac", "wma", "webm", "aiff", "aif")
)
SUFFIXES |= {".sph", ".nist", ".wv1", ".wv2"}
ALIASES = {"path": "audio", "file": "audio", "sentence": "text", "transcript": "text", "client_id": "speaker"}


def main() -> None:
    args = _parse()
    data, shards = common.folder(args.data), Shards(args)
    dropped: dict[str, str] = {}
    stats: dict[str, AudioStats] = {}
    rows = list(_table(args.table, data, args.columns, dropped) if args.table else _beside(data, dropped))
    if not rows:
        raise DataError(f"{args.table or data}: no audio with text" + _first(dropped))
    items: list[common.Item] = []
    given: dict[str, str] = {}  # id → split
    for id, audio, speaker, text, split in common.spread(rows, args.limit):
        try:
            items.append((id, audio, speaker if args.speaker == "folder" else id, " ".join(split_words(text))))
        except DataError as error:
            dropped[id] = str(error)
        if split:
            given[id] = split
    utterances = common.measure(items, dropped, stats, shards)
    sets: dict[str, list[Utterance]] = defaultdict(list)
    if given:
        for utterance in utterances:
            sets[given[utterance.id]].append(utterance)
    else:
        where = assign({utterance.speaker for utterance in utterances}, args.split, args.seed)
        sets |= {name: [] for name in args.split}
        for utterance in utterances:
            sets[where[utterance.speaker]].append(utterance)
    lexicon = read_lexicon(args.lexicon, "keep") if args.lexicon else None
    common.write_sets(args.out, sets, lexicon, dropped, shards, stats)


Row = tuple[str, Path, str, str, str]  # id, audio, speaker, text, split (empty: none)


def assign(speakers: set[str], shares: dict[str, float], seed: int) -> dict[str, str]:
    """speaker → set: each set gets its share of the speakers, rounded, and at least one. The same for the same seed.

    Raises DataError if there are fewer speakers than sets.
    """
    if len(speakers) < len(shares):
        raise DataError(
            f"{counted(len(speakers), 'speaker')} cannot be shared out to {', '.join(shares)}; "
            "with --speaker none every utterance counts as its own speaker"
        )
    # by hash, not by a random generator: the same choice under every version of Python
    order = sorted(speakers, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    total, spare = sum(shares.values()), len(order) - len(shares)
    ideal = {name: share / total * len(order) for name, share in shares.items()}
    sizes = dict.fromkeys(shares, 1)
    for _ in range(spare):
        sizes[max(sizes, key=lambda name: ideal[name] - sizes[name])] += 1
    names = iter(order)
    return {next(names): name for name, size in sizes.items() for _ in range(size)}


def _beside(data: Path, dropped: dict[str, str]) -> Iterator[Row]:
    groups: dict[Path, list[Path]] = defaultdict(list)
    for path in sorted(data.rglob("*"), key=lambda path: path.as_posix().encode("utf-8", "surrogateescape")):
        if path.is_file() and path.suffix.lower() in SUFFIXES | {".txt"} and not path.name.startswith("."):
            groups[path.with_suffix("")].append(path)
    ids: dict[str, Path] = {}
    for stem, paths in groups.items():
        place = stem.relative_to(data)
        id = _name(place.as_posix())
        if id in ids:
            raise DataError(f"{stem} and {ids[id]} would both be called {id!r}; rename one")
        ids[id] = stem
        sounds = [path for path in paths if path.suffix.lower() in SUFFIXES]
        texts = [path for path in paths if path not in sounds]
        if len(sounds) != 1 or len(texts) != 1:
            names = ", ".join(path.name for path in paths)
            dropped[id] = f"{stem.parent}: one audio file and one .txt are expected, found {names}"
            continue
        try:
            text = " ".join(line for _, line in read_lines(texts[0]))
        except DataError as error:
            dropped[id] = str(error)
            continue
        speaker = place.parent.name or data.absolute().name
        yield id, sounds[0], _name(speaker), text, ""


def _table(path: Path, data: Path, columns: list[str] | None, dropped: dict[str, str]) -> Iterator[Row]:
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in read_lines(path):  # noqa: B007  (seen by the loop below)
            yield line + "\n"

    tabs = path.suffix.lower() in (".tsv", ".tab")
    reader = csv.reader(
        lines(), delimiter="\t" if tabs else ",", quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL, strict=True
    )
    names = columns or [name.strip() for name in next(reader, [])]
    names = [ALIASES.get(name.lower(), name.lower()) for name in names]
    if not {"audio", "text"} <= set(names) or len(set(names)) < len(names):
        raise DataError(
            f"{path}: columns {', '.join(names)}: audio and text are needed and no name may stand twice; "
            "--columns names the columns of a file without a first line of names"
        )
    seen: dict[str, int] = {}
    try:
        for fields in reader:
            if len(fields) != len(names):
                dropped[f"line-{number}"] = f"{path}:{number}: {len(names)} columns are expected, got {len(fields)}"
                continue
            row = dict(zip(names, fields, strict=True))
            audio = Path(row["audio"].strip())
            id = _name(row.get("id", "").strip() or audio.with_suffix("").as_posix())
            if id in seen:
                raise DataError(f"{path}:{number}: id {id!r} stands already in line {seen[id]}")
            seen[id] = number
            speaker = _name(row.get("speaker", "").strip() or audio.parent.name or data.absolute().name)
            split = _name(row["split"].strip()) if "split" in row else ""
            if "split" in row and not row["split"].strip():
                dropped[id] = f"{path}:{number}: the column split is empty"
                continue
            yield id, data / audio, speaker, row["text"], split
    except csv.Error as error:
        raise DataError(f"{path}:{number}: {error}") from None


def _name(text: str) -> str:
    """An id: folders and spaces become '-' and '_'."""
    return re.sub(r"\s+", "_", text.strip("/").replace("/", "-")) or "_"


def _first(dropped: dict[str, str]) -> str:
    return "".join(f"; first dropped: {id}: {reason}" for id, reason in list(dropped.items())[:1])


def _parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--table", type=Path, help="CSV or TSV file with one recording a line")
    parser.add_argument("--columns", type=lambda text: text.split(","), help="names of the table's columns, by commas")
    parser.add_argument(
        "--speaker", choices=("folder", "none"), default="folder", help="none: every utterance is its own speaker"
    )
    parser.add_argument(
        "--split",
        type=_shares,
        default="train=80,dev=10,test=10",
        help="sets and their shares of speakers (default %(default)s)",
    )
    parser.add_argument("--seed", type=common.count, default=0, help="chooses the speakers of each set")
    parser.add_argument("--lexicon", type=Path, help="copied to lexicon.txt; words that it lacks are counted")
    return parser.parse_args()


def _shares(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    shares = {name: common.seconds(share) for name, _, share in pairs}
    if (
        len(shares) < len(pairs)
        or not all(re.fullmatch(r"[\w-]+", name) for name in shares)
        or not all(shares.values())
    ):
        raise ValueError
    return shares


if __name__ == "__main__":
    sys.exit(common.run(main))
