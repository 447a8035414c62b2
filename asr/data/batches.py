"""Which utterances make up which batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asr.errors import DataError
from asr.wording import counted

JITTER = 0.05  # relative noise on lengths when sorting: batches differ between epochs, padding stays below about 10 %


def plan_batches(
    frames: Sequence[int], batch_frames: int, seed: int, epoch: int, ids: Sequence[str] | None = None
) -> list[list[int]]:
    """Group utterances of similar length into batches of bounded padded size; a pure function.

    frames: feature frames of each utterance. batch_frames: the longest length times the number of utterances of a
    batch never exceeds it. ids: names for error messages, in the order of `frames`.

    Returns lists of indices into `frames`; every index stands in exactly one batch. Composition and order of the
    batches follow from (seed, epoch). Epoch 0 begins with the batch of the most padded frames and then the one with
    the longest utterance, so that a batch too large for the memory fails at once and not hours later.

    Raises DataError naming the utterances that are longer than `batch_frames` or have no frames: filter them first.
    """
    lengths = np.asarray(frames, dtype=np.int64)
    wrong = np.flatnonzero((lengths > batch_frames) | (lengths < 1))
    if wrong.size:
        named = [f"{ids[i] if ids is not None else f'index {i}'} ({lengths[i]} frames)" for i in wrong[:10].tolist()]
        raise DataError(
            f"{counted(int(wrong.size), 'utterance')} of a length that a batch of {batch_frames} frames cannot hold: "
            f"{', '.join(named)}"
            f"{' ...' if wrong.size > len(named) else ''}; lower data.max_seconds or raise training.batch_frames"
        )
    random = np.random.default_rng([seed, epoch])
    order = np.argsort(-lengths * (1 + JITTER * random.uniform(-1, 1, len(lengths))), kind="stable")

    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        grown = max(longest, length)
        if batch and grown * (len(batch) + 1) > batch_frames:
            batches.append(batch)
            batch, grown = [], length
        batch.append(index)
        longest = grown
    if batch:
        batches.append(batch)

    plan = [batches[i] for i in random.permutation(len(batches)).tolist()]
    if epoch == 0 and plan:
        _move_to_front(plan, [_longest(batch, lengths) for batch in plan])
        _move_to_front(plan, [padded_frames(batch, lengths) for batch in plan])
    return plan


def padded_frames(batch: Sequence[int], frames: Sequence[int] | np.ndarray) -> int:
    """Frames of a batch with its padding: the longest length times the number of utterances."""
    return _longest(batch, frames) * len(batch)


def _move_to_front(plan: list[list[int]], cost: list[int]) -> None:
    plan.insert(0, plan.pop(cost.index(max(cost))))


def _longest(batch: Sequence[int], frames: Sequence[int] | np.ndarray) -> int:
    return max(int(frames[i]) for i in batch)
