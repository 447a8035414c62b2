"""`asr bench scaling`: our own ops beside themselves: on more threads, in half the digits, and frame by frame.

One head of one long row has no heads to deal out, so that threads must share its time; bfloat16 saves memory traffic
and costs conversions; a step of one frame is little more than its call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asr.kernels import causal_linear_attention, causal_linear_step, linear_attention, lsh_attention
from asr.report.bench_kernels import BUCKET, HEADS, ROUNDS, interleaved

Op = Callable[[Tensor, Tensor, Tensor], Tensor]
AWAKE = 0.03  # seconds of calls before the one that is timed: in a training step, too, all threads have just worked


class Ratio(NamedTuple):
    what: str
    dim: int
    forward_ms: tuple[float, float]  # before and after
    both_ms: tuple[float, float]  # forward and backward


def threads(dim: int, frames: int = 8192, repeats: int = 9) -> list[Ratio]:
    """One head of one row: on one thread, and on as many as torch has now, which are awake."""
    many = torch.get_num_threads()

    def on(count: int, op: Op) -> Op:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            torch.set_num_threads(count)
            return op(q, k, v)

        return run

    try:
        ratios = []
        for name, op in _ops(1, frames, dim).items():
            found = interleaved({"one": on(1, op), "many": on(many, op)}, _inputs(1, frames, 1, dim), repeats, AWAKE)
            ratios.append(_ratio(f"{name}: 1 thread, {many}", dim, found["one"], found["many"]))
        return ratios
    finally:
        torch.set_num_threads(many)


def half(dim: int, tokens: int = 8192, frames: int = 512, repeats: int = 9) -> list[Ratio]:
    """float32 and bfloat16 inputs; sums are float32 in both."""
    batch = max(1, tokens // frames)
    full = _inputs(batch, frames, HEADS, dim)
    ratios = []
    for name, op in _ops(batch, frames, dim).items():
        methods = {"full": lambda *t, op=op: op(*t[:3]), "half": lambda *t, op=op: op(*t[3:])}
        found = interleaved(methods, (*full, *(t.bfloat16() for t in full)), repeats)
        ratios.append(_ratio(f"{name}: float32, bfloat16", dim, found["full"], found["half"]))
    return ratios


def step(dim: int, heads: int, calls: int = 2000, repeats: int = 7) -> tuple[float, float, float]:
    """Microseconds of one frame: through `causal_linear_step`, of the bare op, and of the bare op without any row."""

    def prepared(batch: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        q, k, v = (torch.randn(batch, heads, dim) for _ in range(3))
        kv, ksum = torch.zeros(batch, heads, dim, dim), torch.zeros(batch, heads, dim)
        bare = torch.ops.asr.causal_linear_step
        return lambda: causal_linear_step(q, k, v, kv, ksum), lambda: bare(
            q, k, v, None, None, kv, ksum, "elu", True, 1e-6
        )

    runs = (*prepared(1), prepared(0)[1])
    seconds: list[list[float]] = [[] for _ in runs]
    with torch.no_grad():
        for _ in range(repeats + 1):  # the first warms up
            for run, found in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                found.append((time.perf_counter() - start) / calls)
    face, op, nothing = (1e6 * statistics.median(found[1:]) for found in seconds)
    return face, op, nothing


def _inputs(batch: int, frames: int, heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, frames, heads, dim, generator=generator) for _ in range(3))
    return q, k, v


def _ops(batch: int, frames: int, dim: int) -> dict[str, Op]:
    lengths = torch.full((batch,), frames)
    rotation = torch.randn(ROUNDS, dim, -(-frames // (2 * BUCKET)), generator=torch.Generator().manual_seed(0))
    return {
        "linear": lambda q, k, v: linear_attention(q, k, v, lengths),
        "causal linear": lambda q, k, v: causal_linear_attention(q, k, v, lengths).out,
        f"LSH-{ROUNDS}": lambda q, k, v: lsh_attention(q, v, lengths, rotation, BUCKET),
    }


def _ratio(what: str, dim: int, before: tuple[float, float], after: tuple[float, float]) -> Ratio:
    return Ratio(what, dim, (before[0], after[0]), (before[1], after[1]))
