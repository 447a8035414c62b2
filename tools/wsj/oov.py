"""Words without pronunciation: listed in oov.tsv, and dealt with by a stated rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from asr.data.lexicon import Lexicon
from asr.data.manifest import Utterance, write_atomically
from asr.errors import DataError
from wsj.lexicon import with_spoken_noise

Policy = Literal["error", "spn", "leave"]


def cover(lexicon: Lexicon, utterances: Iterable[Utterance], policy: Policy, out: Path) -> tuple[Lexicon, list[str]]:
    """Write `out` (word, count, utterance ids); return the lexicon to use and a line for the report, if there are any.

    error: raise DataError; spn: words are pronounced SPN, as in the recipes that publish 72 labels; leave: nothing.
    """
    ids: dict[str, Counter[str]] = {}
    for utterance in utterances:
        for word in utterance.words:
            if word not in lexicon:
                ids.setdefault(word, Counter())[utterance.id] += 1
    counts = {word: ids[word].total() for word in ids}
    order = sorted(counts, key=lambda word: (-counts[word], word))
    lines = [f"{word}\t{counts[word]}\t{' '.join(sorted(ids[word]))}\n" for word in order]
    write_atomically(out, "word\tcount\tutterances\n" + "".join(lines))
    if not order or policy == "leave":
        return lexicon, []
    top = ", ".join(f"{word} ({counts[word]})" for word in order[:15]) + (" ..." if len(order) > 15 else "")
    found = f"{sum(counts.values())} words, {len(order)} of them different"
    if policy == "error":
        raise DataError(
            f"{found}, have no pronunciation: {top}; all are in {out}. Give pronunciations with --more-lexicon, or "
            "choose --oov spn or --oov leave"
        )
    return with_spoken_noise(lexicon, order), [f"not in the dictionary, pronounced SPN: {found}: {top}"]
