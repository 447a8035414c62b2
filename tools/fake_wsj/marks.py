"""Words as WSJ's transcribers wrote them: every mark of the corpus, with the text that must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Words = list[str]


@dataclass(frozen=True)
class Marked:
    """`raw` as in a .dot file; `text` is what preparation must make of it; `spoken` are the words in the audio."""

    raw: str
    text: str
    spoken: tuple[str, ...]


def mark(words: Words, kind: str) -> Marked:
    """Write `words` (lower case; `,` is a pause) with the marks of one of KINDS."""
    raw, text, spoken = _KINDS[kind]([word for word in words if word != "," or kind == "punctuation"])
    return Marked(" ".join(raw), " ".join(text).upper(), tuple(spoken))


def _on_word(form: str) -> Callable[[Words], tuple[Words, Words, Words]]:
    """One word, in the middle, written otherwise: `W` stands for it."""

    def apply(words: Words) -> tuple[Words, Words, Words]:
        place = len(words) // 2
        raw = [*words[:place], form.replace("W", words[place]), *words[place + 1 :]]
        return raw, words, words

    return apply


def _inserted(token: str, result: str = "") -> Callable[[Words], tuple[Words, Words, Words]]:
    """A token between two words; `result` is what stays of it."""

    def apply(words: Words) -> tuple[Words, Words, Words]:
        place = len(words) // 2
        text = [*words[:place], *result.split(), *words[place:]]
        return [*words[:place], token, *words[place:]], text, words

    return apply


def _spoken_last(token: str, word: str) -> Callable[[Words], tuple[Words, Words, Words]]:
    """A word said at the end and written with a mark."""
    return lambda words: ([*words, token], [*words, word], [*words, word])


def _lengthened(words: Words) -> tuple[Words, Words, Words]:
    return [words[0][:1] + ":" + words[0][1:], *words[1:]], words, words


def _span(words: Words) -> tuple[Words, Words, Words]:
    return [words[0], "[phone_ring/]", *words[1:-1], "[/phone_ring]", words[-1]], words, words


def _punctuation(words: Words) -> tuple[Words, Words, Words]:
    spoken = ["comma" if word == "," else word for word in words] + ["period"]
    return [r"\,COMMA" if word == "," else word for word in words] + [r"\.PERIOD"], spoken, spoken


_KINDS: dict[str, Callable[[Words], tuple[Words, Words, Words]]] = {
    "none": lambda words: (words, words, words),
    "sound": _inserted("[loud_breath]", "<noise>"),
    "sound before": _on_word("[door_slam>] W"),
    "sound after": _on_word("W [<paper_rustle]"),
    "span": _span,
    "pause": _inserted("."),
    "cut off": lambda words: ([*words, "~"], words, words),
    "deleted": _on_word("<W>"),
    "mispronounced": _on_word("*W*"),
    "emphasis": _on_word("!W"),
    "lengthening": _lengthened,
    "truncated": _inserted("incorp-", "<spoken_noise>"),
    "punctuation": _punctuation,
    "percent": _spoken_last("%PERCENT", "percent"),
    "point": _spoken_last(".POINT", "point"),
    "dash": _spoken_last("--DASH", "dash"),
}
NOVEMBER_1993 = ("percent", "point", "dash")  # spellings that only those tests have
KINDS = tuple(kind for kind in _KINDS if kind not in NOVEMBER_1993)
