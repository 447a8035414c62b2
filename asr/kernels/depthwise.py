"""Depth-wise convolution over time: the op, its gradient, and the PyTorch form that defines it.

    y_t = b + Σ_k w_k ⊙ x_{t + k − left}

Its arithmetic is nothing beside a layer's matrix products, but torch's general convolutions on a CPU take as long as
some of those: they want time last, make a program of their own for every new length, and are slow at its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, on_cpu
from asr.kernels.differentiable import differentiable


def depthwise_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, left: int, right: int) -> Tensor:
    """Every channel of x with a kernel of its own: (batch, time, dim) → (batch, time + left + right − kernel + 1, dim).

    Args:
        weight: (dim, kernel), the tap of the earliest frame first.
        bias: (dim,).
        left, right: frames of zeros before and after x, fewer than the kernel has.

    Raises:
        RuntimeError: x has fewer frames, padded, than the kernel.

    Example:
        >>> depthwise_convolution(torch.ones(1, 4, 1), torch.ones(1, 3), None, left=2, right=0).flatten()
        tensor([1., 2., 3., 3.])
    """
    if x.dtype == weight.dtype == torch.float32 and on_cpu(x):
        return _depthwise_convolution(x.contiguous(), weight.contiguous(), bias, left, right)  # type: ignore[no-any-return]
    return reference(x, weight, bias, left, right)


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, left: int, right: int) -> Tensor:
    """The definition, in any dtype: a 2-D convolution of height 1, which torch has fast kernels for."""
    x = F.pad(x.transpose(1, 2), (left, right))[:, :, None]
    return F.conv2d(x, weight[:, None, None], bias, groups=len(weight)).squeeze(2).transpose(1, 2)


LIBRARY.define("depthwise_convolution(Tensor x, Tensor weight, Tensor? bias, int left, int right) -> Tensor")
LIBRARY.define(
    "depthwise_convolution_backward(Tensor dout, Tensor x, Tensor weight, int left, int right)"
    " -> (Tensor dx, Tensor dweight, Tensor dbias)"
)


@library.register_fake("asr::depthwise_convolution", lib=LIBRARY)
def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, left: int, right: int) -> Tensor:
    batch, time, dim = x.shape
    return x.new_empty(batch, time + left + right - weight.shape[1] + 1, dim)


@library.register_fake("asr::depthwise_convolution_backward", lib=LIBRARY)
def _fake_backward(dout: Tensor, x: Tensor, weight: Tensor, left: int, right: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.left, ctx.right = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweight, dbias = torch.ops.asr.depthwise_convolution_backward(
        dout.contiguous(), *ctx.saved_tensors, ctx.left, ctx.right
    )
    return dx, dweight, dbias if ctx.biased else None, None, None


_depthwise_convolution = differentiable("depthwise_convolution", _save, _backward)
