"""`results/SET.txt`: totals, what is confused with what, the worst utterances, and every alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asr.ctc.score import Score
from asr.wording import counted

SHOWN = 30  # confusions of each kind, and worst utterances


def listing(result: Mapping[str, Any], scores: Sequence[Score]) -> str:
    """The text for people behind a result of `asr.report.evaluate`."""
    first = scores[0]
    how = f" with {' '.join(result['options'])}" if result["options"] else ""
    lines = [f"{result['model']}{how} on {result['set']} ({result['manifest']})"]
    lines += [other_function(result["changes"])] if result["changes"] else []
    lines += [score.summary() for score in scores]
    if first.utterance_rate is not None:
        total = counted(len(first.utterances), "utterance")
        lines.append(f"{first.wrong_utterances} of {total} with errors ({first.utterance_rate:.1f} %)")
    lines += [f"{key.replace('_', ' ')} {result[key]:.3f}" for key in ("blank_share", "length_ratio") if result[key]]
    lines += _lost(result["failed"], "audio could not be used, all tokens counted as deleted")
    lines += _lost(result["dropped"], "left out, no reference")
    lines += _table("substitutions", [(f"{r} -> {h}", n) for r, h, n in first.substitutions()])
    lines += _table("deletions", first.deletions())
    lines += _table("insertions", first.insertions())
    for score in scores:
        lines += ["", f"worst utterances ({score.unit})"]
        lines += [f"  {u.counts.errors:4d} of {u.reference_tokens:4d}  {u.id}" for u in score.worst(SHOWN)]
    for score in scores:
        lines += ["", f"alignments ({score.unit}): (ref->hyp) substituted, +hyp inserted, -ref deleted"]
        lines += [f"{u.id}\t{u.line}" for u in score.utterances]
    return "\n".join(lines) + "\n"


def other_function(changes: Sequence[str]) -> str:
    """A remark on results of weights that options made another function of; see `asr.recipe_changes`."""
    return f"not what the weights were trained to be: {'; '.join(changes)}"


def _lost(reasons: Mapping[str, str], what: str) -> list[str]:
    return (
        [f"{counted(len(reasons), 'utterance')}: {what}", *(f"  {i}: {r}" for i, r in reasons.items())]
        if reasons
        else []
    )


def _table(title: str, counts: Sequence[tuple[str, int]]) -> list[str]:
    if not counts:
        return []
    head = f"{title}: {sum(n for _, n in counts)}" + (
        f", the first {SHOWN} of {len(counts)} kinds" if len(counts) > SHOWN else ""
    )
    return ["", head, *(f"  {n:5d}  {what}" for what, n in counts[:SHOWN])]
