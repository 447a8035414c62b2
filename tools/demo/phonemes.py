"""CMUdict's phones in the synthesiser's own notation, so that the audio says what the reference says.

The synthesiser is given phonemes (its `[[...]]` input), never spelling. It reports what it spoke, and `check` compares.
The names are those of espeak-ng's English tables (espeak-ng, docs/phonemes.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.errors import AsrError

_MNEMONICS = {
    "AA": "A:", "AE": "a", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "B": "b", "CH": "tS", "D": "d", "DH": "D",
    "EH": "E", "ER": "3:", "EY": "eI", "F": "f", "G": "g", "HH": "h", "IH": "I", "IY": "i:", "JH": "dZ", "K": "k",
    "L": "l", "M": "m", "N": "n", "NG": "N", "OW": "oU", "OY": "OI", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t",
    "TH": "T", "UH": "U", "UW": "u:", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip
_UNSTRESSED = {"AH": "@", "IY": "i"}
_LINKING = {"@", "A:", "O:"}  # vowels after which British English puts an r before a vowel
# What may be spoken for a phoneme: the flap of American English, weak vowels at the end of a word, n before k and g.
_ALLOPHONES = {"t": {"t#"}, "I": {"i"}, "@": {"a#", "3"}, "n": {"N"}}
_LINKS = {"r", "r-"}
_NOT_PHONES = {"", "_", "_:", "__", "_!", "_|", ";"}  # pauses, and the glide between two vowels
# Words that carry no sentence stress; CMUdict gives most of them the stress of their citation form.
_WEAK = """a an and are as at but by for from has have he in is it its may of on she that the they this to was we
will"""


def phoneme(phone: str) -> str:
    """An ARPAbet phone, with or without stress digit, as espeak-ng's mnemonic: `"AH0"` is `"@"`."""
    name = phone.rstrip("012")
    return _UNSTRESSED[name] if phone.endswith("0") and name in _UNSTRESSED else _MNEMONICS[name]


def phoneme_text(words: Sequence[str], pronunciations: Sequence[Sequence[str]]) -> str:
    """The `[[...]]` input for a sentence: commas in `words` are pauses and have an empty pronunciation."""
    text, previous, gap = "", "", ""
    for word, phones in zip(words, pronunciations, strict=True):
        if word == ",":
            text, previous, gap = f"{text}]], [[", "", ""
        marks = {} if word in _WEAK.split() else {"1": "'", "2": ","}
        for phone in phones:
            name = phoneme(phone)
            if previous in _LINKING and phone[-1].isdigit():
                text += "_|"  # a weak boundary, else British voices say "law(r) and order"
            text += gap + marks.get(phone[-1], "") + name
            previous, gap = name, "|"  # "|" keeps neighbours apart: "t|S" is T SH, "tS" is CH
        gap = " "
    return f"[[{text}]]."


def check(utterance: str, phones: Sequence[str], spoken: Sequence[str]) -> None:
    """Compare the reference phones with the phonemes that the synthesiser reports to have spoken.

    Raises AsrError naming the utterance and the first place where they differ.
    """
    heard = [name for name in (event.lstrip("',%=") for event in spoken) if name not in _NOT_PHONES]
    due = [phoneme(phone) for phone in phones]
    place = 0
    for index, name in enumerate(heard):
        if name in _LINKS and index and heard[index - 1] == "3:" and due[place : place + 1] != ["r"]:
            continue  # "her own": the r of ER, spoken before a vowel
        want = due[place] if place < len(due) else "the end"
        if name != want and name not in _ALLOPHONES.get(want, ()):
            raise AsrError(
                f"{utterance}: {want} is due as phone {place + 1} of {' '.join(phones)}, but {name} was spoken"
            )
        place += 1
    if place < len(due):
        raise AsrError(f"{utterance}: only {place} phones of {' '.join(phones)} were spoken")
