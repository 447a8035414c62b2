"""Out of memory, said with the batch that it happened in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from asr.errors import AsrError
from asr.wording import counted


@contextmanager
def memory_for(ids: Sequence[str], frames: Sequence[int], hop_ms: float) -> Iterator[None]:
    """Turn a lack of memory within the block into an AsrError that names the batch.

    frames: feature frames of each utterance.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError, and so is that of the CPU
        if not _lacks_memory(error):
            raise
        longest = max(range(len(ids)), key=lambda i: frames[i])
        raise AsrError(
            f"out of memory in a batch of {counted(len(ids), 'utterance')}, {frames[longest] * len(ids)} frames with "
            f"padding; the longest: {ids[longest]}, {frames[longest] * hop_ms / 1000:.1f} s; lower "
            "training.batch_frames (and raise training.accumulate by as much) or data.max_seconds"
        ) from None


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
