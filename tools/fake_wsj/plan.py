"""Which speakers say how much in which set, and where their files stand on the discs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fake_wsj.marks import KINDS, NOVEMBER_1993

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PER_SESSION = 50  # utterances in one .dot file


@dataclass(frozen=True)
class Group:
    """Speakers recorded for one purpose. `full` and `small` are (speakers, utterances in all)."""

    name: str
    voices: str  # set of voices of the demo synthesiser
    first_speaker: str
    discs: tuple[str, ...]  # speakers are dealt to them in turn
    folder: str  # from wsj0/ or wsj1/ on; {spk} is the speaker
    transcripts: tuple[str, str]  # disc, folder
    full: tuple[int, int]
    small: tuple[int, int]
    kinds: tuple[str, ...] = KINDS
    session: int = 2


_DOTS0 = ("11-13.1", "wsj0/transcrp/dots")
_DOTS1 = ("13-34.1", "wsj1/trans/wsj1")
_EVAL93 = ("13-32.1", "wsj1/trans/wsj1/eval")

# The sizes of the whole corpus are those of the real one; speaker 401 is among those of si_tr_s.
GROUPS = (
    Group("si84", "train", "011", ("11-1.1", "11-3.1"), "wsj0/si_tr_s/{spk}", _DOTS0, (84, 7138), (3, 17)),
    Group("si200", "train", "46a", ("13-1.1", "13-2.1"), "wsj1/si_tr_s/{spk}", _DOTS1, (199, 30278), (3, 18)),
    Group("dt_20", "dev", "4k0", ("13-16.1",), "wsj1/si_dt_20/{spk}", _DOTS1, (10, 503), (2, 4), session=3),
    Group("dt_05", "dev", "4l0", ("13-16.1",), "wsj1/si_dt_05/{spk}", _DOTS1, (10, 913), (2, 3)),
    Group("et_20", "test", "440", ("11-14.1",), "wsj0/si_et_20/{spk}", _DOTS0, (8, 333), (2, 4), session=4),
    Group("et_05", "test", "440", ("11-14.1",), "wsj0/si_et_05/{spk}", _DOTS0, (8, 330), (1, 2)),
    Group(
        "et_h1", "test", "4oa", ("13-33.1",), "wsj1/si_et_h1/wsj64k/{spk}", _EVAL93, (10, 213), (1, 3), NOVEMBER_1993
    ),
    Group("et_h2", "test", "4q0", ("13-33.1",), "wsj1/si_et_h2/wsj5k/{spk}", _EVAL93, (10, 215), (1, 3), NOVEMBER_1993),
)


@dataclass(frozen=True)
class Planned:
    """One recording. `path` is from wsj0/ or wsj1/ on, without suffix, in lower case."""

    id: str
    speaker: str
    group: Group
    disc: str
    path: str
    kind: str  # of mark in its transcript
    number: int  # among all recordings


def plan(full: bool, share: float = 1.0) -> Iterator[Planned]:
    """All recordings; share: of the sizes of the real corpus, speakers and utterances alike."""
    number = 0
    for group in GROUPS:
        speakers, count = group.full if full else group.small
        speakers, count = max(1, round(speakers * share)), max(1, round(count * share))
        speakers = min(speakers, count)
        for index in range(speakers):
            speaker = _speaker(group, index)
            disc = group.discs[index % len(group.discs)]
            for place in range(count // speakers + (index < count % speakers)):
                session = group.session + 2 * (place // PER_SESSION)
                id = f"{speaker}c{_base36(session, 2)}{_base36(place % PER_SESSION + 1, 2)}"
                path = f"{group.folder.format(spk=speaker)}/{id}"
                yield Planned(id, speaker, group, disc, path, group.kinds[number % len(group.kinds)], number)
                number += 1


def _speaker(group: Group, index: int) -> str:
    if group.name == "si84" and index == 1:
        return "401"
    return _base36(int(group.first_speaker, 36) + index, 3)


def _base36(value: int, width: int) -> str:
    text = ""
    for _ in range(width):
        value, digit = divmod(value, 36)
        text = _DIGITS[digit] + text
    return text
