"""Is linear attention's memory healthy? The range of its normaliser, and how many directions its state really uses.

- Normaliser φ(q_i)ᵀ z_i + eps: near eps, a frame's result is noise, and its gradient explodes.
- Effective rank of the state S: e to the entropy of its singular values divided by their sum. Roy, Vetterli, "The
  Effective Rank", 2007. 1: the state is one outer product, and every query gets the same value; at most min(C, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asr.attention.linear import LinearAttention
from asr.attention.mixer import Mixer
from asr.kernels import FEATURE_MAPS, rotary_table
from asr.kernels.features import turn
from asr.report.inspect.implied import QueriesKeys
from asr.report.inspect.layers import Layer


@torch.inference_mode()
def normaliser(mixer: LinearAttention, qk: QueriesKeys, x: Tensor) -> Tensor | None:
    """(heads, time) float64: what each frame's result is divided by; None where nothing is."""
    if mixer.norm is not None:
        return None
    q, k = (t.transpose(0, 1) for t in _features(mixer, qk, x))  # (heads, time, C)
    decay = mixer.decay()
    if not mixer.causal:
        return (q @ k.sum(1)[..., None])[..., 0] + mixer.eps
    time = torch.arange(q.shape[1], device=q.device)
    lag = (time[:, None] - time).clamp(min=0)
    kept = torch.ones(1, device=q.device).double() if decay is None else decay.double()
    weights = kept[:, None, None] ** lag * (time <= time[:, None])
    return (q @ k.mT * weights).sum(-1) + mixer.eps


@torch.inference_mode()
def state_rank(layer: Layer, qk: QueriesKeys | None, x: Tensor) -> Tensor | None:
    """(heads,) effective rank of the state after the utterance; None for a layer without one.

    A state is a matrix of keys and values: `s` of a causal mixer's state, the sum over all frames of linear attention.
    """
    mixer = layer.module
    if isinstance(mixer, LinearAttention) and not mixer.causal:
        assert qk is not None, "linear attention has queries and keys"
        k = _features(mixer, qk, x)[1]
        if mixer.rotary and mixer.map.op != "identity":
            k = turn(k, rotary_table(k.shape[0], k.shape[2], device=k.device))
        return effective_rank(torch.einsum("thc,htw->hcw", k, qk.v.double()))
    if not isinstance(mixer, Mixer) or not mixer.streams or not x.shape[1]:
        return None
    s = getattr(mixer.step(x, mixer.initial_state(1))[1], "s", None)
    return None if s is None else effective_rank(s[0])


def effective_rank(matrix: Tensor) -> Tensor:
    """(…, rows, columns) → (…); NaN for a matrix of zeros."""
    sizes = torch.linalg.svdvals(matrix.double())
    return torch.special.entr(sizes / sizes.sum(-1, keepdim=True)).sum(-1).exp()


def _features(mixer: LinearAttention, qk: QueriesKeys, x: Tensor) -> tuple[Tensor, Tensor]:
    """φ(q), φ(k) (time, heads, C), float64; rotary positions turn the maps elu and relu only after φ."""
    if mixer.rotary and mixer.map.op == "identity":
        q, k = (t.transpose(0, 1)[None] for t in (qk.q, qk.k))
    else:
        q, k, _ = mixer.project(x).unflatten(-1, (3, mixer.heads, -1)).unbind(2)
    q, k = (FEATURE_MAPS[mixer.map.op](t[0].double()) for t in mixer.map(q, k))
    return (q.exp(), k.exp()) if mixer.map.logarithmic else (q, k)


def summarise_linear(normalisers: Sequence[Tensor], ranks: Sequence[Tensor]) -> dict[str, Any]:
    """`normaliser`: min, median and max by head over all frames (null: there is none); `state_rank` by head, the mean
    over utterances."""
    values = torch.cat(list(normalisers), dim=1) if normalisers else None
    return {
        "normaliser": None
        if values is None
        else {
            "min": values.amin(1).tolist(),
            "median": values.median(1).values.tolist(),
            "max": values.amax(1).tolist(),
        },
        "state_rank": torch.stack(list(ranks)).nanmean(0).tolist() if ranks else None,
    }
