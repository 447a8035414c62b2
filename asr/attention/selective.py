"""S6: the state space model whose step size, input and output depend on the frame, so that it can choose what to keep.

    h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t      y_t = C_tᵀ h_t + D u_t      Δ_t = softplus(W_Δ u_t + b)

Δ, u, y, D are per channel, B and C per state number and shared by the channels, A < 0 real and one for each pair of
both, at first −1 … −N (S4D-Real). Gu, Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
algorithm 2. As in the authors' program B̄ is Δ·B, the first order of their equation 4.

Cost O(T·channels·N). The scan runs over chunks of `chunk` frames; training keeps the states between them and computes
the rest again in the backward pass. Floats at the peak: batch · channels · N · (T / chunk + about 8 · chunk).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asr.attention.diagonal import log_uniform
from asr.kernels.features import wide


class SelectiveSsm(nn.Module):
    """(batch, time, channels) → the same, at least float32, also under autocast.

    Args:
        channels: width of a frame.
        state: N, real numbers that each channel remembers.
        dt_min, dt_max: between them Δ starts, log-uniformly, for a frame of zeros.
        chunk: frames at once; the result does not depend on it.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("log_rate",)  # weight decay would change what is remembered

    def __init__(self, channels: int, state: int, dt_min: float, dt_max: float, chunk: int) -> None:
        super().__init__()
        self.chunk, self.rank = chunk, -(-channels // 16)  # of W_Δ, as in the paper
        self.inputs = nn.Linear(channels, self.rank + 2 * state, bias=False)
        self.duration = nn.Linear(self.rank, channels)
        self.log_rate = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(channels, 1))  # A = −exp(·)
        self.skip = nn.Parameter(torch.ones(channels))  # D
        with torch.no_grad():
            self.duration.weight.uniform_(-(self.rank**-0.5), self.rank**-0.5)
            self.duration.bias.copy_(inverse_softplus(log_uniform(channels, dt_min, dt_max).exp()))

    def forward(self, u: Tensor) -> Tensor:
        return self.step(u, self.initial_state(u.shape[0]))[0]

    def initial_state(self, batch: int) -> Tensor:
        """(batch, channels, state)."""
        (rate,) = wide(self.log_rate)
        return rate.new_zeros(batch, *rate.shape)

    def step(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The next frames and the state before them → their outputs and the state after them."""
        with torch.autocast(u.device.type, enabled=False):
            u, log_rate = wide(u, self.log_rate)
            width = log_rate.shape[1]
            low, b, c = self.inputs(u.to(self.inputs.weight.dtype)).split([self.rank, width, width], dim=-1)
            dt, b, c = wide(F.softplus(self.duration(low)), b, c)
            a, parts = -log_rate.exp(), []
            for du, step, bs, cs in zip(*(t.split(self.chunk, dim=1) for t in (dt * u, dt, b, c)), strict=True):
                y, h = checkpoint(_chunk, du, step, bs, cs, a, h, use_reentrant=False, preserve_rng_state=False)
                parts.append(y)
            return torch.cat(parts, dim=1) + self.skip * u, h


def inverse_softplus(y: Tensor) -> Tensor:
    """ln(eʸ − 1), y > 0, written so that a large y does not overflow."""
    return y + (-torch.expm1(-y)).log()


def _chunk(du: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Δu and Δ (batch, time, channels), B and C (batch, time, N), A (channels, N), state → outputs, state after."""
    states: Tensor = _Scan.apply((dt[..., None] * a).exp(), du[..., None] * b[:, :, None], h)
    return (states @ c[..., None]).squeeze(-1), states[:, -1].clone()


class _Scan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t over dimension 1. The gradient of b is the same recurrence, backwards in time."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor) -> Tensor:
        h = scan(a, b, first)
        ctx.save_for_backward(a, h, first)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, first = ctx.saved_tensors
        later = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1)
        db = scan(later, dh, torch.zeros_like(first), backwards=True)
        return torch.cat([first[:, None], h[:, :-1]], dim=1).mul_(db), db, a[:, 0] * db[:, 0]


def scan(a: Tensor, b: Tensor, first: Tensor, backwards: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t with h_{-1} = first; `backwards`: h_t = a_t h_{t+1} + b_t. Without gradients.

    a, b (batch, time, …), first (batch, …) → (batch, time, …). Blocks of √time frames advance side by side, each from
    0; then each gets what the block before it hands on, times the product of the a in between. That takes 2 √time
    operations one after the other instead of time. Nothing is divided, so a = 0 is no exception.
    """
    time = a.shape[1]
    size = math.isqrt(time - 1) + 1
    rest = [0] * (2 * (a.dim() - 2) + 1) + [-time % size]
    # Frames that fill the last block up hand on what they get. F.pad copies, also where there is nothing to fill.
    product, h = (F.pad(t, rest, value=v).unflatten(1, (-1, size)) for t, v in ((a, 1.0), (b, 0.0)))
    within, across = range(size), range(h.shape[1])
    if backwards:
        within, across = within[::-1], across[::-1]
    for before, now in pairwise(within):
        h[:, :, now].addcmul_(product[:, :, now], h[:, :, before])
        product[:, :, now].mul_(product[:, :, before])
    for block in across:
        h[:, block].addcmul_(product[:, block], first[:, None])
        first = h[:, block, within[-1]]
    return h.flatten(1, 2)[:, :time]
