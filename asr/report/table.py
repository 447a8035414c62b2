"""The comparison as rows, and its three faces: terminal, Markdown, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.table import Table


class Rate(NamedTuple):
    """An error rate in percent (None: undefined) with its 95 % interval."""

    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


@dataclass(frozen=True)
class Row:
    """One model. Numbers are None where unknown."""

    model: str
    rates: dict[str, Rate] = field(default_factory=dict)  # by evaluated set
    dev_rate: float | None = None  # %, the best validation of the training
    epoch_seconds: float | None = None  # median, training only
    ratio: float | None = None  # epoch_seconds ÷ that of the baseline
    frames_per_second: float | None = None  # feature frames, training
    parameters: int | None = None
    peak_memory_mb: float | None = None
    rtf: float | None = None  # seconds of decoding per second of audio
    epochs: int | None = None
    minutes: float | None = None  # of training, validation included
    batch_frames: int | None = None  # padded feature frames, at most
    rules: tuple[str, ...] = ()  # what was done to both sides before counting, see Score.rules
    published: str | None = None  # source of a row from the literature
    baseline: bool = False
    exp: str | None = None
    error: str | None = None  # why numbers are missing

    @property
    def label(self) -> str:
        return f"{self.model} (published)" if self.published else self.model


class Column(NamedTuple):
    """`key` and `value` make the CSV; `header` and `text` the tables that people read."""

    key: str
    header: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that hold at least one value."""

    def number(key: str, header: str, form: str) -> Column:
        def value(row: Row) -> Any:
            return getattr(row, key)

        def text(row: Row) -> str:
            found = value(row)
            if found is None:
                return "–"
            return format(found, ".2f" if form == ".1f" and found < 10 else form)

        return Column(key, header, value, text)

    def rate(name: str) -> Column:
        unit = next(row.rates[name].unit for row in rows if name in row.rates)
        return Column(
            f"{name}_{unit.lower()}",
            f"{name} {unit} %",
            lambda row: row.rates[name].value if name in row.rates else None,
            lambda row: str(row.rates[name]) if name in row.rates else "–",
        )

    sets = list(dict.fromkeys(name for row in rows for name in row.rates))
    found = [
        *(rate(name) for name in sets),
        number("dev_rate", "best dev %", ".2f"),
        number("epoch_seconds", "epoch s", ".1f"),
        number("ratio", "× softmax", ".2f"),
        number("frames_per_second", "frames/s", ",.0f"),
        number("parameters", "parameters", ",d"),
        number("peak_memory_mb", "peak MB", ",.0f"),
        number("rtf", "RTF", ".4f"),
        number("epochs", "epochs", "d"),
        number("minutes", "train min", ".1f"),
        *([number("batch_frames", "frames/batch", ",d")] if len(_batches(rows)) > 1 else []),
    ]
    # An undefined rate is a finding, so a column of rates stays even where no value is known.
    kept = found[: len(sets)] + [c for c in found[len(sets) :] if any(c.value(row) is not None for row in rows)]
    return [Column("model", "model", lambda row: row.label, lambda row: row.label), *kept]


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know beside the numbers."""
    lines = ["Rates: percent of reference tokens, with the 95 % bootstrap interval over utterances in brackets."]
    lines.append("Epoch s: median training epoch without the first and without validation. RTF: decoding ÷ audio time.")
    ours = [row for row in rows if row.rates]
    if len({row.rules for row in ours}) > 1:
        lines += [f"Counting, {row.label}: {_rules(row)}." for row in ours]
    elif ours:
        lines.append(f"Counting: {_rules(ours[0])}.")
    if any(rule != "stress folded" for row in ours for rule in row.rules):
        lines.append("Best dev: as in training, every token counts, against first pronunciations.")
    if len(batches := _batches(rows)) == 1:
        lines.append(f"Batches: at most {batches[0]:,} feature frames with padding, the same for all.")
    elif batches:
        lines.append("Batches: of unequal sizes; frames/batch are feature frames with padding, at most.")
    once = [row.label for row in rows if row.epochs == 1]
    if once:
        lines.append(f"Trained for one epoch, which is timed with its warm-up: {', '.join(once)}.")
    lines += [f"× softmax: epoch time relative to {row.label}." for row in rows if row.baseline and not row.published]
    lines += [f"{row.label}: {row.published}" for row in rows if row.published]
    return lines + [f"{row.label}: {row.error}" for row in rows if row.error]


def _batches(rows: Sequence[Row]) -> list[int]:
    """The different sizes there are."""
    return sorted({row.batch_frames for row in rows if row.batch_frames is not None})


def _rules(row: Row) -> str:
    return "; ".join(row.rules) or "every token counts as it is"


def rich_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Comparison")
    found = columns(rows)
    for column in found:
        table.add_column(column.header, justify="left" if column.key == "model" else "right")
    for row in rows:
        table.add_row(*(column.text(row) for column in found), style="dim" if row.published else None)
    return table


def markdown(rows: Sequence[Row], extra_notes: Sequence[str] = ()) -> str:
    found = columns(rows)
    lines = [
        "| " + " | ".join(column.header for column in found) + " |",
        "|" + "|".join("---" if column.key == "model" else "---:" for column in found) + "|",
        *("| " + " | ".join(column.text(row).replace("|", r"\|") for column in found) + " |" for row in rows),
    ]
    return "\n".join([*lines, "", *(f"- {note}" for note in [*notes(rows), *extra_notes]), ""])


def csv_text(rows: Sequence[Row]) -> str:
    """Raw numbers, one column each; the bounds of an interval stand in `SET_low` and `SET_high`."""
    found = columns(rows)
    sets = list(dict.fromkeys(name for row in rows for name in row.rates))
    bounds = [(name, side) for name in sets for side in ("low", "high")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([c.key for c in found] + [f"{name}_{side}" for name, side in bounds] + ["source", "error"])
    for row in rows:
        limits = [getattr(row.rates[name], side) if name in row.rates else None for name, side in bounds]
        writer.writerow([c.value(row) for c in found] + limits + [row.published, row.error])
    return out.getvalue()
