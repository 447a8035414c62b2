"""Words without pronunciation: listed in oov.tsv, and dealt with by a stated rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from asr.data.lexicon import Lexicon
from asr.data.manifest import Utterance
from asr.errors import DataError
from asr.files import write_atomically
from asr.wording import counted
from wsj.g2p import pronounce
from wsj.lexicon import SPOKEN_NOISE_PHONE, with_spoken_noise

Policy = Literal["error", "spn", "leave", "g2p"]


def cover(lexicon: Lexicon, utterances: Iterable[Utterance], policy: Policy, out: Path) -> tuple[Lexicon, list[str]]:
    """Write `out` (word, count, utterance ids); return the lexicon to use and lines for the report.

    error: raise DataError; spn: words are pronounced SPN, as in the recipes that publish 72 labels; leave: nothing;
    g2p: words are pronounced as `wsj.g2p` guesses, with phones of the lexicon only, and SPN where it has no guess;
    `out` then has each pronunciation and where it comes from. Raises AsrError where espeak-ng is missing.
    """
    ids: dict[str, Counter[str]] = {}
    for utterance in utterances:
        for word in utterance.words:
            if word not in lexicon:
                ids.setdefault(word, Counter())[utterance.id] += 1
    counts = {word: ids[word].total() for word in ids}
    order = sorted(counts, key=lambda word: (-counts[word], word))
    guesses = pronounce(order, lexicon.phones) if order and policy == "g2p" else {}
    rows = [
        ["word", "count", "utterances"],
        *([word, str(counts[word]), " ".join(sorted(ids[word]))] for word in order),
    ]
    if policy == "g2p":
        rows[0] += ["source", "pronunciation"]
        for row in rows[1:]:
            guess = guesses.get(row[0])
            row += ["espeak-ng", " ".join(guess)] if guess else ["none", SPOKEN_NOISE_PHONE]
    write_atomically(out, "".join("\t".join(row) + "\n" for row in rows))
    if not order or policy == "leave":
        return lexicon, []
    if policy == "error":
        raise DataError(
            f"{_found(order, counts, ', have no pronunciation')}; all are in {out}. Give pronunciations with "
            "--more-lexicon, or choose --oov g2p, --oov spn or --oov leave"
        )
    unknown = [word for word in order if word not in guesses]
    notices = []
    if guesses:
        guessed = [word for word in order if word in guesses]
        notices.append(f"not in the dictionary, pronounced by espeak-ng: {_found(guessed, counts)}")
    if unknown:
        notices.append(f"not in the dictionary, pronounced SPN: {_found(unknown, counts)}")
    lexicon = Lexicon({**lexicon.entries, **{word: (guess,) for word, guess in guesses.items()}}, lexicon.stress)
    return with_spoken_noise(lexicon, unknown), notices


def _found(words: Sequence[str], counts: Mapping[str, int], verb: str = "") -> str:
    top = ", ".join(f"{word} ({counts[word]})" for word in words[:15]) + (" ..." if len(words) > 15 else "")
    return f"{counted(sum(counts[word] for word in words), 'word')}, {len(words)} of them different{verb}: {top}"
