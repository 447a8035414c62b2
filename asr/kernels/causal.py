"""Causal linear attention with a state that goes on, and decay: the ops, their gradients, and the PyTorch form.

    S_t = a S_{t-1} + φ(k_t) v_tᵀ      z_t = a z_{t-1} + φ(k_t)      y_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t + eps)

Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 8-12 and 16-20 (a = 1); the decay a, one per
head, as in Sun et al., "Retentive Network", 2023. With a rotary table φ(q), φ(k) are turned in the numerator only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, compiled
from asr.kernels.differentiable import differentiable
from asr.kernels.features import FEATURE_MAPS, check, common, hide_padding, turn, wide


class CausalOutput(NamedTuple):
    """`out` (batch, time, heads, width); the state after each row's last real frame, at least float32:
    `kv` (batch, heads, dim, width) is S and `ksum` (batch, heads, dim) is z."""

    out: Tensor
    kv: Tensor
    ksum: Tensor


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    table: Tensor | None = None,
    decay: Tensor | None = None,
    kv: Tensor | None = None,
    ksum: Tensor | None = None,
    feature_map: str = "elu",
    normalise: bool = True,
    eps: float = 1e-6,
    chunk: int = 64,
) -> CausalOutput:
    """Each frame attends to itself and the frames before it; cost O(time · dim · width), whatever the length.

    Args:
        q, k: (batch, time, heads, dim), any strides, before the feature map.
        v: (batch, time, heads, width).
        lengths: (batch,) integers; frames at or past a row's length give nothing and get 0.
        table: (time, dim) float32 of `rotary_table`, starting where the state ended, or None.
        decay: (heads,) in [0, 1], or None for no forgetting. Has a gradient.
        kv, ksum: the state to start from, both or neither. Have gradients, as has the state returned.
        feature_map: a key of `FEATURE_MAPS`.
        normalise: divide by φ(q_t)ᵀ z_t + eps.
        chunk: frames at once in the PyTorch form; the result does not depend on it.

    Raises:
        ValueError: shapes do not match, feature_map is unknown, or only one of kv and ksum is given.

    Example:
        >>> q, k, v = torch.randn(3, 2, 10, 4, 8)
        >>> causal_linear_attention(q, k, v, torch.tensor([10, 7])).kv.shape
        torch.Size([2, 4, 8, 8])
    """
    check(q, k, v, lengths, table, feature_map)
    _check_state(q, v, decay, kv, ksum)
    if not compiled(q, v):
        return reference(q, k, v, lengths, table, decay, kv, ksum, feature_map, normalise, eps, chunk)
    q, k, v = common(q, k, v)
    extra = [None if t is None else t.float().contiguous() for t in (decay, kv, ksum)]
    return CausalOutput(
        *_causal_linear_attention(q, k, v, lengths.long().contiguous(), table, *extra, feature_map, normalise, eps)
    )


def causal_linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    ksum: Tensor,
    decay: Tensor | None = None,
    table: Tensor | None = None,
    feature_map: str = "elu",
    normalise: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """One frame of `causal_linear_attention`, for streaming: updates the state in place. No gradients.

    q, k (batch, heads, dim), v (batch, heads, width), kv (batch, heads, dim, width) and ksum (batch, heads, dim)
    float32 and contiguous, table (dim,) → (batch, heads, width).

    Raises:
        ValueError: as `causal_linear_attention`.
    """
    if q.dim() != 3 or k.shape != q.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            f"q, k and v must be (batch, heads, dim), got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if table is not None and table.shape != q.shape[2:]:
        raise ValueError(f"table must be ({q.shape[2]},), got {tuple(table.shape)}")
    if feature_map not in FEATURE_MAPS:
        raise ValueError(f"feature_map must be one of {', '.join(FEATURE_MAPS)}, got {feature_map!r}")
    _check_state(q, v, decay, kv, ksum)
    with torch.no_grad():
        if compiled(q, v):
            q, k, v = common(q, k, v)
            return torch.ops.asr.causal_linear_step(q, k, v, table, decay, kv, ksum, feature_map, normalise, eps)
        ones = torch.ones(len(q), dtype=torch.long, device=q.device)
        position = None if table is None else table[None]
        q, k, v = (t[:, None] for t in (q, k, v))
        result = reference(q, k, v, ones, position, decay, kv, ksum, feature_map, normalise, eps, 1)
        kv.copy_(result.kv)
        ksum.copy_(result.ksum)
        return result.out[:, 0]


def _check_state(q: Tensor, v: Tensor, decay: Tensor | None, kv: Tensor | None, ksum: Tensor | None) -> None:
    batch, heads, dim = q.shape[0], *q.shape[-2:]
    if (kv is None) != (ksum is None):
        raise ValueError("give both kv and ksum, or neither")
    wanted = (
        ("decay", decay, (heads,)),
        ("kv", kv, (batch, heads, dim, v.shape[-1])),
        ("ksum", ksum, (batch, heads, dim)),
    )
    for name, tensor, shape in wanted:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    decay: Tensor | None,
    kv: Tensor | None,
    ksum: Tensor | None,
    feature_map: str,
    normalise: bool,
    eps: float,
    chunk: int,
) -> CausalOutput:
    """The definition, chunk by chunk: masked products inside a chunk, the state between chunks.

    Exact for any chunk: 1 is the recurrence, ≥ time the parallel form. In the dtype of its inputs but at least float32.
    """
    dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = wide(q, k, v)
        batch, time, heads, dim = q.shape
        phi = FEATURE_MAPS[feature_map]
        q, k, v = hide_padding(lengths, phi(q), phi(k), v)
        turned_q, turned_k = turn(q, table), turn(k, table)
        a = q.new_ones(heads) if decay is None else decay.to(q.dtype)
        s = q.new_zeros(batch, heads, dim, v.shape[3]) if kv is None else kv.to(q.dtype)
        z = q.new_zeros(batch, heads, dim) if ksum is None else ksum.to(q.dtype)
        parts = []
        # Split once: the gradient of each slice on its own would be as long as the row.
        chunks = (t.transpose(1, 2).split(chunk, dim=2) for t in (q, k, turned_q, turned_k, v))
        for n, (cq, ck, tq, tk, cv) in enumerate(zip(*chunks, strict=True) if time else ()):
            size = cq.shape[2]
            at = torch.arange(size, device=q.device)
            left = (lengths - n * chunk).clamp(0, size)  # real frames of this chunk, (batch,)
            within = (a[:, None, None] ** (at[:, None] - at).clamp(min=0)).tril()  # (heads, chunk, chunk)
            since = (a[:, None] ** (at + 1))[..., None]  # (heads, chunk, 1)
            until = a[:, None] ** (left[:, None, None] - 1 - at).clamp(min=0)  # (batch, heads, chunk)
            y = ((tq @ tk.mT) * within) @ cv + since * (tq @ s)
            if normalise:
                sums = within @ ck + since * z[:, :, None]
                y = y / ((cq * sums).sum(-1, keepdim=True) + eps)
            parts.append(y)
            fade = a ** left[:, None]  # (batch, heads)
            s = fade[..., None, None] * s + (tk * until[..., None]).mT @ cv
            z = fade[..., None] * z + (ck * until[..., None]).sum(2)
        out = torch.cat(parts, dim=2).transpose(1, 2) if parts else v
        return CausalOutput(hide_padding(lengths, out)[0].to(dtype), s, z)


LIBRARY.define(
    "causal_linear_attention(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? table, Tensor? decay, Tensor? kv,"
    " Tensor? ksum, str feature_map, bool normalise, float eps) -> (Tensor out, Tensor last_kv, Tensor last_ksum)"
)
LIBRARY.define(
    "causal_linear_attention_backward(Tensor dout, Tensor dkv, Tensor dksum, Tensor q, Tensor k, Tensor v,"
    " Tensor lengths, Tensor? table, Tensor? decay, Tensor? kv, Tensor? ksum, Tensor last_kv, Tensor last_ksum,"
    " str feature_map, bool normalise, float eps)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dkv, Tensor dksum, Tensor slope)"
)
LIBRARY.define(
    "causal_linear_step(Tensor q, Tensor k, Tensor v, Tensor? table, Tensor? decay, Tensor(a!) kv, Tensor(b!) ksum,"
    " str feature_map, bool normalise, float eps) -> Tensor"
)


@library.register_fake("asr::causal_linear_attention", lib=LIBRARY)
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    kv = v.new_empty(batch, heads, dim, v.shape[3], dtype=torch.float32)
    return v.new_empty(v.shape), kv, v.new_empty(batch, heads, dim, dtype=torch.float32)


@library.register_fake("asr::causal_linear_attention_backward", lib=LIBRARY)
def _fake_backward(
    dout: Tensor, dkv: Tensor, dksum: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    slope = v.new_empty(q.shape[0], q.shape[2], dtype=torch.float32)
    return (*(t.new_empty(t.shape) for t in (q, k, v, dkv, dksum)), slope)


@library.register_fake("asr::causal_linear_step", lib=LIBRARY)
def _fake_step(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.feature_map, ctx.normalise, ctx.eps = inputs
    ctx.save_for_backward(*tensors, output[1], output[2])


def _backward(ctx: Any, dout: Tensor, dkv: Tensor, dksum: Tensor) -> tuple[Tensor | None, ...]:
    decay, kv = ctx.saved_tensors[5], ctx.saved_tensors[6]
    dq, dk, dv, first_kv, first_ksum, slope = torch.ops.asr.causal_linear_attention_backward(
        dout, dkv.contiguous(), dksum.contiguous(), *ctx.saved_tensors, ctx.feature_map, ctx.normalise, ctx.eps
    )
    ddecay = None if decay is None else torch.where(decay > 0, slope.sum(0) / decay, 0.0)  # slope is that of ln a
    start = (None, None) if kv is None else (first_kv, first_ksum)
    return (dq, dk, dv, None, None, ddecay, *start, None, None, None)


_causal_linear_attention = differentiable("causal_linear_attention", _save, _backward)
