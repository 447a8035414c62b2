"""Binary archives: sounds as files of their own, and feature matrices, through the optional package kaldiio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile

from asr.errors import DataError
from kaldi.rxfilename import Place

# kaldiio would also unpickle, which runs whatever the archive says, and load NumPy files. It gets neither.
_MATRIX = (b"\0BFM ", b"\0BDM ", b"\0BCM ", b"\0BCM2", b"\0BCM3")


def read_matrix(place: Place) -> np.ndarray:
    """A feature matrix (frames, dim) float32. Raises DataError naming archive and offset."""
    matrix = _read(place, _MATRIX, "a float, double or compressed matrix")
    if matrix.ndim != 2 or not len(matrix) or not np.isfinite(matrix).all():
        raise DataError(f"{_name(place)}: a matrix of finite numbers is expected, got shape {matrix.shape}")
    return np.asarray(matrix, np.float32)


def extract_sound(place: Place, target: Path) -> None:
    """Write one sound of an archive to the file `target` (WAV): every other part of the toolkit reads files.

    A WAV file inside an archive is copied byte by byte. Raises DataError naming archive and offset.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _opened(place) as file:
        head = file.read(8)
        if head[:4] == b"RIFF":
            size = int.from_bytes(head[4:], "little")
            body = file.read(size) if 0 < size < 1 << 31 else b""
            if not body or len(body) < size:
                raise DataError(f"{_name(place)}: the WAV file here announces {size} bytes, {len(body)} can be read")
            target.write_bytes(head + body)
            return
    rate, samples = _read(place, (b"AUDIO",), "a WAV file or an AUDIO record")
    subtype = {"int16": "PCM_16", "int32": "PCM_32"}.get(str(samples.dtype), "FLOAT")
    soundfile.write(target, samples, rate, subtype, format="WAV")


@contextmanager
def _opened(place: Place) -> Iterator[BinaryIO]:
    try:
        with open(place.path, "rb") as file:
            file.seek(place.offset or 0)
            yield file
    except OSError as error:
        raise DataError(f"{place.path}: {error.strerror or error}") from None


def _read(place: Place, kinds: tuple[bytes, ...], what: str) -> Any:
    try:
        from kaldiio.matio import read_kaldi
    except ModuleNotFoundError:
        raise DataError(f"{_name(place)}: archives need the package kaldiio: pip install 'asr[kaldi]'") from None
    with _opened(place) as file:
        if not file.read(5).startswith(kinds):
            raise DataError(f"{_name(place)}: here does not begin {what}; is the offset that of another archive?")
        file.seek(place.offset or 0)
        try:
            return read_kaldi(_Plain(file))
        except Exception as error:  # kaldiio fails in many ways on a damaged archive
            raise DataError(f"{_name(place)}: cannot be read: {type(error).__name__}: {error}") from None


class _Plain:
    """An archive's file with what kaldiio uses of it; a short read is an error instead of a shorter matrix."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable, self._read = file.seek, file.tell, file.seekable, file.read

    def read(self, size: int = -1) -> bytes:
        data = self._read(size)
        if 0 <= size != len(data):
            raise EOFError(f"{size} bytes are announced, {len(data)} are left")
        return data


def _name(place: Place) -> str:
    return f"{place.path}:{place.offset or 0}"
