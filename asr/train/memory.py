"""Out of memory, said with the batch that it happened in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from asr.errors import AsrError
from asr.recipe import Recipe
from asr.wording import counted


@contextmanager
def memory_for(ids: Sequence[str], frames: Sequence[int], recipe: Recipe) -> Iterator[None]:
    """Turn a lack of memory within the block into an AsrError that names the batch and says what to change.

    frames: feature frames of each utterance.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError, and so is that of the CPU
        if not lacks_memory(error):
            raise
        longest = max(range(len(ids)), key=lambda i: frames[i])
        seconds = frames[longest] * recipe.features.hop_ms / 1000
        if isinstance(recipe.training.batch_frames, int):
            advice = (
                "training.batch_frames (and raise training.accumulate by as much) or data.max_seconds; "
                "training.batch_frames=auto finds what fits"
            )
        else:
            advice = (
                f"training.batch_frames.memory_mb, so that auto finds less than {recipe.training.frames_per_batch} "
                "frames, and start anew with --overwrite"
            )
        raise AsrError(
            f"out of memory in a batch of {counted(len(ids), 'utterance')}, {frames[longest] * len(ids)} frames with "
            f"padding; the longest: {ids[longest]}, {seconds:.1f} s; lower {advice}"
        ) from None


def lacks_memory(error: Exception) -> bool:
    """Whether an allocation failed: torch's on a GPU or a CPU, Python's, or one of the compiled ops."""
    words = ("can't allocate memory", "bad_alloc")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(word in str(error) for word in words)
