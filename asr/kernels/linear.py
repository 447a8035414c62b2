"""Bidirectional linear attention: the op, its gradient, and the pure-PyTorch form that defines it.

    y_i = φ(q_i)ᵀ S / (φ(q_i)ᵀ z + eps)      S = Σ_j φ(k_j) v_jᵀ      z = Σ_j φ(k_j)

Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4-7. With a rotary table φ(q) and φ(k) are turned in
the numerator only, so that the denominator stays positive (Su et al., "RoFormer", 2021, equation 19).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, compiled
from asr.kernels.differentiable import differentiable
from asr.kernels.features import FEATURE_MAPS, check, common, hide_padding, turn, wide


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    table: Tensor | None = None,
    feature_map: str = "elu",
    eps: float = 1e-6,
    normalise: bool = True,
) -> Tensor:
    """Each frame attends to all real frames of its row; cost O(time · dim · width).

    Args:
        q, k: (batch, time, heads, dim), any strides, before the feature map.
        v: (batch, time, heads, width).
        lengths: (batch,) integers; frames at or past a row's length give nothing and get 0.
        table: (time, dim) float32 of `rotary_table`, or None for no positions.
        feature_map: a key of `FEATURE_MAPS`.
        eps: added to the normaliser: a frame that sees no key gives 0, not NaN.
        normalise: divide by φ(q_i)ᵀ z + eps. Otherwise the op is two matrix products, and always PyTorch computes them.

    Returns:
        (batch, time, heads, width), dtype of v. Sums are in float32 whatever the inputs are.

    Raises:
        ValueError: shapes do not match, or feature_map is unknown.

    Example:
        >>> q, k, v = torch.randn(3, 2, 10, 4, 8)
        >>> linear_attention(q, k, v, torch.tensor([10, 7])).shape
        torch.Size([2, 10, 4, 8])
    """
    check(q, k, v, lengths, table, feature_map)
    if not normalise or not compiled(q, v):
        return reference(q, k, v, lengths, table, feature_map, eps, normalise)
    q, k, v = common(q, k, v)
    return _linear_attention(q, k, v, lengths.long().contiguous(), table, feature_map, eps)[0]


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    feature_map: str,
    eps: float,
    normalise: bool = True,
) -> Tensor:
    """The definition, in the dtype of its inputs but at least float32."""
    dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = wide(q, k, v)
        phi = FEATURE_MAPS[feature_map]
        q, k, v = hide_padding(lengths, phi(q), phi(k), v)  # k: out of S and z alike; v: 0 · NaN would be NaN
        turned_q, turned_k, values = (t.transpose(1, 2) for t in (turn(q, table), turn(k, table), v))
        y = (turned_q @ (turned_k.mT @ values)).transpose(1, 2)
        if normalise:
            y = y / ((q * k.sum(1, keepdim=True)).sum(-1, keepdim=True) + eps)
        return y.to(dtype)


LIBRARY.define(
    "linear_attention(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? table, str feature_map, float eps)"
    " -> (Tensor out, Tensor kv, Tensor ksum)"
)
LIBRARY.define(
    "linear_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? table, Tensor kv,"
    " Tensor ksum, str feature_map, float eps) -> (Tensor dq, Tensor dk, Tensor dv)"
)


@library.register_fake("asr::linear_attention", lib=LIBRARY)
def _fake(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, feature_map: str, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    kv = v.new_empty(batch, heads, dim, v.shape[3], dtype=torch.float32)
    return v.new_empty(v.shape), kv, v.new_empty(batch, heads, dim, dtype=torch.float32)


@library.register_fake("asr::linear_attention_backward", lib=LIBRARY)
def _fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, lengths, table, ctx.feature_map, ctx.eps = inputs
    ctx.save_for_backward(q, k, v, lengths, table, output[1], output[2])


def _backward(ctx: Any, dout: Tensor, dkv: Tensor, dksum: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.asr.linear_attention_backward(dout, *ctx.saved_tensors, ctx.feature_map, ctx.eps)
    return (*gradients, None, None, None, None)


_linear_attention = differentiable("linear_attention", _save, _backward)
