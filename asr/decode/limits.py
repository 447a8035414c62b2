"""How long a recording a model takes before its memory explodes."""

from __future__ import annotations

import math
from bisect import bisect_right

from asr.encoder.config import TransformerConfig
from asr.recipe import Recipe

MAX_SECONDS = (
    600.0  # beyond it even the mixers that need little memory take minutes, and none was trained on such input
)
QUADRATIC_BUDGET = 2 * 2**30  # bytes for the matrices of frame pairs of one layer


def default_max_seconds(recipe: Recipe) -> float:
    """Seconds of audio below which one layer's matrices of frame pairs stay within 2 GiB; 600 where there are none."""
    encoder = recipe.model.encoder
    if not isinstance(encoder, TransformerConfig):
        return MAX_SECONDS

    def most(frames: int) -> int:  # not the sum: layers run one after the other
        return max(mixer.pair_bytes(encoder.heads, frames) for mixer in encoder.mixers)

    frame_seconds = recipe.features.hop_ms / 1000 * recipe.model.frontend.factor
    all_frames = range(math.ceil(MAX_SECONDS / frame_seconds) + 1)
    frames = bisect_right(all_frames, QUADRATIC_BUDGET, key=most) - 1
    return MAX_SECONDS if frames == all_frames[-1] else math.floor(frames * frame_seconds)
