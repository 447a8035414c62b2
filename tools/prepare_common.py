"""What the corpus preparation programs share: lists, splits by speaker, checked durations, the printed report."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asr.audio.read import read_audio
from asr.data.lexicon import Lexicon, write_lexicon
from asr.data.manifest import Utterance, write_manifest
from asr.data.text import read_lines
from asr.data.validate import summarise
from asr.errors import AsrError, DataError

Item = tuple[str, Path, str, str]  # id, audio file, speaker, text


def run(main: Callable[[], None]) -> int:
    """Call `main`; print an expected error as one line. Returns the exit code: 0, or 1 after an error."""
    try:
        main()
    except (AsrError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--data` and `--out`, described by the program's docstring."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--data", type=Path, required=True, help="folder of the corpus as distributed")
    result.add_argument("--out", type=Path, required=True, help="folder to write manifests and lexicon to")
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


def measure(items: Iterable[Item], dropped: dict[str, str]) -> list[Utterance]:
    """Utterances that span their whole files; a file that cannot be read is noted in `dropped` and left out.

    Every file is decoded: a header promises samples that a file cut short does not hold.
    """
    items = list(items)
    print(f"reading {len(items)} audio files ...", file=sys.stderr)
    with ThreadPoolExecutor() as pool:  # the decoders release the interpreter
        seconds = list(pool.map(_seconds, [audio for _, audio, _, _ in items]))
    utterances = []
    for (id, audio, speaker, text), length in zip(items, seconds, strict=True):
        if isinstance(length, float):
            utterances.append(Utterance(id=id, audio=audio, duration=length, speaker=speaker, text=text))
        else:
            dropped[id] = length
    return utterances


def _seconds(audio: Path) -> float | str:
    try:
        decoded = read_audio(audio)
    except AsrError as error:
        return str(error)
    return len(decoded.samples) / decoded.rate


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


def write_sets(out: Path, sets: Mapping[str, list[Utterance]], lexicon: Lexicon, dropped: Mapping[str, str]) -> None:
    """Write `SET.jsonl` and `lexicon.txt`, and print what they hold and what was left out.

    Raises DataError before writing anything if a set is empty.
    """
    empty = [name for name, utterances in sets.items() if not utterances]
    if empty:
        why = next(iter(dropped.items()), None)
        raise DataError(
            f"no utterances left for {', '.join(empty)}" + (f"; first dropped: {why[0]}: {why[1]}" if why else "")
        )
    for name, utterances in sets.items():
        write_manifest(out / f"{name}.jsonl", utterances)
    write_lexicon(out / "lexicon.txt", lexicon)

    width = max(map(len, sets))
    for name, utterances in sets.items():
        s = summarise(utterances)
        print(
            f"{name:<{width}}  {s.utterances:6d} utterances  {s.speakers:4d} speakers  {s.hours:7.3f} h  "
            f"{s.min_seconds:.2f} / {s.mean_seconds:.2f} / {s.max_seconds:.2f} s (min / mean / max)  "
            f"{s.words} words ({s.distinct_words} distinct)"
        )
    print(f"lexicon: {len(lexicon)} words, {len(lexicon.phones)} phones")
    print_overlap(sets)
    print_oov(sets, lexicon)
    print(f"dropped: {len(dropped)} utterances")
    for id, reason in sorted(dropped.items()):
        print(f"  {id}: {reason}")
    print(f"written to {out}")


def print_overlap(sets: Mapping[str, list[Utterance]]) -> None:
    """Say whether sets share speakers: if they do, scores tell nothing about new speakers."""
    speakers = {name: {utterance.speaker for utterance in utterances} for name, utterances in sets.items()}
    names = list(sets)
    shared = [
        f"{a} and {b}: {len(speakers[a] & speakers[b])}"
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if speakers[a] & speakers[b]
    ]
    print("speakers in more than one set: " + (", ".join(shared) if shared else "none"))


def print_oov(sets: Mapping[str, list[Utterance]], lexicon: Lexicon, most: int = 15) -> None:
    """Count the words without pronunciation. Nothing is removed: `tokens.oov` in the recipe decides."""
    found = False
    for name, utterances in sets.items():
        words = [(word, utterance.id) for utterance in utterances for word in utterance.words]
        unknown = Counter(word for word, _ in words if word not in lexicon)
        if not unknown:
            continue
        ids = {id for word, id in words if word not in lexicon}
        top = sorted(unknown.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
        listed = ", ".join(f"{word} ({times})" for word, times in top) + (" ..." if len(unknown) > most else "")
        print(
            f"not in the lexicon, {name}: {unknown.total()} of {len(words)} words "
            f"({unknown.total() / len(words):.2%}), {len(unknown)} distinct, in {len(ids)} utterances: {listed}"
        )
        found = True
    if found:
        print("  these utterances are kept; tokens.oov in the recipe (error, unk or drop) decides")
