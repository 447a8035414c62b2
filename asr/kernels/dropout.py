"""Dropout with what stands beside it, in one pass: after an activation, or before a sum with a residual.

    y = dropout(f(x))          z = x + weight · dropout(y)

Srivastava et al., "Dropout", 2014: an element becomes 0 with probability p, the others grow by 1 / (1 − p). torch's CPU
generator spends a whole draw on every element, which makes dropout a tenth of a training step. The compiled ops draw a
seed; a byte for every element follows from it and the element's place, by Philox4x32 with 7 rounds (Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), so that p is rounded to a multiple of 1/256. Nothing random is
kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

from asr.kernels.backend import LIBRARY, on_cpu
from asr.kernels.differentiable import differentiable

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x, "relu": F.relu, "silu": F.silu, "gelu": F.gelu,
}  # fmt: skip


def dropout(x: Tensor, p: float, activation: str = "identity") -> Tensor:
    """f(x) with an element set to 0 with probability p, and times 1 / (1 − p) elsewhere; f is one of `ACTIVATIONS`.

    Draws from torch's generator: of the CPU, or of the device where x lies. 0 < p < 1.

    Example:
        >>> sorted(set(dropout(torch.ones(100), 0.5).tolist()))
        [0.0, 2.0]
    """
    if x.dtype == torch.float32 and on_cpu(x):
        return _dropout(x.contiguous(), _seed(), _of_256(p), activation)  # type: ignore[no-any-return]
    x = ACTIVATIONS[activation](x)
    if x.device.type != "cpu":
        return F.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)  # eight elements share one
    dropped = _of_256(p)
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * keep.to(x.dtype).mul_(256 / (256 - dropped))


def add_dropout(x: Tensor, y: Tensor, p: float, weight: float = 1.0) -> Tensor:
    """x + weight · dropout(y), of two tensors of one shape."""
    if x.dtype == y.dtype == torch.float32 and x.shape == y.shape and on_cpu(x):
        return _add_dropout(x.contiguous(), y.contiguous(), _seed(), _of_256(p), weight)  # type: ignore[no-any-return]
    return x.add(dropout(y, p), alpha=weight)


def _seed() -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (1,))


def _of_256(p: float) -> int:
    return min(255, max(1, round(p * 256)))


LIBRARY.define("dropout(Tensor x, Tensor seed, int dropped, str activation) -> Tensor")
LIBRARY.define("add_dropout(Tensor x, Tensor y, Tensor seed, int dropped, float weight) -> Tensor")
LIBRARY.define(
    "dropout_backward(Tensor dout, Tensor? x, Tensor seed, int dropped, float weight, str activation) -> Tensor"
)


@library.register_fake("asr::dropout", lib=LIBRARY)
def _fake(x: Tensor, seed: Tensor, dropped: int, activation: str) -> Tensor:
    return torch.empty_like(x)


@library.register_fake("asr::add_dropout", lib=LIBRARY)
def _fake_add(x: Tensor, y: Tensor, seed: Tensor, dropped: int, weight: float) -> Tensor:
    return torch.empty_like(x)


@library.register_fake("asr::dropout_backward", lib=LIBRARY)
def _fake_backward(
    dout: Tensor, x: Tensor | None, seed: Tensor, dropped: int, weight: float, activation: str
) -> Tensor:
    return torch.empty_like(dout)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, seed, ctx.dropped, ctx.activation = inputs
    ctx.save_for_backward(seed, *([] if ctx.activation == "identity" else [x]))


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None, None]:
    seed, *x = ctx.saved_tensors
    dx = torch.ops.asr.dropout_backward(dout.contiguous(), *(x or [None]), seed, ctx.dropped, 1.0, ctx.activation)
    return dx, None, None, None


def _save_add(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, seed, ctx.dropped, ctx.weight = inputs
    ctx.save_for_backward(seed)


def _backward_add(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    (seed,) = ctx.saved_tensors
    dy = torch.ops.asr.dropout_backward(dout.contiguous(), None, seed, ctx.dropped, ctx.weight, "identity")
    return dout, dy, None, None, None


_dropout = differentiable("dropout", _save, _backward)
_add_dropout = differentiable("add_dropout", _save_add, _backward_add)
