"""What an attention map says in numbers: how far it is from softmax's, how many frames it looks at, and how far away.

Every number is of one query frame and head; what is reported is the mean over the queries of all utterances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from asr.report.inspect.implied import jacobian_map, queries_keys, softmax_weights, value_map
from asr.report.inspect.layers import Layer

MAX_ROWS = 64  # queries for which a Jacobian is computed, evenly spaced: each costs some passes through the layer


class ImpliedMap(NamedTuple):
    """`shares` (heads, rows, time): what each query takes from each frame, in the order of time; rows that take nothing
    are 0, all others sum to 1. `rows` (rows,): the queries' frames. `softmax`: the same of softmax attention with the
    layer's queries and keys, None where it has none."""

    method: Literal["values", "jacobian"]
    shares: Tensor
    rows: Tensor
    softmax: Tensor | None


def implied_map(layer: Layer, x: Tensor) -> ImpliedMap:
    """Of a layer and its input for one utterance, (1, time, dim)."""
    time = x.shape[1]
    weights, softmax = value_map(layer, x), None
    rows = torch.arange(time)
    if weights is not None:
        qk = queries_keys(layer, x)
        assert qk is not None, "a map over values has queries and keys"
        softmax = layer.in_time(softmax_weights(qk, layer.causal)).cpu()
        weights = layer.in_time(weights)
    else:
        rows = torch.linspace(0, time - 1, min(time, MAX_ROWS)).round().long()
        own = time - 1 - rows if layer.direction == "backward" else rows
        weights = jacobian_map(layer, x, own)
        weights = weights.flip(2) if layer.direction == "backward" else weights
    size = weights.cpu().abs().double()
    total = size.sum(-1, keepdim=True)
    shares = torch.where(total > 0, size / total, 0.0).float()
    return ImpliedMap("jacobian" if softmax is None else "values", shares, rows, softmax)


class MapNumbers(NamedTuple):
    """(heads, rows) each, NaN where a query takes nothing: total variation from softmax's map, ½ Σ_j |A_ij − P_ij|,
    between 0 and 1; exp(entropy), the frames that matter; Σ_j A_ij |i − j|, the mean distance in frames."""

    distance: Tensor | None
    frames: Tensor
    lag: Tensor


def map_numbers(one: ImpliedMap) -> MapNumbers:
    shares = one.shares
    dead = shares.sum(-1) == 0
    lag = (one.rows[:, None] - torch.arange(shares.shape[2])).abs().to(shares)
    distance = None if one.softmax is None else (shares - one.softmax.to(shares)).abs().sum(-1) / 2
    found = (torch.special.entr(shares).sum(-1).exp(), (shares * lag).sum(-1))
    frames, mean_lag = (t.masked_fill(dead, torch.nan) for t in found)
    return MapNumbers(None if distance is None else distance.masked_fill(dead, torch.nan), frames, mean_lag)


def summarise_maps(utterances: Sequence[MapNumbers], method: str, frame_ms: float) -> dict[str, Any]:
    """By head: `softmax_distance` (null without queries and keys), `frames`, `lag_ms`, and `dead_share`, the share of
    queries that take nothing at all."""

    def mean(parts: Sequence[Tensor]) -> list[float]:
        return [float(value) for value in torch.cat(list(parts), dim=1).nanmean(1)]

    distances = [one.distance for one in utterances if one.distance is not None]
    dead = torch.cat([one.frames.isnan() for one in utterances], dim=1)
    return {
        "method": method,
        "softmax_distance": mean(distances) if distances else None,
        "frames": mean([one.frames for one in utterances]),
        "lag_ms": [frames * frame_ms for frames in mean([one.lag for one in utterances])],
        "dead_share": dead.float().mean(1).tolist(),
    }
