"""Pronunciation lexicons in the text styles of CMUdict, CMU Sphinx and Kaldi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asr.data.text import read_lines, split_words
from asr.errors import DataError
from asr.files import write_atomically

Stress = Literal["keep", "fold"]
Pronunciation = tuple[str, ...]

_VARIANT = re.compile(r"(.+)\(\d+\)")
# Only ARPAbet's own vowels in its own upper case are folded: a final digit is a tone in other phone sets.
_STRESSED = re.compile(r"(AA|AE|AH|AO|AW|AX|AXR|AY|EH|ER|EY|IH|IX|IY|OW|OY|UH|UW|UX)[0-2]")


@dataclass(frozen=True)
class Lexicon:
    """Words and their pronunciations, the preferred one first."""

    entries: Mapping[str, tuple[Pronunciation, ...]]
    stress: Stress = "keep"

    def __getitem__(self, word: str) -> tuple[Pronunciation, ...]:
        """All pronunciations of a word, in the order of the file. Raises KeyError for an unknown word."""
        return self.entries[word]

    def __contains__(self, word: object) -> bool:
        return word in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def phones(self) -> list[str]:
        """Every phone of every pronunciation once, sorted by code point."""
        return sorted({phone for variants in self.entries.values() for phones in variants for phone in phones})


def fold_stress(phone: str) -> str:
    """The ARPAbet vowel without its stress mark (AH0 → AH); other symbols are returned unchanged."""
    match = _STRESSED.fullmatch(phone)
    return match[1] if match else phone


def read_lexicon(path: str | Path, stress: Stress) -> Lexicon:
    """Read `WORD  PHONE PHONE ...` lines, fields separated by spaces or tabs.

    - `WORD(2)` and a repeated `WORD` are further pronunciations of WORD. Only a final `(number)` is a variant mark:
      `B2B`, `(PAREN` and `(1)` are words.
    - Lines that begin with `;;;` are comments (CMUdict).
    - A field after the headword that begins with `#` starts a comment (cmudict.dict).
    - A line that begins with `#` is an entry, for a word such as `#` or `#HASH-MARK`, if all its other fields are
      phones of the rest of the file; else it is a comment.
    - `stress="fold"` takes the stress mark off ARPAbet vowels; pronunciations that become equal are kept once.

    Raises DataError naming file and line for a word without phones, a line that is not UTF-8 and a lexicon with
    probabilities, and for a file without entries.
    """
    path = Path(path)
    lines: list[tuple[str, list[str]]] = []
    for number, line in read_lines(path):
        if line.startswith(";;;"):
            continue
        try:
            word, *phones = split_words(line)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        phones = phones[: next((i for i, phone in enumerate(phones) if phone.startswith("#")), None)]
        if not phones and not word.startswith("#"):
            raise DataError(f"{path}:{number}: the word {word!r} has no phones")
        if phones and re.fullmatch(r"\d+\.\d+([eE]-?\d+)?", phones[0]) and not word.startswith("#"):
            raise DataError(
                f"{path}:{number}: {phones[0]!r} is a probability; give a lexicon without them (lexicon.txt)"
            )
        lines.append((word, phones))
    known = {phone for word, phones in lines if not word.startswith("#") for phone in phones}
    pairs = [
        (word, phones) for word, phones in lines if not word.startswith("#") or (phones and known.issuperset(phones))
    ]
    if not pairs:
        raise DataError(f"{path}: no pronunciations in this lexicon")
    return make_lexicon(((_base(word), phones) for word, phones in pairs), stress)


def make_lexicon(pairs: Iterable[tuple[str, Iterable[str]]], stress: Stress) -> Lexicon:
    """A lexicon from (word, phones) pairs; pairs of the same word are variants, equal ones are kept once."""
    entries: dict[str, dict[Pronunciation, None]] = {}
    for word, phones in pairs:
        folded = tuple(fold_stress(phone) if stress == "fold" else phone for phone in phones)
        entries.setdefault(word, {})[folded] = None
    return Lexicon({word: tuple(variants) for word, variants in entries.items()}, stress)


def write_lexicon(path: str | Path, lexicon: Lexicon) -> None:
    """Write CMUdict style, words in byte order, further pronunciations as `WORD(2)`, `WORD(3)`."""
    lines = []
    for word in sorted(lexicon.entries, key=lambda word: word.encode("utf-8")):
        for number, phones in enumerate(lexicon[word], start=1):
            lines.append(f"{word if number == 1 else f'{word}({number})'}  {' '.join(phones)}\n")
    write_atomically(Path(path), "".join(lines))


def _base(word: str) -> str:
    match = _VARIANT.fullmatch(word)
    return match[1] if match else word
