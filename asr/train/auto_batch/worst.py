"""Which batches of a given size take most memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def worst_batches(frames: Sequence[int], labels: Sequence[int], batch_frames: int) -> list[list[int]]:
    """Rows of the two or three batches of at most `batch_frames` padded frames whose memory bounds that of all others.

    A batch of n utterances, the longest of them with T frames and L labels, takes n·T frames through the encoder, n·T²
    pairs of frames where a mixer looks at all of them, n·T·L states of CTC (Graves et al. 2006, section 4.1), and n
    times what every row has (the states of recurrent mixers). Filled up, n·T is the same for all; so the batch with
    most pairs, that with most CTC states and that with most rows are the worst for any mixer.

    frames, labels: of each utterance, none with more than `batch_frames` frames.
    """
    sizes = np.asarray(frames, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    longest = sizes[order]  # of the batch that begins here and goes on with the next shorter ones
    rows = np.minimum(batch_frames // longest, np.arange(len(order), 0, -1))
    ctc = rows * longest * np.asarray(labels, dtype=np.int64)[order]
    starts = dict.fromkeys(int(np.argmax(cost)) for cost in (rows * longest**2, ctc, rows))
    return [order[start : start + rows[start]].tolist() for start in starts]
