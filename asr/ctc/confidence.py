"""How far a corpus error rate may be off because the test set holds these utterances and not others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bootstrap_interval(
    errors: Sequence[int], references: Sequence[int], resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile bootstrap over utterances of 100 · Σ errors / Σ reference tokens.

    Utterances, not tokens, are drawn with replacement, since errors within one are not independent.
    M. Bisani, H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004.
    Utterances of one speaker are not independent either, so with few speakers the true interval is wider.

    Args:
        errors, references: per utterance, (utterances,).

    Returns:
        Lower and upper bound in percent; None without resamples, or for fewer than two utterances with a reference.

    Example:
        >>> bootstrap_interval([1] * 50, [10] * 50)
        (10.0, 10.0)
    """
    e, n = np.asarray(errors, dtype=np.int64), np.asarray(references, dtype=np.int64)
    if resamples < 1 or np.count_nonzero(n) < 2:
        return None
    rng = np.random.default_rng(seed)
    rows = max(1, 2**22 // len(e))  # bounds the memory of one draw; the numbers drawn do not depend on it
    rates: list[np.ndarray] = []
    for begin in range(0, resamples, rows):
        draw = rng.integers(0, len(e), size=(min(rows, resamples - begin), len(e)))
        total = n[draw].sum(axis=1)
        rates.append(100 * e[draw].sum(axis=1)[total > 0] / total[total > 0])
    low, high = np.quantile(np.concatenate(rates), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
