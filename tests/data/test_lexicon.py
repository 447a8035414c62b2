"""Lexicons in several styles."""

from __future__ import annotations

import pytest

from asr.data.lexicon import fold_stress, make_lexicon, read_lexicon, write_lexicon
from asr.errors import DataError


def lexicon(tmp_path, text: str, stress="keep"):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(text.encode())
    return read_lexicon(path, stress)


B1 = """;;; a comment with words
BAT  B AE1 T
BAT(1)  B AE0 T
BAT(2)\tB AA1 T
BAT'S  B AE1 T S
B2B  B IY1 T AH0 B IY1
A42128  EY1
A  EY1
(PAREN  P ER0 EH1 N
(1)  W AH1 N
B(X)  B
BAT(3  B
;SEMI-COLON  S EH1 M IY0
"""


def test_B1_only_a_trailing_number_in_brackets_is_a_variant(tmp_path):
    entries = lexicon(tmp_path, B1)
    assert entries["BAT"] == (("B", "AE1", "T"), ("B", "AE0", "T"), ("B", "AA1", "T"))
    assert entries["A"] == (("EY1",),)
    assert set(entries.entries) == {
        "BAT", "BAT'S", "B2B", "A42128", "A", "(PAREN", "(1)", "B(X)", "BAT(3", ";SEMI-COLON"
    }  # fmt: skip


def test_B1_end_of_line_comments_and_words_that_begin_with_a_hash(tmp_path):
    entries = lexicon(
        tmp_path,
        "# a comment line\n## Date: 1995\n#\n#HASH HH AE1 SH\n# HH AE1 SH # the sign itself\n"
        "hash HH AE1 SH # place, danish\nhat HH AE1 T #\n",
    )
    assert set(entries.entries) == {"#HASH", "#", "hash", "hat"}
    assert entries["#"] == (("HH", "AE1", "SH"),)
    assert entries["hat"] == (("HH", "AE1", "T"),)
    assert entries.phones == ["AE1", "HH", "SH", "T"]


def test_stress_folds_arpabet_vowels_only_and_merges_equal_variants(tmp_path):
    text = "BAT  B AE1 T\nBAT(2)  B AE0 T\nBAT(3)  B AA2 T\nMA  m a1 TONE1 AH3 T1\n"
    assert len(lexicon(tmp_path, text)["BAT"]) == 3
    folded = lexicon(tmp_path, text, "fold")
    assert folded["BAT"] == (("B", "AE", "T"), ("B", "AA", "T"))
    assert folded["MA"] == (("m", "a1", "TONE1", "AH3", "T1"),)
    assert fold_stress("ER0") == "ER"


def test_tabs_crlf_byte_order_mark_and_repeated_headwords(tmp_path):
    entries = lexicon(tmp_path, "\ufeffa\tAH\r\n\r\na   EY\r\na AH\r\n")
    assert entries.entries == {"a": (("AH",), ("EY",))}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A EY\nB\n", "lexicon.txt:2: the word 'B' has no phones"),
        ("A EY\nB # soon\n", "lexicon.txt:2: the word 'B' has no phones"),
        ("A 0.5 EY\n", "lexicon.txt:1: '0.5' is a probability"),
        ("A\u200b EY\n", r"lexicon.txt:1: invisible character U\+200B"),
        (";;; nothing\n", "no pronunciations"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        lexicon(tmp_path, text)


def test_write_and_read_back(tmp_path):
    entries = make_lexicon([("b", ["B"]), ("a", ["EY"]), ("B", ["B"]), ("a", ["AH"]), ("a", ["EY"])], "keep")
    path = tmp_path / "sub" / "out.txt"
    write_lexicon(path, entries)
    assert path.read_bytes() == b"B  B\na  EY\na(2)  AH\nb  B\n"
    assert read_lexicon(path, "keep").entries == entries.entries


def test_an4_dictionary(corpus):
    entries = read_lexicon(corpus("an4") / "an4.dic", "keep")
    assert entries["FEBRUARY"][2] == ("F", "EH", "B", "UW", "W", "EH", "R", "IY")
    assert len(entries["A"]) == 2
    assert sum(map(len, entries.entries.values())) == 130
