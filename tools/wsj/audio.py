"""Durations of recordings from their headers alone."""

from __future__ import annotations

from collections.abc import Sequence

from asr.audio.read import audio_info
from asr.data.audio_stats import Stretch
from asr.errors import AsrError


def promised(files: Sequence[Stretch]) -> list[float | str]:
    """Of each file the seconds that its header announces, or the reason why it cannot be used.

    A shorten file that was cut short is not found out; an uncompressed one is.
    """
    return [_promised(file) for file in files]


def _promised(file: Stretch) -> float | str:
    try:
        return audio_info(file.audio).seconds
    except AsrError as error:
        return str(error)
