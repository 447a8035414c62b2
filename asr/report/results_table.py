"""The table `asr evaluate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from asr.report.table import Rate


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row per set and rate. The caption says what the rates count."""
    table = Table(caption=_caption(results), caption_justify="left")
    table.add_column("set")
    for header in ("rate", "% [95 %]", "S", "D", "I", "ref tokens", "utterances", "wrong", "failed", "dropped"):
        table.add_column(header, justify="right")
    for header in ("blank share", "emitted/ref", "RTF"):
        table.add_column(header, justify="right")
    for name, result in results.items():
        for part in (result, result["words"]):
            if part is None:
                continue
            low, high = part["interval"] or (None, None)
            only_first = part is result
            table.add_row(
                name if only_first else "",
                part["unit"],
                str(Rate(part["unit"], part["rate"], low, high)),
                *(str(part[key]) for key in ("substitutions", "deletions", "insertions", "reference_tokens")),
                str(part["utterances"]),
                _number(part["utterance_rate"], ".1f", " %"),
                *((str(len(result["failed"])), str(len(result["dropped"]))) if only_first else ("", "")),
                *(_number(result[key], ".3f") if only_first else "" for key in ("blank_share", "length_ratio")),
                _number(result["rtf"], ".4f") if only_first else "",
            )
    return table


def _caption(results: Mapping[str, Mapping[str, Any]]) -> str:
    first = next(iter(results.values()))
    counting = "; ".join(first["rules"]) or "every token counts as it is"
    place = f"{first['device']}, {first['threads']} threads"
    return f"{counting}. RTF: features to tokens on {place}."


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else format(value, form) + unit
