"""NIST SPHERE: the header is always read first, and the payload only as what `sample_coding` says it is.

Plain PCM, µ-law and A-law are decoded here, exactly; embedded shorten by FFmpeg (PCM) or `asr.audio.shorten` (µ-law),
whose count must then match the header's. Sources: NIST SPHERE 2.6 header documentation; ITU-T G.711 for the companding
laws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asr.audio import ffmpeg, shorten
from asr.audio.source import AudioInfo, Source, Span, truncated
from asr.errors import AudioError

MAX_HEADER = 1 << 20  # bytes; real headers are 1,024
_CONVERT = "convert it with `sph2pipe -p -f wav IN OUT.wav`"


@dataclass(frozen=True)
class Header:
    """The fields decoding needs. `frames` are samples per channel, `size` is where the payload starts in bytes."""

    size: int
    rate: int
    channels: int
    width: int  # bytes per sample
    order: str  # "<" or ">"
    coding: str  # pcm, ulaw or alaw
    shorten: bool
    frames: int


def info(source: Source) -> AudioInfo:
    """Raises AudioError if the header is faulty or an uncompressed payload is shorter than it promises."""
    header = read_header(source)
    return AudioInfo(header.rate, header.frames, header.channels, estimated=False)


def read(source: Source, span: Span) -> tuple[np.ndarray, int]:
    """Samples (n, channels) float32 and the rate in Hz. Raises AudioError naming the coding that cannot be read."""
    header = read_header(source)
    first, last = span.within(header.frames, header.rate, source.name)
    if header.shorten:
        samples, rate = _read_shorten(source, header)
        # FFmpeg stops without an error at the end of a cut stream.
        if samples.shape != (header.frames, header.channels) or rate != header.rate:
            raise AudioError(
                f"{source.name}: truncated or damaged shorten stream: the header promises {header.frames} samples of"
                f" {header.channels} channels at {header.rate} Hz, decoding gives {len(samples)} of"
                f" {samples.shape[1]} at {rate} Hz"
            )
        return samples[first:last], header.rate
    block = header.channels * header.width
    source.file.seek(header.size + first * block)
    data = source.file.read((last - first) * block)
    if header.coding == "pcm":
        samples = np.frombuffer(data, f"{header.order}i{header.width}").astype(np.float32)
        samples /= np.float32(2.0 ** (8 * header.width - 1))
    else:
        samples = (ULAW if header.coding == "ulaw" else ALAW)[np.frombuffer(data, np.uint8)]
    return samples.reshape(-1, header.channels), header.rate


def _read_shorten(source: Source, header: Header) -> tuple[np.ndarray, int]:
    if header.coding == "pcm":
        try:
            return ffmpeg.decode(source)
        except AudioError as error:
            raise AudioError(f"{error} (embedded shorten; if sph2pipe reads it, {_CONVERT})") from None
    source.file.seek(header.size)
    codes, kind = shorten.decode(source.file.read(), source.name)
    if kind not in (shorten.AU1, shorten.AU2):
        raise AudioError(
            f"{source.name}: header says µ-law but the shorten stream holds type {kind}; get the file anew"
        )
    return ULAW[codes], header.rate


def read_header(source: Source) -> Header:
    """Parses and checks the header. Raises AudioError naming the faulty field."""
    fields, size = _fields(source)

    def number(key: str, low: int = 1) -> int:
        if key not in fields:
            raise AudioError(f"{source.name}: SPHERE header lacks `{key}`")
        try:
            value = float(fields[key])
            if value < low or value != int(value):
                raise ValueError
        except (ValueError, OverflowError):
            raise AudioError(f"{source.name}: SPHERE header has `{key}` = {fields[key]!r}") from None
        return int(value)

    coding, _, packing = fields.get("sample_coding", "pcm").lower().partition(",")
    full = fields.get("sample_coding", "pcm")
    coding = {"mu-law": "ulaw", "ulaw": "ulaw", "a-law": "alaw", "alaw": "alaw", "pcm": "pcm"}.get(coding, full)
    rate, channels, width = number("sample_rate"), number("channel_count"), number("sample_n_bytes")
    source.file.seek(size)
    shortened = packing.startswith("embedded-shorten")
    if coding not in ("pcm", "ulaw", "alaw") or (packing and not (shortened and coding != "alaw")):
        raise AudioError(f"{source.name}: SPHERE coding {full!r} is not read here; {_CONVERT}")
    if shortened:
        if source.file.read(4) != b"ajkg":
            raise AudioError(f"{source.name}: header says {full!r} but no shorten stream follows; get the file anew")
        return Header(size, rate, channels, width, "<", coding, True, number("sample_count"))

    order = _byte_order(source, fields, coding, width)
    found = (source.size - size) // (channels * width)
    frames = number("sample_count", low=0) if "sample_count" in fields else found
    if frames > found:
        raise truncated(source.name, frames, found)
    return Header(size, rate, channels, width, order, coding, False, frames)


def _byte_order(source: Source, fields: dict[str, str], coding: str, width: int) -> str:
    if coding in ("ulaw", "alaw") and width == 1:
        return "<"
    layout = fields.get("sample_byte_format", "")
    if coding == "pcm" and width in (2, 4):
        if layout == "0123"[:width]:
            return "<"
        if layout == "3210"[-width:]:
            return ">"
    raise AudioError(
        f"{source.name}: SPHERE {coding} of {width} bytes with sample_byte_format {layout!r} is not read here;"
        f" {_CONVERT}"
    )


def _fields(source: Source) -> tuple[dict[str, str], int]:
    source.file.seek(0)
    start = source.file.read(16).split(b"\n")
    if start[0] != b"NIST_1A":
        raise AudioError(f"{source.name}: SPHERE header of unknown version {start[0][:8]!r} (only NIST_1A is known)")
    try:
        size = int(start[1])
    except (IndexError, ValueError):
        raise AudioError(f"{source.name}: SPHERE header does not state its size") from None
    if not 16 <= size <= MAX_HEADER:
        raise AudioError(f"{source.name}: SPHERE header states an impossible size of {size} bytes")
    if source.size < size:
        raise truncated(source.name, size, source.size, "header bytes")
    source.file.seek(16)
    text = source.file.read(size - 16).decode("latin-1")
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        if line.strip() == "end_head":
            return fields, size
        parts = line.strip().split(None, 2)
        if len(parts) == 3 and not line.startswith(";"):
            fields[parts[0]] = parts[2].strip()
    raise AudioError(f"{source.name}: SPHERE header has no end_head")


def _ulaw_table() -> np.ndarray:
    code = ~np.arange(256) & 0xFF
    size = ((((code & 15) << 3) + 132) << (code >> 4 & 7)) - 132
    return (np.where(code & 0x80, -size, size) / 32768).astype(np.float32)


def _alaw_table() -> np.ndarray:
    code = np.arange(256) ^ 0x55
    exponent = code >> 4 & 7
    size = ((code & 15) << 4) + 8 + np.where(exponent > 0, 256, 0)
    size = size << np.maximum(exponent - 1, 0)
    return (np.where(code & 0x80, size, -size) / 32768).astype(np.float32)


ULAW, ALAW = _ulaw_table(), _alaw_table()
