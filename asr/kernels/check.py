"""Each op on this machine: the active implementation, its error against float64, its speed against PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asr.kernels.backend import compiled, forced
from asr.kernels.causal import causal_linear_attention, causal_linear_step
from asr.kernels.features import rotary_table
from asr.kernels.gated import gated_linear_attention
from asr.kernels.linear import linear_attention
from asr.kernels.lsh import lsh_attention

BATCH, TIME, HEADS, DIM = 2, 400, 6, 32  # of the paper's layers
ROUNDS, BUCKET = 4, 32
Run = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, lengths → out


class Case(NamedTuple):
    run: Run
    cpp: bool = True  # whether there is a compiled form for the CPU


class Measured(NamedTuple):
    backend: str  # "C++" or "PyTorch"
    error: float  # largest of output and gradients, relative to the largest value of each
    tolerance: float
    speed: float  # time of PyTorch divided by that of the active implementation, forward and backward


def _rotary(q: Tensor) -> Tensor:
    return rotary_table(q.shape[1], q.shape[3])


def _rotation(q: Tensor) -> Tensor:
    columns = -(-q.shape[1] // (2 * BUCKET))
    return torch.randn(ROUNDS, q.shape[3], columns, generator=torch.Generator().manual_seed(1))


def _steps(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    batch, time, heads, dim = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    kv, ksum = q.new_zeros(batch, heads, dim, dim, dtype=dtype), q.new_zeros(batch, heads, dim, dtype=dtype)
    return torch.stack([causal_linear_step(q[:, t], k[:, t], v[:, t], kv, ksum) for t in range(time)], dim=1)


CASES: dict[str, Case] = {
    "linear_attention": Case(lambda q, k, v, lengths: linear_attention(q, k, v, lengths, _rotary(q))),
    "causal_linear_attention": Case(lambda q, k, v, lengths: causal_linear_attention(q, k, v, lengths, _rotary(q)).out),
    "causal_linear_step": Case(_steps),
    "lsh_attention": Case(lambda q, k, v, lengths: lsh_attention(q + k, v, lengths, _rotation(q), BUCKET)),
    "gated_linear_attention": Case(
        lambda q, k, v, lengths: gated_linear_attention(q, k, v, -k.square(), lengths).out, cpp=False
    ),
}


def measure(name: str, repeats: int = 5) -> Measured:
    """One op of `CASES` at a layer's size, in float32."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(BATCH, TIME, HEADS, DIM, generator=generator) for _ in range(3)]
    lengths = torch.tensor([TIME, TIME // 3])
    run, cpp = CASES[name]
    active = "C++" if compiled(*tensors, cpp=cpp) else "PyTorch"
    mine = _both_ways(run, tensors, lengths)
    with forced("reference"):
        exact = _both_ways(run, [t.double() for t in tensors], lengths)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(mine, exact, strict=True))
    if active == "PyTorch":
        return Measured(active, error, 1e-4, 1.0)
    here: list[float] = []
    torch_only: list[float] = []
    for _ in range(repeats):
        here.append(_seconds(run, tensors, lengths))
        with forced("reference"):
            torch_only.append(_seconds(run, tensors, lengths))
    return Measured(active, error, 1e-4, statistics.median(torch_only) / statistics.median(here))


def _both_ways(run: Run, tensors: list[Tensor], lengths: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    q, k, v = leaves
    out = run(q, k, v, lengths)
    if not out.requires_grad:  # a step has no gradient
        return [out]
    return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]


def _seconds(run: Run, tensors: list[Tensor], lengths: Tensor) -> float:
    start = time.perf_counter()
    _both_ways(run, tensors, lengths)
    return time.perf_counter() - start
