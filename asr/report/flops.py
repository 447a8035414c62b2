"""Floating point operations of a step: what torch's counter knows, and formulas for what it does not or gets wrong.

Matrix products, convolutions and attention count, a multiplication and an addition as two; everything element by
element does not, nor does the CTC loss. Padding counts, since it is computed. A linear op counts as its recurrence,
4 · features · width for every frame and head, whatever more its chunks compute; LSH its scores and values within two
buckets. A backward pass has twice the products of its forward pass, and nothing counts that is computed anew in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import asr.kernels  # noqa: F401  (defines the ops)

Shape = Sequence[int]


def count_flops(run: Callable[[], object]) -> int:
    """FLOPs of everything that `run` calls, backward passes included."""
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        run()
    return int(counter.get_total_flops())


def _formulas() -> dict[Any, Callable[..., int]]:
    ours, aten = torch.ops.asr, torch.ops.aten
    return {
        ours.depthwise_convolution: _depthwise,
        ours.depthwise_convolution_backward: lambda dout, x, weight, *_, **__: 2 * 2 * prod(dout) * weight[1],
        ours.linear_attention: _linear,
        ours.linear_attention_backward: lambda dout, q, k, v, *_, **__: 2 * _linear(q, k, v),
        ours.causal_linear_attention: _linear,
        ours.causal_linear_attention_backward: lambda dout, dkv, dksum, q, k, v, *_, **__: 2 * _linear(q, k, v),
        ours.lsh_attention: lambda qk, v, lengths, rotation, size, *_, **__: (
            _lsh(qk, v, rotation[0], size) + 2 * prod(qk) * rotation[0] * rotation[2]
        ),
        ours.lsh_attention_backward: lambda dout, qk, v, lengths, out, lse, order, size, *_, **__: (
            2 * _lsh(qk, v, order[2], size)
        ),
        aten.convolution_backward: _convolution_backward,
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda dout, q, k, v, *_, **__: (
            sdpa_backward_flop_count(dout, q, k, v)
        ),
        aten.mkldnn_rnn_layer: lambda x, w, u, *_, **__: _recurrence(x, (w, u)),
        aten.mkldnn_rnn_layer_backward: lambda x, w, u, *_, **__: 2 * _recurrence(x, (w, u)),
        aten._cudnn_rnn: lambda x, weights, *_, **__: _recurrence(x, weights),
        aten._cudnn_rnn_backward: lambda x, weights, *_, **__: 2 * _recurrence(x, weights),
    }


def _linear(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """k vᵀ into the state and the state times q: (batch, time, heads, features) and (…, width)."""
    return 4 * prod(q) * v[3]


def _convolution_backward(dout: Shape, x: Shape, weight: Shape, *more: Any, **__: Any) -> int:
    """Of x and of weight (out, in of a group, …), if wanted; torch's formula takes no account of groups."""
    wanted = more[-1]
    return 2 * prod(dout) * prod(weight[1:]) * (wanted[0] + wanted[1])


def _depthwise(x: Shape, weight: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape) * weight[1]


def _lsh(qk: Shape, v: Shape, rounds: int, size: int) -> int:
    """Every frame of (batch, time, heads, dim) against the two buckets that it sees, in every round."""
    return 2 * prod(qk[:3]) * rounds * 2 * size * (qk[3] + v[3])


def _recurrence(x: Shape, weights: Sequence[Shape]) -> int:
    """Every matrix once for every frame of (time, batch, input)."""
    return 2 * x[0] * x[1] * sum(prod(w) for w in weights if len(w) == 2)
