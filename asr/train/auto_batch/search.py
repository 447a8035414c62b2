"""The largest size whose measured memory stays within a limit, in few measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLOSE = 0.05  # the search ends where the next size that does not fit is at most this much larger
MOST_TRIES = 12
GROWTH = 4  # of a size over the largest that fits: what lies further off is no prediction


@dataclass(frozen=True)
class Try:
    """One measurement; `peak_mb` is None where the step broke off for lack of memory."""

    frames: int
    peak_mb: float | None


def search(peak: Callable[[int], float | None], least: int, most: int, limit_mb: float) -> tuple[int | None, list[Try]]:
    """(largest size found to fit, all that was tried); None where not even `least` fits.

    A step's memory is about linear in the number of rows, so that the line through the two largest sizes that fit says
    where the limit is met. What is returned was itself measured: where memory is not linear, or noisy, more is tried.
    Sizes between `least` and `most` have three digits that are not 0.

    Args:
        peak: measures a size: MB, None where there was not enough.
        limit_mb: what a size may take at most.
    """
    tried: list[Try] = []
    fitting: list[tuple[int, float]] = []  # (size, MB), smallest first
    too_large = most + 1
    size: int | None = least
    while size is not None and len(tried) < MOST_TRIES:
        found = peak(size)
        tried.append(Try(size, found))
        if found is not None and found <= limit_mb:
            fitting.append((size, found))
        elif not fitting:
            return None, tried
        else:
            too_large = size
        size = _next(fitting, too_large, most, limit_mb)
    return fitting[-1][0], tried


def _next(fitting: list[tuple[int, float]], too_large: int, most: int, limit_mb: float) -> int | None:
    """The size to try now, above the largest that fits and below the smallest that does not; None: near enough."""
    largest, mb = fitting[-1]
    if largest >= most or (too_large <= most and too_large <= largest * (1 + CLOSE)):
        return None
    guess = 2.0 * largest
    if len(fitting) > 1:
        before, less = fitting[-2]
        slope = (mb - less) / (largest - before)
        guess = largest + 0.98 * (limit_mb - mb) / slope if slope > 0 else GROWTH * largest
        if guess < largest * (1 + CLOSE):
            return None
    guess = min(guess, GROWTH * largest)
    if too_large <= most and guess > too_large * (1 - CLOSE / 2):
        guess = (largest + too_large) / 2
    size = most if guess >= most else _rounded(int(guess))
    return size if size > largest else None


def _rounded(size: int) -> int:
    """Down to three digits that are not 0."""
    unit = 10 ** max(0, len(str(size)) - 3)
    return size // unit * unit
