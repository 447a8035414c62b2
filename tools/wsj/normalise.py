"""WSJ transcripts as words: a table of rules, applied to each token in order.

The marks are those of the corpus documentation (csr-dot-spec, LDC93S6C/dot_spec.txt) and of the prompts with spoken
punctuation. What no rule knows stays in the text and is listed in `Normalised.unknown`.

To change a convention, change its line in RULES; tests/tools/test_wsj_normaliser.py has one test for each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from asr.data.text import split_words
from asr.errors import DataError

NOISE = "<NOISE>"  # a sound that is no speech: [door_slam], [loud_breath]
SPOKEN_NOISE = "<SPOKEN_NOISE>"  # speech that spells no word: incorp-

# Punctuation that was read aloud, by the mark before its name. Two names of one mark are two pronunciations.
SPOKEN_PUNCTUATION = {
    "!": "EXCLAMATION-POINT EXCLAMATION-MARK",
    '"': "CLOSE-QUOTE DOUBLE-QUOTE END-OF-QUOTE END-QUOTE IN-QUOTES QUOTE UNQUOTE",
    "#": "SHARP-SIGN",
    "%": "PERCENT",
    "&": "AMPERSAND",
    "(": "BEGIN-PARENS IN-PARENTHESES LEFT-PAREN OPEN-PARENTHESES PAREN PARENS PARENTHESES",
    ")": "CLOSE-PAREN CLOSE-PARENTHESES END-OF-PAREN END-PAREN END-PARENS END-PARENTHESES END-THE-PAREN PAREN PARENS "
    "RIGHT-PAREN UN-PARENTHESES",
    ",": "COMMA",
    "-": "DASH HYPHEN",
    "--": "DASH",
    ".": "DECIMAL DOT FULL-STOP PERIOD POINT",
    "...": "ELLIPSIS",
    "/": "SLASH",
    ":": "COLON",
    ";": "SEMI-COLON SEMICOLON",
    "?": "QUESTION-MARK",
    "{": "BRACE LEFT-BRACE OPEN-BRACE",
    "}": "CLOSE-BRACE RIGHT-BRACE",
    "'": "APOSTROPHE END-INNER-QUOTE END-QUOTE INNER-QUOTE QUOTE SINGLE-QUOTE",
}
_SPOKEN = {mark + name: name for mark, names in SPOKEN_PUNCTUATION.items() for name in names.split()}

_NAME = r"[\w'-]+"  # of a sound: door_slam
_WORD = re.compile(r"'?[A-Z0-9][A-Z0-9'.&-]*(?<!-)")  # what a lexicon could hold
_GLUED = re.compile(r"(?<!\\)(\[[^\[\]\s]*\])")  # a bracketed mark without a space beside it
_SENTENCE_MARKERS = {"<S>", "</S>"}


@dataclass(frozen=True)
class Rule:
    """Every match of `pattern` in a token becomes `replacement`; if `final`, no later rule sees the token."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]
    final: bool = False


def _rule(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str] = "", final: bool = False) -> Rule:
    return Rule(name, re.compile(pattern), replacement, final)


RULES = (
    _rule("upper case", r"^.*[a-z].*$", lambda match: match[0].upper()),
    # Bracketed marks, before anything takes < and > away.
    _rule("sound at a word", rf"^\[(<{_NAME}|{_NAME}>)\]$"),  # [<door_slam] [door_slam>]
    _rule("sound over words", rf"^\[({_NAME}/|/{_NAME})\]$"),  # [phone_ring/] ... [/phone_ring]
    _rule("sound", rf"^\[{_NAME}\]$", NOISE, final=True),
    _rule("backslash", r"\\"),  # quotes a character that is part of the word: \"DOUBLE-QUOTE
    _rule("deleted word", r"[<>]"),  # <word>: replaced in speech, but audible
    _rule("mispronounced", r"\*"),  # *word*: understood all the same
    _rule("cut off", r"~"),  # the recording starts or ends within the utterance
    _rule("pause", r"^\.$"),
    # Before emphasis and lengthening: `!` and `:` also are punctuation that was read aloud. This covers the spellings
    # %PERCENT, .POINT and --DASH of the November 1993 tests.
    _rule(
        "spoken punctuation",
        "^(" + "|".join(re.escape(token) for token in _SPOKEN) + ")$",
        lambda match: _SPOKEN[match[0]],
        final=True,
    ),
    _rule("emphasis", r"^!(?=.)"),
    _rule("lengthening", r"(?<=[A-Z]):"),
    _rule("truncated word", r"^([A-Z'.]+(\([A-Z'.]+\))?-|-(\([A-Z'.]+\))?[A-Z'.]+)$", SPOKEN_NOISE, final=True),
)


@dataclass(frozen=True)
class Normalised:
    """`words` of an utterance; how often each rule was used; tokens with marks that no rule knows (also in `words`)."""

    words: list[str]
    rules: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def normalise(text: str, noise: bool = True) -> Normalised:
    r"""The words of a transcript line without its `(utterance-id)`, in upper case.

    noise: keep a sound between words as `<NOISE>`; else it is dropped.
    Raises DataError for a sentence marker (`<s>`: the text went through other tools before) and for invisible
    characters.

    >>> normalise(r"the [phone_ring/] *de:al* . is \,COMMA !now [/phone_ring] <not> [loud_breath] incorp- A. ~").text
    'THE DEAL IS COMMA NOW NOT <NOISE> <SPOKEN_NOISE> A.'
    """
    result = Normalised([])
    for token in split_words(_GLUED.sub(r" \1 ", text)):
        if token.upper() in _SENTENCE_MARKERS:
            raise DataError(f"the transcript holds the sentence marker {token!r}; take the original .dot file")
        word, final = _apply(token, result.rules)
        if not word or (word == NOISE and final and not noise):
            continue
        if not final and not _WORD.fullmatch(word):
            result.unknown.append(word)
        result.words.append(word)
    return result


def _apply(token: str, used: Counter[str]) -> tuple[str, bool]:
    for rule in RULES:
        changed, times = rule.pattern.subn(rule.replacement, token)
        if times:
            used[rule.name] += 1
            token = changed
            if rule.final:
                return token, True
    return token, False
