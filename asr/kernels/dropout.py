"""Dropout by random bytes: the op, its gradient, and the PyTorch form that defines it.

Srivastava et al., "Dropout", 2014: an element becomes 0 with probability p, the others grow by 1 / (1 − p).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, on_cpu


def dropout(x: Tensor, draws: Tensor, dropped: int) -> Tensor:
    """x times 256 / (256 − dropped) where an element's byte is `dropped` or more, times 0 elsewhere.

    Args:
        x: any shape, on the CPU.
        draws: int64, at least x.numel() / 8 of them; element i of x has their byte i. The gradient needs them, and
            nothing else.
        dropped: of 256, 1 to 255.

    Example:
        >>> dropout(torch.ones(4), torch.tensor([0xFF00FF7F]), 128)
        tensor([0., 2., 0., 2.])
    """
    if x.dtype == torch.float32 and on_cpu(x):
        return torch.ops.asr.dropout(x.contiguous(), draws, dropped)  # type: ignore[no-any-return]
    return reference(x, draws, dropped)


def reference(x: Tensor, draws: Tensor, dropped: int) -> Tensor:
    """The definition, in the dtype of x."""
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * keep.to(x.dtype).mul_(256 / (256 - dropped))


LIBRARY.define("dropout(Tensor x, Tensor draws, int dropped) -> Tensor")


@library.register_fake("asr::dropout", lib=LIBRARY)
def _fake(x: Tensor, draws: Tensor, dropped: int) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, draws, ctx.dropped = inputs
    ctx.save_for_backward(draws)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.asr.dropout(dout.contiguous(), *ctx.saved_tensors, ctx.dropped), None, None


library.register_autograd("asr::dropout", _backward, setup_context=_save, lib=LIBRARY)
