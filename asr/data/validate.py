"""Check a manifest and say what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr.audio.read import audio_info
from asr.data.manifest import Utterance, scan_manifest
from asr.errors import AsrError, DataError

TOLERANCE = 0.02  # seconds by which an utterance may end after its audio: less than one analysis window


@dataclass(frozen=True)
class Problem:
    line: int
    id: str  # empty where the line has none
    what: str


@dataclass(frozen=True)
class Summary:
    """What a set holds; times in seconds unless said otherwise."""

    utterances: int
    speakers: int
    hours: float
    min_seconds: float
    mean_seconds: float
    max_seconds: float
    words: int
    distinct_words: int
    empty_texts: int


@dataclass(frozen=True)
class Report:
    path: Path
    problems: list[Problem]
    summary: Summary  # of the lines that could be read

    @property
    def ok(self) -> bool:
        return not self.problems

    def text(self) -> str:
        """One line of figures and one line per problem, each with file and line number."""
        s = self.summary
        lines = [
            f"{self.path}: {s.utterances} utterances, {s.speakers} speakers, {s.hours:.2f} h, "
            f"{s.min_seconds:.2f} / {s.mean_seconds:.2f} / {s.max_seconds:.2f} s (min / mean / max), "
            f"{s.words} words ({s.distinct_words} distinct), {s.empty_texts} empty transcripts, "
            f"{len(self.problems)} problems"
        ]
        for problem in self.problems:
            lines.append(f"{self.path}:{problem.line}: {f'{problem.id}: ' if problem.id else ''}{problem.what}")
        return "\n".join(lines)


def validate_manifest(path: str | Path, check_audio: bool = True) -> Report:
    """Read every line and, with `check_audio`, the header of every audio file; collect what is wrong.

    Audio is wrong if it cannot be read or if the utterance ends more than `TOLERANCE` after it; a length that is but an
    estimate (mp3 and other compressed formats) is not held against the utterance. Raises DataError only if the file
    itself cannot be read.
    """
    path = Path(path)
    problems: list[Problem] = []
    utterances: list[Utterance] = []
    lengths: dict[Path, float | AsrError | None] = {}  # many utterances may lie in one recording
    for number, item in scan_manifest(path):
        if isinstance(item, DataError):
            problems.append(Problem(number, "", str(item).removeprefix(f"{path}:{number}: ")))
            continue
        utterances.append(item)
        what = _audio_problem(item, lengths) if check_audio else None
        if what:
            problems.append(Problem(number, item.id, what))
    if not utterances and not problems:
        problems.append(Problem(1, "", "no utterances in this manifest"))
    return Report(path, problems, summarise(utterances))


def summarise(utterances: list[Utterance]) -> Summary:
    """Count a set; all figures are 0 for an empty one."""
    seconds = [utterance.duration for utterance in utterances]
    words = [utterance.words for utterance in utterances]
    return Summary(
        utterances=len(utterances),
        speakers=len({utterance.speaker for utterance in utterances}),
        hours=sum(seconds) / 3600,
        min_seconds=min(seconds, default=0.0),
        mean_seconds=sum(seconds) / max(len(seconds), 1),
        max_seconds=max(seconds, default=0.0),
        words=sum(map(len, words)),
        distinct_words=len({word for line in words for word in line}),
        empty_texts=sum(not line for line in words),
    )


def _audio_problem(utterance: Utterance, lengths: dict[Path, float | AsrError | None]) -> str | None:
    if utterance.audio not in lengths:
        try:
            info = audio_info(utterance.audio)
            lengths[utterance.audio] = None if info.estimated else info.seconds
        except AsrError as error:
            lengths[utterance.audio] = error
    length = lengths[utterance.audio]
    if isinstance(length, AsrError):
        return str(length)
    end = utterance.start + utterance.duration
    if length is not None and end > length + TOLERANCE:
        return f"ends at {end:.3f} s, but {utterance.audio} holds {length:.3f} s"
    return None
