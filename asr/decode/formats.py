"""How a result is written: one tiny class per format, all with `suffix`, `header` and `render`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Span(Protocol):
    """One recognised token: times in seconds from the start of the audio, natural-log probability."""

    @property
    def symbol(self) -> str: ...
    @property
    def start_seconds(self) -> float: ...
    @property
    def end_seconds(self) -> float: ...
    @property
    def log_prob(self) -> float: ...


@dataclass(frozen=True)
class Result:
    """What was recognised in one input.

    Args:
        duration: seconds of audio.
        rate: Hz of the audio as it was stored, before any resampling.
        log_prob: natural log of the probability of the whole path.
    """

    id: str
    audio: str
    text: str
    tokens: Sequence[Span]
    log_prob: float
    duration: float
    rate: int
    channel: int = 1


class Format:
    suffix: str  # of the file an input's result is written to
    header: str = ""  # once at the top of every stream or file

    def render(self, result: Result) -> str:
        """The lines of one result, each ended by a line feed. Formats with a row per token may have none."""
        raise NotImplementedError


class Txt(Format):
    """`id TAB text`."""

    suffix = ".txt"

    def render(self, result: Result) -> str:
        return f"{result.id}\t{result.text}\n"


class Json(Format):
    """One object per line."""

    suffix = ".json"

    def render(self, result: Result) -> str:
        record = {
            "id": result.id,
            "audio": result.audio,
            "text": result.text,
            "tokens": [
                {
                    "symbol": token.symbol,
                    "start": round(token.start_seconds, 3),
                    "end": round(token.end_seconds, 3),
                    "log_prob": round(token.log_prob, 4),
                }
                for token in result.tokens
            ],
            "log_prob": round(result.log_prob, 4),
            "duration": round(result.duration, 3),
            "rate": result.rate,
        }
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


class Tsv(Format):
    """One row per token; seconds and natural-log probability."""

    suffix = ".tsv"
    header = "id\tstart\tend\ttoken\tlog_prob\n"

    def render(self, result: Result) -> str:
        return "".join(
            f"{result.id}\t{t.start_seconds:.3f}\t{t.end_seconds:.3f}\t{t.symbol}\t{t.log_prob:.4f}\n"
            for t in result.tokens
        )


class Ctm(Format):
    """NIST CTM, as sclite reads it: id, channel (from 1), start, duration, token, probability."""

    suffix = ".ctm"

    def render(self, result: Result) -> str:
        return "".join(
            f"{result.id} {result.channel} {t.start_seconds:.3f} {max(t.end_seconds - t.start_seconds, 0):.3f} "
            f"{t.symbol} {math.exp(min(t.log_prob, 0.0)):.4f}\n"
            for t in result.tokens
        )


FORMATS: dict[str, type[Format]] = {"txt": Txt, "json": Json, "tsv": Tsv, "ctm": Ctm}
