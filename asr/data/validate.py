"""Check a manifest and say what is in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from asr.audio.read import audio_info, read_audio
from asr.audio.source import AudioInfo, Span
from asr.data.manifest import Utterance, scan_manifest
from asr.errors import AsrError, DataError
from asr.wording import counted


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
            f"{self.path}: {counted(s.utterances, 'utterance')}, {counted(s.speakers, 'speaker')}, {s.hours:.2f} h, "
            f"{s.min_seconds:.2f} / {s.mean_seconds:.2f} / {s.max_seconds:.2f} s (min / mean / max), "
            f"{counted(s.words, 'word')} ({s.distinct_words} distinct), {counted(s.empty_texts, 'empty transcript')}, "
            f"{counted(len(self.problems), 'problem')}"
        ]
        for problem in self.problems:
            lines.append(f"{self.path}:{problem.line}: {f'{problem.id}: ' if problem.id else ''}{problem.what}")
        return "\n".join(lines)


def validate_manifest(path: str | Path, check_audio: bool = True, decode: bool = False) -> Report:
    """Read every line and, with `check_audio`, the header of every audio file; collect what is wrong.

    Audio is wrong if it cannot be read, if it lacks the utterance's `channel`, and if the utterance does not lie within
    it, by the rule of `read_audio`. A length that is but an estimate (mp3 and other compressed formats) is not held
    against the utterance. `decode` reads every sample instead: slow, and the only way to find a compressed file that
    breaks off.
    Raises DataError only if the manifest itself cannot be read.
    """
    path = Path(path)
    problems: list[Problem] = []
    utterances: list[Utterance] = []
    infos: dict[Path, AudioInfo | AsrError] = {}  # many utterances may lie in one recording
    for number, item in scan_manifest(path):
        if isinstance(item, DataError):
            problems.append(Problem(number, "", str(item).removeprefix(f"{path}:{number}: ")))
            continue
        utterances.append(item)
        if check_audio or decode:
            if item.audio not in infos:
                infos[item.audio] = _info(item.audio, decode)
            what = _audio_problem(item, infos[item.audio])
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


def _info(audio: Path, decode: bool) -> AudioInfo | AsrError:
    try:
        info = audio_info(audio)
        if decode:
            info = replace(info, frames=len(read_audio(audio).samples), estimated=False)
        return info
    except AsrError as error:
        return error


def _audio_problem(utterance: Utterance, info: AudioInfo | AsrError) -> str | None:
    if isinstance(info, AsrError):
        return str(info)
    channel = utterance.extra.get("channel")
    if channel is not None and (type(channel) is not int or not 0 <= channel < info.channels):
        return f"{utterance.audio}: has {info.channels} channel(s), counted from 0; there is no channel {channel!r}"
    try:
        if not info.estimated:
            Span(utterance.start, utterance.duration).within(info.frames, info.rate, str(utterance.audio))
    except AsrError as error:
        return str(error)
    return None
