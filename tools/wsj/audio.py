"""Durations of recordings, from decoding or from headers alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from asr.audio.read import audio_info
from asr.data.audio_stats import AudioStats, Stretch, measure_audio
from asr.errors import AsrError


def measure(files: Sequence[Path], decode: bool) -> list[AudioStats | float | str]:
    """Of each file: what its samples show, or only its seconds, or the reason why it cannot be used.

    decode: read every sample. Without, a shorten file that was cut short is not found out; an uncompressed one is.
    """
    print(f"{'decoding' if decode else 'reading the headers of'} {len(files)} recordings ...", file=sys.stderr)
    if decode:
        return list(measure_audio([Stretch(file) for file in files]))
    return [_promised(file) for file in files]


def _promised(file: Path) -> float | str:
    try:
        return audio_info(file).seconds
    except AsrError as error:
        return str(error)
