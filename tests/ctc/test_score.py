import random

import jiwer
import numpy as np
import pytest

from asr.ctc.alignment import Counts, align, error_counts, format_edits
from asr.ctc.confidence import bootstrap_interval
from asr.ctc.score import Scored, match, score
from asr.errors import DataError


def pairs(*texts):
    return [Scored(f"u{i}", r.split(), h.split()) for i, (r, h) in enumerate(texts)]


def plain_distance(a, b):
    """The textbook recurrence, to check against."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row, previous = [i], row
        for j, y in enumerate(b, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (x != y)))
    return row[-1]


def test_counts_and_rate_by_hand():
    result = score(pairs(("AH N D S", "AH N T IH"), ("B", "B"), ("K AE T", "K T")))
    assert result.counts == Counts(substitutions=2, deletions=1, insertions=0)
    assert (result.reference_tokens, result.hypothesis_tokens) == (8, 7)
    assert result.rate == pytest.approx(100 * 3 / 8)
    assert result.utterance_rate == pytest.approx(100 * 2 / 3)
    assert [u.line for u in result.utterances] == ["AH N (D->T) (S->IH)", "B", "K -AE T"]
    assert result.substitutions() == [("D", "T", 1), ("S", "IH", 1)]
    assert result.deletions() == [("AE", 1)]
    assert [u.id for u in result.worst()] == ["u0", "u2"]


@pytest.mark.parametrize(
    ("texts", "errors", "references", "rate"),
    [
        ([("", "")], 0, 0, None),
        ([("", "a b")], 2, 0, None),
        ([("a b", "")], 2, 2, 100.0),
        ([("", ""), ("", "a b"), ("a b", ""), ("a b c d e f", "a b c d e f")], 4, 8, 50.0),
    ],
)
def test_G1_empty_references_count_insertions_and_never_divide_by_zero(texts, errors, references, rate):
    result = score(pairs(*texts))
    assert (result.errors, result.reference_tokens, result.rate) == (errors, references, rate)
    if rate is None:
        assert result.interval is None
        assert "undefined" in result.summary()
        assert result.as_dict()["rate"] is None


def test_G1_nothing_at_all_is_undefined():
    result = score([])
    assert (result.rate, result.utterance_rate, result.interval) == (None, None, None)


def test_G1_empty_utterances_in_the_bootstrap():
    result = score(pairs(("", "a"), *[("a b", "a c")] * 9))
    low, high = result.interval
    assert low <= result.rate <= high


def test_G3_pairs_by_id_whatever_the_order():
    references = {"1": ["I"], "2": ["am", "I", "good"]}
    one = score(match(references, {"1": ["I", "am"], "2": ["I", "good"]}))
    other = score(match(dict(reversed(references.items())), {"2": ["I", "good"], "1": ["I", "am"]}))
    assert one.counts == other.counts == Counts(substitutions=0, deletions=1, insertions=1)
    assert one.interval == other.interval
    missing = score(match(references, {"1": ["I", "am"]}))
    assert missing.counts == Counts(substitutions=0, deletions=3, insertions=1)


def test_G3_hypothesis_without_reference_is_an_error():
    with pytest.raises(DataError, match="no reference for 1 hypotheses: 3"):
        match({"1": ["I"]}, {"1": ["I"], "3": ["you"]})


def test_G3_duplicate_id_is_an_error():
    with pytest.raises(DataError, match="utterance a"):
        score([Scored("a", ["x"], []), Scored("a", ["x"], [])])


def test_G5_phones_are_whole_tokens():
    result = score(pairs(("AH0 N", "AA0 N")))
    assert result.rate == 50.0
    assert result.unit == "PER"
    assert score(pairs(("AH N", "A HN"))).rate == 100.0  # the same letters, other phones


def test_G5_ignored_and_folded_on_both_sides_and_printed():
    texts = ("SIL AH0 N", "AH1 N SIL SIL")
    assert score(pairs(texts)).errors == 4
    result = score(pairs(texts), ignore=["SIL"], stress="fold")
    assert (result.errors, result.reference_tokens, result.hypothesis_tokens) == (0, 2, 2)
    assert "ignored: SIL" in result.summary()
    assert "stress folded" in result.summary()
    swapped = score(pairs((texts[1], texts[0])), ignore=["SIL"], stress="fold")
    assert swapped.errors == 0


def test_ignored_token_may_be_written_with_stress():
    assert score(pairs(("AH0 N", "N")), ignore=["AH0"], stress="fold").errors == 0


def test_tokens_with_spaces_and_odd_characters_stay_whole():
    tokens = ["▁new york", "\u00a0", "a\tb", "", "<b>", "\u2028"]
    result = score([Scored("u", tokens, [*tokens[:-1], "x y z"])])
    assert result.counts == Counts(1, 0, 0)
    assert result.reference_tokens == 6


def test_unknown_symbol_is_an_error_also_against_itself():
    assert score(pairs(("a <unk> b", "a <unk> b"))).counts == Counts(1, 0, 0)
    assert score(pairs(("a <unk> b", "a <unk> b")), unmatchable=None).errors == 0
    assert error_counts([1, 0, 2], [1, 0, 2], unmatchable=0) == Counts(1, 0, 0)


def test_random_alignments_are_minimal_and_agree_with_the_fast_counts():
    rng = random.Random(0)
    texts = [(rng.choices("abcd", k=rng.randrange(9)), rng.choices("abcd", k=rng.randrange(9))) for _ in range(300)]
    for (a, b), edits in zip(texts, align(texts), strict=True):
        assert sum(not e.correct for e in edits) == plain_distance(a, b)
        assert [e.reference for e in edits if e.reference is not None] == a
        assert [e.hypothesis for e in edits if e.hypothesis is not None] == b
        kinds = [e.kind for e in edits]
        assert error_counts(a, b) == Counts(*(kinds.count(k) for k in ("substitution", "deletion", "insertion")))


def test_agrees_with_jiwer_on_plain_words():
    rng = random.Random(1)
    texts = [tuple(" ".join(rng.choices("abcdef", k=rng.randint(1, 8))) for _ in range(2)) for _ in range(50)]
    expected = jiwer.process_words([r for r, _ in texts], [h for _, h in texts])
    assert score(pairs(*texts)).rate == pytest.approx(100 * expected.wer)


def test_format_edits():
    edits = align([(["AH", "N", "D", "S"], ["AH", "N", "T"]), (["B"], ["B", "IH"])])
    assert [format_edits(e) for e in edits] == ["AH N (D->T) -S", "B +IH"]


def test_interval_covers_the_true_rate_about_95_times_in_100():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        lengths = rng.integers(10, 40, size=100)
        low, high = bootstrap_interval(rng.binomial(lengths, 0.1), lengths, resamples=400, seed=trial)
        hits += low <= 10.0 <= high
    assert 180 <= hits <= 198


def test_interval_is_seeded_and_degenerate_cases_have_none():
    errors, lengths = [0, 3, 1, 5], [10, 10, 10, 10]
    assert bootstrap_interval(errors, lengths, seed=1) == bootstrap_interval(errors, lengths, seed=1)
    assert bootstrap_interval(errors, lengths, seed=1) != bootstrap_interval(errors, lengths, 50, seed=2)
    assert bootstrap_interval(errors, lengths, resamples=0) is None
    assert bootstrap_interval([1], [10]) is None
    assert bootstrap_interval([], []) is None
