"""A preparation report as lines for people."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from asr.wording import counted

if TYPE_CHECKING:
    from asr.data.preparation_report import PreparationReport, SetReport


def report_text(report: PreparationReport, most: int | None) -> str:
    """See `PreparationReport.text`."""
    lines = [*_sets(report), ""]
    if report.lexicon_words is not None:
        lines.append(
            f"lexicon: {counted(report.lexicon_words, 'word')}, {counted(report.lexicon_phones or 0, 'phone')}"
        )
        lines += _oov(report, most)
    lines += _table("length in seconds", _length_heads(), {name: s.lengths for name, s in report.sets.items()})
    lines += _infeasible(report)
    for name, s in report.sets.items():
        lines += _audio(name, s, most)
    lines.append(f"speakers in more than one set: {_counts(report.shared_speakers)}")
    if report.shared_ids:
        lines.append(f"the same utterances in two sets: {_counts(report.shared_ids)}")
    lines += _duplicates(report, most)
    if report.notices:
        lines += [f"notices: {len(report.notices)}", *_list(report.notices, most)]
    lines.append(f"dropped: {counted(len(report.dropped), 'utterance')}")
    lines += _list((f"{id}: {reason}" for id, reason in report.dropped.items()), most)
    return "\n".join(lines) + "\n"


def _sets(report: PreparationReport) -> list[str]:
    width = max(map(len, report.sets), default=0)
    return [
        f"{name:<{width}}  {s.utterances:6d} utterances  {s.speakers:4d} speakers  {s.hours:7.3f} h  "
        f"{s.min_seconds:.2f} / {s.mean_seconds:.2f} / {s.max_seconds:.2f} s (min / mean / max)  "
        f"{s.words} words ({s.distinct_words} distinct)" + (f"  {s.empty_texts} without text" if s.empty_texts else "")
        for name, s in ((name, part.summary) for name, part in report.sets.items())
    ]


def _oov(report: PreparationReport, most: int | None) -> list[str]:
    lines = []
    for name, s in report.sets.items():
        if not s.oov:
            continue
        total, top = sum(s.oov.values()), list(s.oov.items())[:most]
        listed = ", ".join(f"{word} ({times})" for word, times in top) + (" ..." if len(top) < len(s.oov) else "")
        lines.append(
            f"not in the lexicon, {name}: {total} of {counted(s.summary.words, 'word')} "
            f"({total / s.summary.words:.2%}), {len(s.oov)} distinct, "
            f"in {counted(s.oov_utterances, 'utterance')}: {listed}"
        )
    if not lines:
        return ["not in the lexicon: no word"]
    return [*lines, "  these utterances are kept; tokens.oov in the recipe (error, unk or drop) decides"]


def _length_heads() -> list[str]:
    from asr.data.preparation_report import LENGTH_EDGES

    return [f"<{edge}" for edge in LENGTH_EDGES] + [f">={LENGTH_EDGES[-1]}"]


def _infeasible(report: PreparationReport) -> list[str]:
    rows = {
        f"{name}, {unit}": list(counts.values())
        for name, s in report.sets.items()
        for unit, counts in s.infeasible.items()
    }
    title = "utterances too short for CTC (fewer encoder frames than labels) at 10, 20 and 40 ms per encoder frame"
    if not any(map(any, rows.values())):
        units = " or ".join(dict.fromkeys(unit for s in report.sets.values() for unit in s.infeasible))
        return [f"{title}: none, with {units}"]
    return _table(title, ["x1", "x2", "x4"], rows)


def _table(title: str, heads: list[str], rows: dict[str, list[int]]) -> list[str]:
    first = max(map(len, rows), default=0)
    cells = [heads, *([str(value) for value in row] for row in rows.values())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [title]
    for label, row in zip(["", *rows], cells, strict=True):
        lines.append(f"  {label:<{first}}  " + "  ".join(map(str.rjust, row, widths)))
    return lines


def _audio(name: str, s: SetReport, most: int | None) -> list[str]:
    if not s.measured:
        return [f"audio, {name}: not measured"]
    rates = ", ".join(f"{rate} Hz" + (f" ({count})" if len(s.rates) > 1 else "") for rate, count in s.rates.items())
    missing = s.summary.utterances - s.measured
    lines = [
        f"audio, {name}: {rates}; {s.clipped_percent:.3f} % of samples clipped, {s.silent_percent:.1f} % of 10 ms "
        "frames silent" + (f"; {counted(missing, 'utterance')} not measured" if missing else "")
    ]
    if s.clipped:
        lines += [
            f"clipped in more than 0.1 % of samples, {name}: {counted(len(s.clipped), 'utterance')}",
            *_list(s.clipped, most),
        ]
    if s.silent:
        lines += [
            f"never above -60 dB of full scale, {name}: {counted(len(s.silent), 'utterance')}",
            *_list(s.silent, most),
        ]
    return lines


def _duplicates(report: PreparationReport, most: int | None) -> list[str]:
    if not any(s.measured for s in report.sets.values()):
        return []
    across = report.duplicates_across
    within = [group for group in report.duplicates if group not in across]
    lines = [
        f"the same audio under different ids: {counted(len(across), 'group')} across sets, {len(within)} within one set"
    ]
    return lines + _list((" = ".join(group) for group in [*across, *within]), most)


def _counts(shared: dict[str, int]) -> str:
    return ", ".join(f"{pair}: {count}" for pair, count in shared.items()) or "none"


def _list(items: Iterable[str], most: int | None) -> list[str]:
    items = list(items)
    more = len(items) - most if most is not None else 0
    return [f"  {item}" for item in islice(items, most)] + ([f"  ... and {more} more"] if more > 0 else [])
