"""Manifests: one utterance a line, as a JSON object.

    {"id": "an1", "audio": "wav/an1.flac", "start": 0.0, "duration": 2.1, "speaker": "mblw", "text": "SIXTY ONE"}

`id`, `audio`, `duration` (seconds), `speaker` and `text` are required; `start` (seconds, default 0), `phones` (symbols
separated by spaces, or a list) and `channel` (from 0; default: the mean of all) are optional. `channel` and other keys
are kept in `Utterance.extra`.
A relative `audio` is relative to the folder of the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr.data.text import read_lines, split_words
from asr.errors import DataError
from asr.files import write_atomically


@dataclass(frozen=True)
class Utterance:
    """A stretch of one audio file and what is said in it. Times in seconds."""

    id: str
    audio: Path
    duration: float
    speaker: str
    text: str
    start: float = 0.0
    phones: tuple[str, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def words(self) -> list[str]:
        """The words of the transcript, by the rule of `asr.data.text`."""
        return split_words(self.text)


def read_manifest(path: str | Path) -> list[Utterance]:
    """Read a manifest in the order of its lines.

    Raises DataError naming file, line and key at the first wrong line, at an id that stands twice (both lines are
    named), and for a file without utterances. Audio files are not touched; `validate_manifest` does that.
    """
    utterances = []
    for _, item in scan_manifest(path):
        if isinstance(item, DataError):
            raise item
        utterances.append(item)
    if not utterances:
        raise DataError(f"{path}: no utterances in this manifest")
    return utterances


def scan_manifest(path: str | Path) -> Iterator[tuple[int, Utterance | DataError]]:
    """Yield (line number, utterance) and, for a wrong line, (line number, error); never stops at a wrong line.

    Raises DataError only where the file itself cannot be read as UTF-8 text.
    """
    path = Path(path)
    folder = path.absolute().parent
    seen: dict[str, int] = {}
    for number, line in read_lines(path):
        try:
            utterance = _parse(line, folder)
            if utterance.id in seen:
                raise DataError(f"id: {utterance.id!r} stands already in line {seen[utterance.id]}; ids must be unique")
            seen[utterance.id] = number
            yield number, utterance
        except DataError as error:
            yield number, DataError(f"{path}:{number}: {error}")


def write_manifest(path: str | Path, utterances: Iterable[Utterance]) -> None:
    """Write a manifest, sorted by id in byte order: the same utterances give the same bytes under any locale.

    Audio under the manifest's folder is written relative to it, other audio absolute. The file appears whole or not
    at all. Raises DataError for an id that stands twice and for what `read_manifest` would refuse.
    """
    path = Path(path)
    folder = path.absolute().parent
    lines: dict[bytes, str] = {}
    for utterance in utterances:
        try:
            key = utterance.id.encode("utf-8")
            if key in lines:
                raise DataError("this id stands twice; ids must be unique")
            line = json.dumps(_to_json(utterance, folder), ensure_ascii=False, allow_nan=False)
            line.encode("utf-8")
            _parse(line, folder)
        except (DataError, ValueError) as error:  # ValueError: not UTF-8, or a number that JSON does not have
            raise DataError(f"{path}: utterance {utterance.id!r}: {error}") from None
        lines[key] = line
    write_atomically(path, "".join(lines[key] + "\n" for key in sorted(lines)))


def _to_json(utterance: Utterance, folder: Path) -> dict[str, Any]:
    audio = utterance.audio.absolute()
    item: dict[str, Any] = {
        "id": utterance.id,
        "audio": (audio.relative_to(folder) if audio.is_relative_to(folder) else audio).as_posix(),
        "start": utterance.start,
        "duration": utterance.duration,
        "speaker": utterance.speaker,
        "text": utterance.text,
    }
    if utterance.phones is not None:
        item["phones"] = " ".join(utterance.phones)
    clash = item.keys() & utterance.extra.keys()
    if clash:
        raise DataError(f"extra holds {', '.join(sorted(clash))}, which the utterance has itself")
    return item | utterance.extra


def _parse(line: str, folder: Path) -> Utterance:
    try:
        item = json.loads(line, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}; one object per line is expected") from None
    except RecursionError:
        raise DataError("not a manifest line: nested too deeply") from None
    if not isinstance(item, dict):
        raise DataError('a JSON object is expected on every line, such as {"id": ..., "audio": ...}')
    duration = _number(item, "duration")
    if duration <= 0:
        raise DataError(f"duration: {duration:g} is not above 0 seconds")
    start = _number(item, "start") if "start" in item else 0.0
    if start < 0:
        raise DataError(f"start: {start:g} is below 0 seconds")
    utterance = Utterance(
        id=_name(item, "id"),
        audio=folder / _string(item, "audio", empty=False),
        start=start,
        duration=duration,
        speaker=_name(item, "speaker"),
        text=_string(item, "text"),
        phones=_phones(item),
        extra={key: value for key, value in item.items() if key not in _KEYS},
    )
    try:
        split_words(utterance.text)
    except DataError as error:
        raise DataError(f"text: {error}") from None
    return utterance


_KEYS = {"id", "audio", "start", "duration", "speaker", "text", "phones"}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        keys = [key for key, _ in pairs]
        raise DataError(f"{next(key for key in keys if keys.count(key) > 1)}: this key stands twice")
    return item


def _no_constant(name: str) -> None:
    raise DataError(f"{name} is not a number that a manifest may hold")


def _string(item: dict[str, Any], key: str, *, empty: bool = True) -> str:
    if key not in item:
        raise DataError(f"{key}: this key is missing")
    value = item[key]
    if not isinstance(value, str) or (not value and not empty):
        raise DataError(f"{key}: a{'' if empty else ' non-empty'} string is expected, got {value!r}")
    if "\0" in value:
        raise DataError(f"{key}: holds a NUL character")
    return value


def _name(item: dict[str, Any], key: str) -> str:
    value = _string(item, key, empty=False)
    try:
        words = split_words(value)
    except DataError as error:
        raise DataError(f"{key}: {error}") from None
    if words != [value]:  # ids and speakers are fields of CTM, Kaldi and score files
        raise DataError(f"{key}: {value!r} holds a space; use '_' or '-'")
    return value


def _number(item: dict[str, Any], key: str) -> float:
    if key not in item:
        raise DataError(f"{key}: this key is missing")
    value = item[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{key}: a number of seconds is expected, got {value!r}")
    return float(value)


def _phones(item: dict[str, Any]) -> tuple[str, ...] | None:
    value = item.get("phones")
    if value is None:
        return None
    if isinstance(value, str):
        value = split_words(value)
    if not isinstance(value, list) or not all(isinstance(p, str) and split_words(p) == [p] for p in value):
        raise DataError(f"phones: symbols separated by spaces, or a list of them, are expected, got {value!r}")
    return tuple(value)
