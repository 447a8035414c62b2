"""Padding set to zero: the op, its gradient, and the PyTorch form that defines it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, on_cpu


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, time, …) with every frame past its row's length set to 0, whatever stood there (also NaN): a copy.

    lengths: (batch,) integers.

    Example:
        >>> zero_padding(torch.ones(2, 3, 1), torch.tensor([3, 1]))[..., 0]
        tensor([[1., 1., 1.],
                [1., 0., 0.]])
    """
    if on_cpu(x):
        return torch.ops.asr.zero_padding(x.contiguous(), lengths.long().contiguous())  # type: ignore[no-any-return]
    return reference(x, lengths)


def reference(x: Tensor, lengths: Tensor) -> Tensor:
    """The definition, in any dtype."""
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(padding.view(*x.shape[:2], *[1] * (x.dim() - 2)), 0.0)


LIBRARY.define("zero_padding(Tensor x, Tensor lengths) -> Tensor")


@library.register_fake("asr::zero_padding", lib=LIBRARY)
def _fake(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    return torch.ops.asr.zero_padding(dout.contiguous(), *ctx.saved_tensors), None


library.register_autograd("asr::zero_padding", _backward, setup_context=_save, lib=LIBRARY)
