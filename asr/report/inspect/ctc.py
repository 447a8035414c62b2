"""What the output looks like as CTC: how much of it is blank, how sharp its spikes are, and how many there are.

A spike is a run of frames in which the same token is the likeliest: one token of greedy decoding. Sharp spikes between
blanks are what CTC tends to learn (Graves et al., 2006, figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from asr.ctc.greedy import Token, greedy_decode


@dataclass(frozen=True)
class CtcCounts:
    """Sums over frames and spikes; those of several utterances add up."""

    seconds: float
    frames: int  # of the encoder
    blank_frames: int  # where blank is the likeliest
    blank_posterior: float  # summed over frames
    entropy: float  # nats, summed over frames
    spikes: int
    spike_frames: int
    spike_posterior: float  # of each spike's best frame, summed
    reference_tokens: int

    def __add__(self, other: CtcCounts) -> CtcCounts:
        return CtcCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def spikes_of(log_probs: Tensor, blank: int) -> list[Token]:
    """(time, tokens) → greedy decoding's tokens with their frames."""
    return greedy_decode(log_probs[None], torch.tensor([len(log_probs)]), blank)[0]


def count_ctc(log_probs: Tensor, blank: int, seconds: float, reference_tokens: int) -> CtcCounts:
    """Log-probabilities (time, tokens) of one utterance, natural log."""
    spikes = spikes_of(log_probs, blank)
    posteriors = log_probs.double().exp()
    return CtcCounts(
        seconds=seconds,
        frames=len(log_probs),
        blank_frames=int((log_probs.argmax(-1) == blank).sum()),
        blank_posterior=float(posteriors[:, blank].sum()),
        entropy=float(torch.special.entr(posteriors).sum()),
        spikes=len(spikes),
        spike_frames=sum(token.end - token.start for token in spikes),
        spike_posterior=sum(math.exp(token.log_prob) for token in spikes),
        reference_tokens=reference_tokens,
    )


def summarise_ctc(counts: Sequence[CtcCounts], frame_ms: float) -> dict[str, Any]:
    """Rates of all frames and spikes together (null: there is no frame, no spike), and the sums behind them."""
    total = counts[0]
    for one in counts[1:]:
        total = total + one

    def per(value: float, of: float) -> float | None:
        return value / of if of else None

    width = per(total.spike_frames, total.spikes)
    return {
        "blank_share": per(total.blank_frames, total.frames),
        "blank_posterior": per(total.blank_posterior, total.frames),
        "entropy": per(total.entropy, total.frames),
        "spike_posterior": per(total.spike_posterior, total.spikes),
        "spike_width_frames": width,
        "spike_width_ms": width and width * frame_ms,
        "spikes_per_second": per(total.spikes, total.seconds),
        "reference_per_second": per(total.reference_tokens, total.seconds),
        "counts": asdict(total),
    }
