"""How long a recording a model takes before its memory explodes."""

from __future__ import annotations

import math

from asr.attention.softmax import SoftmaxConfig
from asr.encoder.config import TransformerConfig
from asr.recipe import Recipe

MAX_SECONDS = (
    600.0  # beyond it even the mixers that need little memory take minutes, and none was trained on such input
)
QUADRATIC_BUDGET = 2 * 2**30  # bytes for the matrices of frame pairs of one layer


def default_max_seconds(recipe: Recipe) -> float:
    """Seconds of audio below which one layer's matrices of frame pairs stay within 2 GiB; 600 where there are none."""
    bytes_per_pair = _bytes_per_pair(recipe)
    if not bytes_per_pair:
        return MAX_SECONDS
    frame_seconds = recipe.features.hop_ms / 1000 * recipe.model.frontend.factor
    return min(MAX_SECONDS, math.floor(math.sqrt(QUADRATIC_BUDGET / bytes_per_pair) * frame_seconds))


def _bytes_per_pair(recipe: Recipe) -> int:
    encoder = recipe.model.encoder
    if not isinstance(encoder, TransformerConfig) or not isinstance(encoder.attention, SoftmaxConfig):
        return 0
    if encoder.attention.implementation == "materialised":
        return 12 * encoder.heads  # float32 scores, masked scores and weights live at once (measured)
    return 6 if encoder.attention.causal else 0  # the causal mask, bool and as float32; sdpa itself is O(frames)
