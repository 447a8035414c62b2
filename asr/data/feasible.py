"""Which utterances CTC can align at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise


def required_frames(target: Sequence[int]) -> int:
    """Encoder frames that CTC needs at least for a target: one per label and a blank between equal neighbours.

    Source: Graves et al. 2006, section 3.1.

    >>> required_frames([1, 1, 2])
    4
    """
    return len(target) + sum(left == right for left, right in pairwise(target))


def split_feasible(
    targets: Mapping[str, Sequence[int]], frames: Mapping[str, int], output_length: Callable[[int], int]
) -> tuple[list[str], dict[str, str]]:
    """Split utterances into those with enough encoder frames for their target and the others, with reasons.

    targets: token ids by utterance id. frames: feature frames by utterance id. output_length: encoder frames for a
    number of feature frames (the model's own). Returns (ids that can be trained on, in the order of `targets`;
    {id: reason} of those whose loss would be infinite or that leave no encoder frame at all).
    """
    feasible: list[str] = []
    infeasible: dict[str, str] = {}
    for id, target in targets.items():
        have, need = output_length(frames[id]), required_frames(target)
        if have >= max(need, 1):
            feasible.append(id)
        else:
            infeasible[id] = f"{len(target)} labels need {need} encoder frames, {frames[id]} feature frames give {have}"
    return feasible, infeasible
