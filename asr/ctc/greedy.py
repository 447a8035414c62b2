"""Greedy (best path) CTC decoding: the likeliest token of every frame, repeats merged, blanks dropped.

Graves et al. 2006, section 3.2. Each token carries the frames it was emitted over.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Token(NamedTuple):
    """A decoded token: encoder frames [start, end) over which it was the likeliest, and its best log-probability."""

    id: int
    start: int
    end: int
    log_prob: float


def greedy_decode(log_probs: Tensor, lengths: Tensor, blank: int = 0) -> list[list[Token]]:
    """(batch, time, tokens) natural log, (batch,) → for each row its tokens in order."""
    best, ids = (t.cpu().tolist() for t in log_probs.max(-1))
    out: list[list[Token]] = []
    for row_ids, row_best, frames in zip(ids, best, lengths.tolist(), strict=True):
        tokens: list[Token] = []
        previous = blank
        for t in range(frames):
            if row_ids[t] == blank:
                pass
            elif row_ids[t] == previous:
                last = tokens[-1]
                tokens[-1] = Token(last.id, last.start, t + 1, max(last.log_prob, row_best[t]))
            else:
                tokens.append(Token(row_ids[t], t, t + 1, row_best[t]))
            previous = row_ids[t]
        out.append(tokens)
    return out
