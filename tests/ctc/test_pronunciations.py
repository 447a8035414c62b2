"""The best pronunciations by dynamic programming equal the best of all combinations."""

from __future__ import annotations

import itertools
import random

import pytest

from asr.ctc.alignment import error_counts
from asr.ctc.pronunciations import best_reference


@pytest.mark.parametrize("seed", range(200))
def test_equals_exhaustive_search(seed):
    draws = random.Random(seed)
    words = [
        [tuple(draws.choices("ABC", k=draws.randint(0, 3))) for _ in range(draws.randint(1, 3))]
        for _ in range(draws.randint(0, 4))
    ]
    hypothesis = draws.choices("ABC", k=draws.randint(0, 8))

    def errors(reference):
        return sum(error_counts(list(reference), hypothesis))

    combinations = [list(itertools.chain(*choice)) for choice in itertools.product(*words)]
    best = best_reference(words, hypothesis)
    assert best in combinations
    assert errors(best) == min(map(errors, combinations))


def test_first_pronunciation_wins_a_tie():
    assert best_reference([[("A",), ("B",)]], ["C"]) == ["A"]
    assert best_reference([[("A",), ("B",)], [("C",)]], ["B", "C"]) == ["B", "C"]


def test_insertions_between_words_belong_to_no_word():
    words = [[("A", "B")], [("C", "D"), ("C", "E")]]
    assert best_reference(words, ["A", "B", "X", "C", "E"]) == ["A", "B", "C", "E"]
