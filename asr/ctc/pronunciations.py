"""The reference that fits a hypothesis best, where words have several pronunciations.

A speaker who says `DATA` as D AE T AH is not wrong because the lexicon lists D EY T AH first. Each word of the
transcript stands for a choice of pronunciations; the choice with the fewest errors against the hypothesis becomes the
reference. It is found exactly by dynamic programming over (words, hypothesis tokens), as in alignment against a
confusion network (Mangu, Brill, Stolcke 2000).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Pronunciation = Sequence[str]


def best_reference(words: Sequence[Sequence[Pronunciation]], hypothesis: Sequence[str]) -> list[str]:
    """The concatenation of one pronunciation per word with the least edit distance to the hypothesis.

    Where choices tie, the earlier pronunciation wins. Cost: (phones of all pronunciations) × (hypothesis tokens).

    Args:
        words: for each word its pronunciations, at least one each.

    Example:
        >>> best_reference([[("D", "EY", "T", "AH"), ("D", "AE", "T", "AH")]], ["D", "AE", "T"])
        ['D', 'AE', 'T', 'AH']
    """
    costs = list(range(len(hypothesis) + 1))  # edits that turn nothing into hypothesis[:j]
    choices: list[list[int]] = []  # per word: the pronunciation taken on the best way to hypothesis[:j]
    origins: list[list[int]] = []  # and where in the hypothesis that word began
    for pronunciations in words:
        ways = [_through(costs, pronunciation, hypothesis) for pronunciation in pronunciations]
        best = [min(range(len(ways)), key=lambda p: ways[p][j][0]) for j in range(len(costs))]
        choices.append(best)
        origins.append([ways[p][j][1] for j, p in enumerate(best)])
        costs = [ways[p][j][0] for j, p in enumerate(best)]
    reference: list[str] = []
    j = len(hypothesis)
    for pronunciations, best, origin in zip(reversed(words), reversed(choices), reversed(origins), strict=True):
        reference[:0] = pronunciations[best[j]]
        j = origin[j]
    return reference


def _through(costs: list[int], reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Levenshtein rows of a stretch of reference that begins anywhere at the given costs: (cost, beginning) per end."""
    row = [(cost, j) for j, cost in enumerate(costs)]
    for token in reference:
        new = [(row[0][0] + 1, row[0][1])]
        for j, heard in enumerate(hypothesis, start=1):
            diagonal, above, left = row[j - 1], row[j], new[j - 1]
            new.append(
                min(
                    (diagonal[0] + (token != heard), diagonal[1]),
                    (above[0] + 1, above[1]),
                    (left[0] + 1, left[1]),
                    key=lambda way: way[0],
                )
            )
        row = new
    return row
