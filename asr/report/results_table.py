"""The table `asr evaluate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from asr.report.listing import other_function
from asr.report.table import Rate
from asr.wording import counted

MARK = " *"


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row per set and rate. The caption says what the rates count."""
    return options_table({"": results})


def options_table(by_option: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    """One row per option (none: without that column), set and rate. The caption says what the rates count.

    An option that makes another function of the weights than they were trained to be has a mark, which the caption
    explains.
    """
    table = Table(caption=_caption(by_option), caption_justify="left")
    named = any(by_option)
    for header in ("option", "set") if named else ("set",):
        table.add_column(header, overflow="fold")
    for header in ("rate", "% [95 %]", "S", "D", "I", "ref tokens", "utterances", "wrong", "failed", "dropped"):
        table.add_column(header, justify="right")
    for header in ("blank share", "emitted/ref", "RTF"):
        table.add_column(header, justify="right")
    for option, results in by_option.items():
        option += MARK if _changes(results) else ""
        for name, result in results.items():
            for part in (result, result["words"]):
                if part is not None:
                    labels = ([option] if named else []) + [name] if part is result else [""] * (1 + named)
                    table.add_row(*labels, *_cells(part), *(_whole_cells(result) if part is result else ()))
    return table


def _cells(part: Mapping[str, Any]) -> list[str]:
    """Of one rate: phones, characters, subwords or words."""
    low, high = part["interval"] or (None, None)
    counts = (str(part[key]) for key in ("substitutions", "deletions", "insertions", "reference_tokens", "utterances"))
    rate = str(Rate(part["unit"], part["rate"], low, high))
    return [part["unit"], rate, *counts, _number(part["utterance_rate"], ".1f", " %")]


def _whole_cells(result: Mapping[str, Any]) -> list[str]:
    """Of a set, whatever is counted."""
    lost = [str(len(result[key])) for key in ("failed", "dropped")]
    shares = [_number(result[key], ".3f") for key in ("blank_share", "length_ratio")]
    return [*lost, *shares, _number(result["rtf"], ".4f")]


def _caption(by_option: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    first = next(iter(next(iter(by_option.values())).values()))
    counting = "; ".join(first["rules"]) or "every token counts as it is"
    place = f"{first['device']}, {counted(first['threads'], 'thread')}"
    lines = [f"Weights: {first['weights']}. {counting}. RTF: features to tokens on {place}."]
    lines += [
        f"{option}{MARK}: {other_function(found)}."
        for option, results in by_option.items()
        if (found := _changes(results))
    ]
    return "\n".join(lines)


def _changes(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What an option made other than was trained; the same for all sets."""
    return next((list(result["changes"]) for result in results.values()), [])


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else format(value, form) + unit
