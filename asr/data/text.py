"""The one rule by which a transcript becomes words; targets, lexicons and scoring all use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from asr.errors import DataError

# Every character with Unicode's White_Space property. A no-break or ideographic space separates words too: the
# alternative is a "word" that no lexicon holds.
SEPARATORS = (
    "\t\n\v\f\r \u0085\u00a0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)  # fmt: skip
_SEPARATORS = re.compile(f"[{SEPARATORS}]+")

# Characters that nobody sees and that make two equal-looking words differ: controls, soft hyphen, zero-width space,
# direction marks, word joiner, byte order mark, lone surrogates. The zero-width (non-)joiner U+200C and U+200D are
# spelling in Persian and the Indic scripts and stay.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ud800-\udfff]"
)


def split_words(text: str) -> list[str]:
    """The words of `text`: what stands between runs of `SEPARATORS`.

    Raises DataError with the code point and the position when the text holds an invisible character.

    >>> split_words("two\\u00a0words\\t")
    ['two', 'words']
    """
    bad = _INVISIBLE.search(text)
    if bad:
        raise DataError(
            f"invisible character U+{ord(bad.group()):04X} at position {bad.start() + 1}: "
            "remove it, or put a space there"
        )
    return [word for word in _SEPARATORS.split(text) if word]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 file, empty lines left out.

    Lines end at LF and nowhere else; a CR before it and a byte order mark at the start are taken off.
    Raises DataError naming file and line where the bytes are not UTF-8, and where the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: byte 0x{raw[error.start]:02X} is not UTF-8; convert the file to UTF-8"
            ) from None
        if line.strip(" \t"):
            yield number, line
