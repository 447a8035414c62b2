"""NIST SPHERE files as on the WSJ discs: a header of 1,024 bytes, 16-bit PCM, plain or with embedded shorten."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fake_wsj.shorten import encode

HEADER = 1024  # bytes
SHORTEN = "pcm,embedded-shorten-v2.00"


def write_sphere(path: Path, samples: np.ndarray, rate: int, *, order: str = "<", shorten: bool = False) -> None:
    """Write int16 samples (n,) or (n, channels) at `rate` Hz; order: of the bytes, `<` or `>`."""
    samples = samples.reshape(len(samples), -1)
    head = header(path.stem.lower(), len(samples), samples.shape[1], rate, order, SHORTEN if shorten else "pcm")
    body = encode(samples, order) if shorten else samples.astype(f"{order}i2").tobytes()
    path.write_bytes(head + body)


def write_header_only(path: Path, count: int, rate: int) -> None:
    """A file that promises `count` samples in shorten and holds none: for measuring how fast headers are read."""
    path.write_bytes(header(path.stem.lower(), count, 1, rate, "<", SHORTEN) + b"ajkg\x02")


def header(id: str, count: int, channels: int, rate: int, order: str, coding: str) -> bytes:
    fields: list[tuple[str, str | int]] = [
        ("database_id", "fake WSJ: synthetic speech"),
        ("utterance_id", id),
        ("channel_count", channels),
        ("sample_count", count),
        ("sample_rate", rate),
        ("sample_min", -32768),
        ("sample_max", 32767),
        ("sample_n_bytes", 2),
        ("sample_byte_format", "01" if order == "<" else "10"),
        ("sample_sig_bits", 16),
        ("sample_coding", coding),
    ]
    lines = [f"NIST_1A\n{HEADER:7d}\n"]
    for name, value in fields:
        lines.append(f"{name} -i {value}\n" if isinstance(value, int) else f"{name} -s{len(value)} {value}\n")
    return ("".join(lines) + "end_head\n").encode("ascii").ljust(HEADER)
