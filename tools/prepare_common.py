"""What the corpus preparation programs share: lists, splits by speaker, checked durations, the printed report."""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from prepare_shards import Shards, add_options

from asr.data.audio_stats import AudioStats, Stretch
from asr.data.lexicon import Lexicon, write_lexicon
from asr.data.manifest import Utterance, write_manifest
from asr.data.preparation_report import write_report
from asr.data.text import read_lines
from asr.errors import AsrError, DataError

Item = tuple[str, Path, str, str]  # id, audio file, speaker, text
T = TypeVar("T")
MOST = 15  # entries of a list that are printed; report.txt has all


def run(main: Callable[[], None]) -> int:
    """Call `main`; print an expected error as one line. Returns the exit code: 0, or 1 after an error."""
    for stream in (sys.stdout, sys.stderr):  # a word that the terminal cannot show must not end the program
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except (AsrError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--data`, `--out`, `--shard` and `--merge`, described by the program's docstring."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--data", type=Path, required=True, help="folder of the corpus as distributed")
    result.add_argument("--out", type=Path, required=True, help="folder to write manifests and lexicon to")
    result.add_argument("--limit", type=positive, help="use this many utterances a list, spread over it; for trials")
    add_options(result)
    return result


def count(text: str) -> int:
    """argparse type: a whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def positive(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    if count(text) < 1:
        raise ValueError
    return int(text)


def seconds(text: str) -> float:
    """argparse type: a finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def folder(path: Path) -> Path:
    """The folder itself. Raises DataError if it is not there."""
    if not path.is_dir():
        raise DataError(f"--data {path}: no such folder")
    return path


def read_ids(path: Path) -> list[str]:
    """One id a line. Raises DataError for an id that stands twice, naming both lines."""
    seen: dict[str, int] = {}
    for number, line in read_lines(path):
        id = line.strip()
        if id in seen:
            raise DataError(f"{path}:{number}: id {id!r} stands already in line {seen[id]}")
        seen[id] = number
    return list(seen)


def read_transcripts(path: Path) -> dict[str, tuple[str, str]]:
    """Tab-separated id, speaker, text → {id: (speaker, text)}. Raises DataError naming file and line."""
    table: dict[str, tuple[str, str]] = {}
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 3:
            raise DataError(
                f"{path}:{number}: id, speaker and text separated by tabs are expected, got {len(fields)} fields"
            )
        if fields[0] in table:
            raise DataError(f"{path}:{number}: id {fields[0]!r} stands twice")
        table[fields[0]] = (fields[1], fields[2])
    return table


def pick(
    ids: Iterable[str],
    transcripts: Mapping[str, tuple[str, str]],
    audio: Callable[[str], Path],
    dropped: dict[str, str],
) -> list[Item]:
    """Items of a list of ids, by id and never by position; an id without transcript is noted in `dropped`."""
    items = []
    for id in ids:
        if id in transcripts:
            items.append((id, audio(id), *transcripts[id]))
        else:
            dropped[id] = "no transcript"
    return items


def spread(items: Sequence[T], limit: int | None) -> list[T]:
    """`limit` items at even distances, since neighbours in a list are often one speaker; None, or too many: all."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]


def measure(
    items: Iterable[Item], dropped: dict[str, str], stats: dict[str, AudioStats], shards: Shards
) -> list[Utterance]:
    """Utterances that span their whole files; a file that cannot be read is noted in `dropped` and left out.

    Every file is decoded: a header promises samples that a file cut short does not hold. What the samples show goes
    into `stats`, by id, for the report.
    """
    items = list(items)
    results = shards.measure([Stretch(audio) for _, audio, _, _ in items])
    utterances = []
    for (id, audio, speaker, text), result in zip(items, results, strict=True):
        if not isinstance(result, AudioStats):
            dropped[id] = str(result)
            continue
        stats[id] = result
        utterances.append(Utterance(id=id, audio=audio, duration=result.seconds, speaker=speaker, text=text))
    return utterances


def split_speakers(utterances: list[Utterance], held_out: int, seed: int) -> tuple[list[Utterance], list[Utterance]]:
    """(the rest, the utterances of `held_out` speakers chosen by seed); no speaker is in both.

    Raises DataError if no speaker would be left for training.
    """
    speakers = sorted({utterance.speaker for utterance in utterances})
    if held_out >= len(speakers):
        raise DataError(f"--dev-speakers {held_out}: there are only {len(speakers)} training speakers")
    # by hash, not by a random generator: the same choice under every version of Python
    chosen = set(sorted(speakers, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:held_out])
    return (
        [utterance for utterance in utterances if utterance.speaker not in chosen],
        [utterance for utterance in utterances if utterance.speaker in chosen],
    )


def write_sets(
    out: Path,
    sets: Mapping[str, list[Utterance]],
    lexicon: Lexicon | None,
    dropped: Mapping[str, str],
    shards: Shards,
    stats: Mapping[str, AudioStats] | None = None,
    notices: Sequence[str] = (),
) -> None:
    """Write `SET.jsonl`, `lexicon.txt` (where there is one), `report.txt` and `report.json`, and print the report.

    A run that is a shard of one writes what it measured instead. Raises DataError before writing anything if a set is
    empty.
    """
    if not shards.finish():
        return
    empty = [name for name, utterances in sets.items() if not utterances]
    if empty:
        why = next(iter(dropped.items()), None)
        raise DataError(
            f"no utterances left for {', '.join(empty)}" + (f"; first dropped: {why[0]}: {why[1]}" if why else "")
        )
    for name, utterances in sets.items():
        write_manifest(out / f"{name}.jsonl", utterances)
    if lexicon is not None:
        write_lexicon(out / "lexicon.txt", lexicon)
    report = write_report(out, sets, dropped, stats=stats, lexicon=lexicon, notices=notices)
    print(report.text(most=MOST), end="")
    shards.clear()
    print(f"written to {out}; complete lists in {out / 'report.txt'}")
