"""Padding set to zero, alone and behind a gate: the ops, their gradients, and the PyTorch forms that define them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, on_cpu
from asr.kernels.differentiable import differentiable


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, …) with every frame past its row's length set to 0, whatever stood there (also NaN): a copy.

    lengths: (batch,) integers.

    Example:
        >>> zero_padding(torch.ones(2, 3, 1), torch.tensor([3, 1]))[..., 0]
        tensor([[1., 1., 1.],
                [1., 0., 0.]])
    """
    if on_cpu(x):
        return _zero_padding(x.contiguous(), lengths.long().contiguous())  # type: ignore[no-any-return]
    return reference(x, lengths)


def reference(x: Tensor, lengths: Tensor) -> Tensor:
    """The definition, in any dtype."""
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(padding.view(*x.shape[:2], *[1] * (x.dim() - 2)), 0.0)


def gate(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, 2·dim) → (batch, time, dim): one half times the sigmoid of the other, and 0 past a row's length.

    Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2017, equation 1.

    lengths: (batch,) integers.

    Example:
        >>> gate(torch.tensor([[[4.0, 0.0], [1.0, 1.0]]]), torch.tensor([1]))
        tensor([[[2.],
                 [0.]]])
    """
    if x.dtype == torch.float32 and on_cpu(x):
        return _gate(x.contiguous(), lengths.long().contiguous())  # type: ignore[no-any-return]
    return gate_reference(x, lengths)


def gate_reference(x: Tensor, lengths: Tensor) -> Tensor:
    """The definition, in any dtype."""
    return reference(F.glu(x, dim=-1), lengths)


LIBRARY.define("zero_padding(Tensor x, Tensor lengths) -> Tensor")
LIBRARY.define("gate(Tensor x, Tensor lengths) -> Tensor")
LIBRARY.define("gate_backward(Tensor dout, Tensor x, Tensor lengths) -> Tensor")


@library.register_fake("asr::zero_padding", lib=LIBRARY)
def _fake(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    return _zero_padding(dout.contiguous(), *ctx.saved_tensors), None


_zero_padding = differentiable("zero_padding", _save, _backward)


@library.register_fake("asr::gate", lib=LIBRARY)
def _fake_gate(x: Tensor, lengths: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@library.register_fake("asr::gate_backward", lib=LIBRARY)
def _fake_gate_backward(dout: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save_gate(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward_gate(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    return torch.ops.asr.gate_backward(dout.contiguous(), *ctx.saved_tensors), None


_gate = differentiable("gate", _save_gate, _backward_gate)
