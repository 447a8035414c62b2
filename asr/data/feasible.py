"""Which utterances CTC can align at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise


def required_frames(target: Sequence[int]) -> int:
    """Encoder frames that CTC needs at least for a target: one per label and a blank between equal neighbours.

    Source: Graves et al. 2006, section 3.1.

    >>> required_frames([1, 1, 2])
    4
    """
    return len(target) + sum(left == right for left, right in pairwise(target))


def why_infeasible(target: Sequence[int], frames: int, output_length: Callable[[int], int]) -> str | None:
    """Why the CTC loss of a target would be infinite, or its utterance leaves no encoder frame; None: it does not.

    target: token ids. frames: feature frames. output_length: encoder frames for a number of feature frames (the
    model's own).
    """
    have, need = output_length(frames), required_frames(target)
    if have >= max(need, 1):
        return None
    return f"{len(target)} labels need {need} encoder frames, {frames} feature frames give {have}"
