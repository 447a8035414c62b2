"""What a person reads on standard error while and after many files are decoded."""

from __future__ import annotations

import logging

from asr.decode.loop import Outcome
from asr.wording import counted


def summarise(outcome: Outcome, log: logging.Logger) -> None:
    """One line of totals; where several inputs were asked for, every failure once more, so that none scrolls away."""
    untried = outcome.inputs - outcome.decoded - len(outcome.failures)
    parts = [f"decoded {outcome.decoded} of {counted(outcome.inputs, 'input')}"]
    if outcome.seconds:
        factor = outcome.wall_seconds / outcome.seconds
        parts.append(
            f"{outcome.seconds:.1f} s of audio in {outcome.wall_seconds:.1f} s (real-time factor {factor:.3f})"
        )
    if outcome.failures:
        parts.append(f"{len(outcome.failures)} failed")
    if untried:
        parts.append(f"{untried} not tried")
    log.info("%s", ", ".join(parts))
    if outcome.inputs > 1:
        for name, reason in outcome.failures:
            log.info("  failed: %s: %s", name, reason)
