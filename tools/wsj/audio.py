"""Durations of recordings, from decoding or from headers alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asr.audio.read import audio_info, read_audio
from asr.errors import AsrError


def measure(files: Iterable[Path], decode: bool) -> dict[Path, float | str]:
    """Seconds of each file, or the reason why it cannot be used.

    decode: read every sample. Without, a shorten file that was cut short is not found out; an uncompressed one is.
    """
    unique = list(dict.fromkeys(files))
    print(f"{'decoding' if decode else 'reading the headers of'} {len(unique)} recordings ...", file=sys.stderr)
    seconds = _decoded if decode else _promised
    with ThreadPoolExecutor() as pool:  # the decoders release the interpreter
        return dict(zip(unique, pool.map(seconds, unique), strict=True))


def _decoded(file: Path) -> float | str:
    try:
        return read_audio(file).seconds
    except AsrError as error:
        return str(error)


def _promised(file: Path) -> float | str:
    try:
        return audio_info(file).seconds
    except AsrError as error:
        return str(error)
