"""The attention map that a mixer implies: how much each frame of its result takes from each frame of its input.

- Where the result is linear in the values before norm, gate and output layer, o_i = Σ_j A_ij v_j, the map A is exact:
  the layer itself runs with unit vectors in place of its values. Softmax, LSH, linear attention and its relatives.
- Elsewhere (LSTM, state spaces, gated units, SummaryMixing) it is ‖∂y_i/∂x_j‖, the Frobenius norm of the Jacobian,
  estimated as the root mean square over random directions of y_i: E‖rᵀJ‖² = ‖J‖² for r ~ N(0, 1).

A may have negative weights, where there is no normaliser of positive ones. What is compared and drawn is |A|, each row
divided by its sum.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.attention.gated import GatedLinearAttention
from asr.attention.lightning import LightningAttention
from asr.attention.linear import LinearAttention
from asr.attention.lsh import LshAttention
from asr.attention.mixer import Mixer
from asr.attention.retention import Retention
from asr.attention.rotary import rotate
from asr.attention.softmax import SoftmaxAttention
from asr.kernels.lsh import SELF_SCORE, unit_length
from asr.report.inspect.layers import Layer

PROBES = 4  # random directions: an entry of the Jacobian's norm is then about a tenth off where J has some rank
COPIES = 8192  # frames that run through a layer at once, in copies of the utterance

QKV = tuple[Tensor, Tensor, Tensor]


class QueriesKeys(NamedTuple):
    """Of one utterance: q, k (heads, time, D), turned where positions are rotary, and values v (heads, time, W).

    `shared`: the keys are the queries; softmax takes them at unit length and a frame does not look at itself."""

    q: Tensor
    k: Tensor
    v: Tensor
    shared: bool


def _side_by_side(mixer: Any, projected: Tensor) -> QKV:
    """Queries, keys, values (and a gate) each as wide as the model; two parts: queries are the keys."""
    width = mixer.project.in_features
    parts = projected.unflatten(-1, (-1, mixer.heads, width // mixer.heads)).unbind(2)
    return (parts[0], parts[0], parts[1]) if len(parts) == 2 else (parts[0], parts[1], parts[2])


def _by_head(mixer: Any, projected: Tensor) -> QKV:
    """Each head has its queries, keys and values side by side."""
    keys = mixer.width if isinstance(mixer, Retention) else mixer.keys
    q, k, v = projected.unflatten(-1, (mixer.heads, -1)).split([keys, keys, mixer.values], dim=-1)
    return q, k, v


# How `project`'s output is laid out: views (batch, time, heads, width) into it. Mixers without a row have no such map.
LAYOUTS: dict[type[Mixer], Callable[[Any, Tensor], QKV]] = {
    SoftmaxAttention: _side_by_side,
    LshAttention: _side_by_side,
    LinearAttention: _side_by_side,  # and what derives from it, with forgetting
    LightningAttention: _side_by_side,
    Retention: _by_head,
    GatedLinearAttention: _by_head,
}


def _layout(mixer: object) -> Callable[[Any, Tensor], QKV] | None:
    return next((LAYOUTS[base] for base in type(mixer).__mro__ if base in LAYOUTS), None)


@torch.inference_mode()
def queries_keys(layer: Layer, x: Tensor) -> QueriesKeys | None:
    """What a layer computes from its input (1, time, dim); None for a mixer without queries and keys."""
    mixer: Any = layer.module
    split = _layout(mixer)
    if split is None:
        return None
    q, k, v = (t[0].transpose(0, 1) for t in split(mixer, mixer.project(x)))
    if getattr(mixer, "rotary", isinstance(mixer, Retention)):  # retention always turns them
        q, k = rotate(q), rotate(k)
    return QueriesKeys(q, k, v, shared=getattr(mixer, "parts", 3) == 2)


def softmax_weights(qk: QueriesKeys, causal: bool) -> Tensor:
    """(heads, time, time): softmax attention over all frames (causal: those up to each) with these queries and keys."""
    q, k = qk.q.float(), qk.k.float()
    scores = q @ (unit_length(k) if qk.shared else k).mT * q.shape[-1] ** -0.5
    if qk.shared:
        scores.diagonal(dim1=1, dim2=2).fill_(SELF_SCORE)
    if causal:
        t = torch.arange(q.shape[1], device=q.device)
        scores = scores.masked_fill(t > t[:, None], -torch.inf)
    return scores.softmax(-1)


@torch.inference_mode()
def value_map(layer: Layer, x: Tensor) -> Tensor | None:
    """(heads, time, time) A of o_i = Σ_j A_ij v_j, exact; None for a mixer that is not linear in values.

    Copies of the utterance run through the layer. Of copy c the values of frame j are the unit vector of channel
    j − c·W, if there is one: the results are columns c·W … of A.
    """
    mixer: Any = layer.module
    split = _layout(mixer)
    if split is None:
        return None
    time, heads = x.shape[1], mixer.heads
    width = split(mixer, mixer.project(x))[2].shape[-1]
    # The norm of a mixer without normaliser, else the output layer, is the first to see o.
    reader = getattr(mixer, "norm", None) or getattr(mixer, "out", None) or mixer.output
    unit = torch.eye(time, device=x.device)
    columns, parts = list(range(0, time, width)), []
    for some in _split(columns, max(1, COPIES // time)):

        def with_units(module: Any, args: Any, projected: Tensor, some: list[int] = some) -> Tensor:
            projected = projected.clone()
            values = split(mixer, projected)[2].zero_()
            for copy, start in enumerate(some):
                block = unit[:, start : start + width]
                values[copy, :, :, : block.shape[1]] = block[:, None].to(values.dtype)
            return projected

        seen: list[Tensor] = []
        with ExitStack() as stack:
            stack.enter_context(mixer.project.register_forward_hook(with_units))
            stack.enter_context(reader.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0])))
            layer(x.expand(len(some), -1, -1))
        o = seen[0].reshape(len(some), time, heads, width).float()
        parts.append(o.permute(2, 1, 0, 3).flatten(2))
    return torch.cat(parts, dim=2)[..., :time]


def jacobian_map(layer: Layer, x: Tensor, rows: Tensor, seed: int = 0) -> Tensor:
    """(1, rows, time) estimates of ‖∂y_i/∂x_j‖ for the frames i of `rows`.

    A causal layer runs only as far as the last of the rows that are computed together.
    """
    generator = torch.Generator().manual_seed(seed)
    x, parts = x.detach().clone(), []  # a tensor of inference mode has no gradient
    for some in _split(rows.repeat_interleave(PROBES).tolist(), max(PROBES, COPIES // x.shape[1] // PROBES * PROBES)):
        end = max(some) + 1 if layer.causal else x.shape[1]
        copies = x[:, :end].expand(len(some), -1, -1).clone().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):  # whose LSTM has no gradient in evaluation
            y = layer(copies)[torch.arange(len(some)), some]
        direction = torch.randn(y.shape, generator=generator).to(y)
        (gradient,) = torch.autograd.grad((y * direction).sum(), copies)
        sizes = gradient.square().sum(-1).unflatten(0, (-1, PROBES)).mean(1).sqrt()
        parts.append(F.pad(sizes, (0, x.shape[1] - end)))
    return torch.cat(parts)[None]


def _split(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
