"""The text files of a data directory: one record a line, `KEY VALUE...`, read by key and never by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from asr.data.text import read_lines, split_words
from asr.errors import DataError
from asr.files import write_atomically


class Field(NamedTuple):
    """The rest of a line after its key, and where it stands (`file:line`)."""

    value: str
    where: str


Table = dict[str, Field]


def read_table(path: Path, *, empty: bool = False) -> Table:
    """key → value of a file in any order; keys end at a space or tab, and lines at LF only.

    Raises DataError naming file and line for a key that stands twice (both lines are named), a key that holds a
    Unicode space or an invisible character, and, unless `empty` values are allowed, for a key without value.
    """
    table: Table = {}
    for number, line in read_lines(path):
        key, *rest = line.replace("\t", " ").strip(" ").split(" ", 1)
        value, where = (rest[0].strip(" ") if rest else ""), f"{path}:{number}"
        if "\t" in line and value:  # a tab inside a value, such as a file name, is kept
            value = line.strip(" \t")[len(key) + 1 :].strip(" \t")
        _check_key(key, where)
        if key in table:
            first = table[key].where.rpartition(":")[2]
            raise DataError(f"{where}: id {key!r} stands already in line {first}; ids must be unique")
        if not value and not empty:
            raise DataError(f"{where}: nothing follows the id {key!r}")
        table[key] = Field(value, where)
    return table


def read_speakers(folder: Path) -> dict[str, str] | None:
    """utterance → speaker from `utt2spk`, else from `spk2utt`; None where neither file is there.

    Raises DataError where an utterance has two speakers, within a file or between the two.
    """
    single, grouped = folder / "utt2spk", folder / "spk2utt"
    speakers: dict[str, Field] = {}
    if single.is_file():
        speakers = read_table(single)
        for field in speakers.values():
            _check_key(field.value, field.where)
    if grouped.is_file():
        seen: dict[str, Field] = {}
        for speaker, (value, where) in read_table(grouped).items():
            for utterance in value.split():
                other = seen.get(utterance) or speakers.get(utterance)
                if other and other.value != speaker:
                    raise DataError(
                        f"{where}: utterance {utterance!r} belongs to {speaker!r} here and to {other.value!r} "
                        f"in {other.where}"
                    )
                seen[utterance] = Field(speaker, where)
        speakers = speakers or seen
    elif not single.is_file():
        return None
    return {utterance: field.value for utterance, field in speakers.items()}


def write_table(path: Path, rows: Mapping[str, str]) -> None:
    """Write `KEY VALUE` lines, keys in byte order whatever the locale."""
    lines = (f"{key} {rows[key]}".rstrip(" ") + "\n" for key in byte_order(rows))
    write_atomically(path, "".join(lines))


def byte_order(keys: Iterable[str]) -> list[str]:
    """Sorted as `LC_ALL=C sort` does."""
    return sorted(keys, key=lambda key: key.encode("utf-8"))


def _check_key(key: str, where: str) -> None:
    try:
        words = split_words(key)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if words != [key]:
        points = ", ".join(f"U+{ord(c):04X}" for c in key if split_words(f"a{c}b") != [f"a{c}b"])
        raise DataError(f"{where}: {key!r} holds the space {points}; ids end at a plain space or tab")
