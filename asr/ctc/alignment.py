"""Minimal edit alignment of token sequences, one utterance at a time.

The distance is Levenshtein's: substitution, deletion and insertion cost 1 each. Where several alignments cost the
same, the split into substitutions, deletions and insertions is the one RapidFuzz finds, here and in jiwer alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import jiwer
from rapidfuzz.distance import Levenshtein


class Edit(NamedTuple):
    """One step from reference to hypothesis: both tokens, or None where one side has none."""

    reference: str | None
    hypothesis: str | None
    correct: bool

    @property
    def kind(self) -> str:
        """correct, substitution, deletion or insertion."""
        if self.correct:
            return "correct"
        if self.reference is None:
            return "insertion"
        return "deletion" if self.hypothesis is None else "substitution"


class Counts(NamedTuple):
    """Edits of one utterance or of a corpus."""

    substitutions: int
    deletions: int
    insertions: int

    @property
    def errors(self) -> int:
        return sum(self)


def align(pairs: Iterable[tuple[Sequence[str], Sequence[str]]], unmatchable: str | None = None) -> list[list[Edit]]:
    """Align each (reference, hypothesis) with its own border; no edit crosses from one utterance to the next.

    Args:
        pairs: whole tokens. A token may hold spaces or any other character and is compared as it is.
        unmatchable: a token that is never correct, not even against itself (`<unk>`).

    Example:
        >>> format_edits(align([(["AH", "N", "D"], ["AH", "M"])])[0])
        'AH (N->M) -D'
    """
    pairs = list(pairs)
    ids: dict[Hashable, int] = {}

    # jiwer splits strings at spaces by rules of its own, so it is handed numbers and never sees a token.
    def encode(tokens: Sequence[str], side: str) -> str:
        keys = ((token, side) if token == unmatchable else token for token in tokens)
        return " ".join(str(ids.setdefault(key, len(ids))) for key in keys)

    # An empty side needs no alignment, and jiwer versions differ in what they make of an empty reference.
    both = [(reference, hypothesis) for reference, hypothesis in pairs if reference and hypothesis]
    left_side = [encode(reference, "reference") for reference, _ in both]
    right_side = [encode(hypothesis, "hypothesis") for _, hypothesis in both]
    alignments = iter(jiwer.process_words(left_side, right_side).alignments if both else [])
    result = []
    for reference, hypothesis in pairs:
        if not (reference and hypothesis):
            result.append([Edit(t, None, False) for t in reference] + [Edit(None, t, False) for t in hypothesis])
            continue
        edits: list[Edit] = []
        for chunk in next(alignments):
            left = reference[chunk.ref_start_idx : chunk.ref_end_idx]
            right = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
            if chunk.type == "insert":
                edits += [Edit(None, token, False) for token in right]
            elif chunk.type == "delete":
                edits += [Edit(token, None, False) for token in left]
            else:
                edits += [Edit(a, b, chunk.type == "equal") for a, b in zip(left, right, strict=True)]
        result.append(edits)
    return result


def error_counts(
    reference: Sequence[Hashable], hypothesis: Sequence[Hashable], unmatchable: Hashable | None = None
) -> Counts:
    """Substitutions, deletions and insertions of one utterance, without the alignment: fast enough for every epoch.

    Example:
        >>> error_counts([1, 2, 3], [1, 4])
        Counts(substitutions=1, deletions=1, insertions=0)
    """
    ids: dict[Hashable, int] = {}
    left = [ids.setdefault(token, len(ids)) for token in reference]
    # -1 occurs in no reference, so an unmatchable token of the hypothesis is always an error.
    right = [
        -1 if unmatchable is not None and token == unmatchable else ids.setdefault(token, len(ids))
        for token in hypothesis
    ]
    kinds = [edit.tag for edit in Levenshtein.editops(left, right)]
    return Counts(kinds.count("replace"), kinds.count("delete"), kinds.count("insert"))


def format_edits(edits: Iterable[Edit]) -> str:
    """One line: `AH N (D->T) +IH -S` is two right tokens, D heard as T, IH inserted, S deleted.

    For reading, not parsing: a token may itself begin with a sign.
    """
    return " ".join(_format(edit) for edit in edits)


def _format(edit: Edit) -> str:
    shown = {"correct": "{0}", "substitution": "({0}->{1})", "deletion": "-{0}", "insertion": "+{1}"}
    return shown[edit.kind].format(edit.reference, edit.hypothesis)
