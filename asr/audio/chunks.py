"""Checks the chunk structure of WAV, RF64 and AIFF files, where libsndfile silently returns what it can find.

Sources: Microsoft "Multiple Channel Audio Data and WAVE Files"; EBU Tech 3306 (RF64); Apple "AIFF 1.3".
"""

from __future__ import annotations

import struct

from asr.audio.source import Source, truncated
from asr.errors import AudioError

FIX = "write it anew, e.g. `ffmpeg -i in.wav -c:a pcm_s16le out.wav`"
# What writers put where they cannot seek back to fill in the size: all ones (ffmpeg), its neighbours, and sox's value.
_STREAMED = {0x7FFFF000, 0x7FFFFFFF, 0x80000000, *range(0xFFFFFF00, 0x100000000)}
_INTEGER_PCM, _EXTENSIBLE = 1, 0xFFFE


def check_chunks(source: Source) -> int:
    """Raises AudioError if the sound chunk is longer than the file, or said to be empty with payload after it.

    A streamed WAV (declared size 0xFFFFFFFF and the like) reaches to the end of the file.
    Returns how many low bits of each 32-bit sample must be 0: more than 0 where the samples lie in a wider container.
    """
    magic, _, form = struct.unpack("4s4s4s", source.file.read(12).ljust(12, b"\0"))
    order = ">" if magic in (b"RIFX", b"FORM") else "<"
    position, block, padding, big_size = 12, 1, 0, None
    while position + 8 <= source.size:
        source.file.seek(position)
        kind, length = struct.unpack(f"{order}4sI", source.file.read(8))
        position += 8
        if kind == b"ds64":
            _, big_size = struct.unpack("<QQ", source.file.read(16).ljust(16, b"\0"))
        elif kind == b"fmt ":
            block, padding = _wave_format(source, order, source.file.read(min(length, 40)))
        elif kind == b"COMM":
            channels, _, bits = struct.unpack(">HIH", source.file.read(8).ljust(8, b"\0"))
            block = max(1, channels * ((bits + 7) // 8))
        elif kind in (b"data", b"SSND"):
            if kind == b"SSND":  # its samples come after two numbers of four bytes
                position, length = position + 8, max(0, length - 8)
            elif magic == b"RF64" and length == 0xFFFFFFFF and big_size is not None:
                length = big_size
            elif form == b"WAVE" and length in _STREAMED:
                length = min(length, source.size - position)
            _check_size(source, length, max(0, source.size - position), block)
            break
        position += length + length % 2
    source.file.seek(0)
    return padding


def _check_size(source: Source, declared: int, found: int, block: int) -> None:
    if declared == 0 and found > 0:
        raise AudioError(
            f"{source.name}: the header declares 0 bytes of sound but {found} bytes follow (a recording that was never"
            f" closed?); {FIX}"
        )
    if declared > found:
        raise truncated(source.name, declared // block, found // block)


def _wave_format(source: Source, order: str, body: bytes) -> tuple[int, int]:
    """Bytes per frame, and how many low bits of a sample are padding (0: the sample fills its container)."""
    if len(body) < 16:
        raise AudioError(f"{source.name}: its 'fmt ' chunk is cut short")
    tag, channels, _, _, block, bits = struct.unpack(f"{order}HHIIHH", body[:16])
    valid = bits
    if tag == _EXTENSIBLE and len(body) >= 26:
        valid = struct.unpack(f"{order}H", body[18:20])[0] or bits
        tag = struct.unpack(f"{order}H", body[24:26])[0]
    if tag not in (_INTEGER_PCM, 3, 6, 7):  # 3: float, 6 and 7: A-law and µ-law; others have blocks of their own
        return max(1, block), 0
    if block == 0 or block != channels * ((bits + 7) // 8):
        raise AudioError(
            f"{source.name}: {channels} channels of {bits} bits do not make frames of {block} bytes,"
            f" so where the samples lie is not certain; {FIX}"
        )
    padded = tag == _INTEGER_PCM and bits - valid >= 8
    return block, bits - valid if padded else 0
