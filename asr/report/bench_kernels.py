"""`asr bench kernels`: the attention ops against their peers, in one run.

Every method gets the same random (batch, time, heads, dim) inputs and does the whole work from there: feature map,
normaliser, hashing, sorting. Methods take turns, so that a change of the machine's load meets all alike; reported are
medians. Peers that are not installed are left out and named.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.kernels import causal_linear_attention, linear_attention, lsh_attention
from asr.kernels.backend import forced
from asr.train.measure import keep_freed_memory, synchronise

CPU = torch.device("cpu")
HEADS, ROUNDS, BUCKET = 6, 4, 32  # of the paper's WSJ models
Method = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v (batch, time, heads, dim) → out


class Timing(NamedTuple):
    op: str
    method: str
    dim: int
    time: int  # frames
    forward_ms: float
    both_ms: float  # forward and backward


def measure(
    dims: Sequence[int],
    times: Sequence[int],
    tokens: int = 8192,
    repeats: int = 7,
    report: Callable[[str], None] = lambda line: None,
) -> list[Timing]:
    """Times every method at every size; batch · time = tokens."""
    timings = []
    for dim in dims:
        for frames in times:
            batch = max(1, tokens // frames)
            generator = torch.Generator().manual_seed(0)
            q, k, v = (torch.randn(batch, frames, HEADS, dim, generator=generator) for _ in range(3))
            for op, methods in peers(batch, frames, dim).items():
                report(f"{op}, dim {dim}, {batch} x {frames} frames")
                found = interleaved(methods, (q, k, v), repeats)
                timings += [Timing(op, name, dim, frames, *ms) for name, ms in found.items()]
    return timings


def interleaved(
    methods: Mapping[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...], repeats: int, awake: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Median milliseconds by method: forward without gradients, and forward and backward; methods take turns.

    Freed memory is kept, as it is in a training: else a method pays for new pages or not as those before it left them.

    Args:
        awake: seconds of calls before the one that is timed. Threads sleep where they had nothing to do for a
            millisecond or two, and waking them takes longer than a small op.
    """
    keep_freed_memory()
    forward: dict[str, list[float]] = {name: [] for name in methods}
    both: dict[str, list[float]] = {name: [] for name in methods}
    with torch.no_grad():  # warms up, too
        gradients = {name: torch.randn_like(method(*inputs)) for name, method in methods.items()}
    for repeat in range(repeats + 1):  # the first warms the backward passes up
        for name, method in methods.items():
            with torch.no_grad():
                ms = _milliseconds(lambda method=method: method(*inputs), awake)  # type: ignore[misc]
            leaves = [t.detach().requires_grad_() for t in inputs]

            def run(method: Callable[..., Tensor] = method, name: str = name, leaves: list[Tensor] = leaves) -> None:
                for leaf in leaves:
                    leaf.grad = None
                method(*leaves).backward(gradients[name])  # type: ignore[no-untyped-call]

            ms_both = _milliseconds(run, awake)
            if repeat:
                forward[name].append(ms)
                both[name].append(ms_both)
    return {name: (statistics.median(forward[name]), statistics.median(both[name])) for name in methods}


def _milliseconds(run: Callable[[], Any], awake: float = 0.0) -> float:
    begun = time.perf_counter()
    while time.perf_counter() < begun + awake:
        run()
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def gemm_rate(
    size: int | None = None, repeats: int = 5, device: torch.device = CPU, dtype: torch.dtype = torch.float32
) -> float:
    """FLOP/s of torch.mm, the bound of everything here."""
    size = size or (1024 if device.type == "cpu" else 8192)
    a = torch.randn(size, size, device=device, dtype=dtype)

    def run() -> None:
        a @ a
        synchronise(device)

    seconds = [_milliseconds(run) / 1e3 for _ in range(repeats + 1)][1:]
    return 2 * size**3 / statistics.median(seconds)


def peers(batch: int, frames: int, dim: int) -> dict[str, dict[str, Method]]:
    """Methods by op. Ours comes first and is called "asr"."""
    lengths = torch.full((batch,), frames)
    columns = max(1, -(-frames // (2 * BUCKET)))
    rotation = torch.randn(ROUNDS, dim, columns, generator=torch.Generator().manual_seed(0))

    def sdpa(causal: bool) -> Method:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    bidirectional: dict[str, Method] = {
        "asr": lambda q, k, v: linear_attention(q, k, v, lengths),
        "asr in PyTorch": _in_torch(lambda q, k, v: linear_attention(q, k, v, lengths)),
        "obvious PyTorch": _obvious,
        "softmax, SDPA": sdpa(False),
    }
    causal: dict[str, Method] = {
        "asr": lambda q, k, v: causal_linear_attention(q, k, v, lengths).out,
        "asr in PyTorch": _in_torch(lambda q, k, v: causal_linear_attention(q, k, v, lengths).out),
        "softmax, SDPA": sdpa(True),
    }
    if frames * frames * batch * HEADS <= 1 << 28:  # 1 GB
        causal["obvious PyTorch"] = _obvious_causal
    lsh: dict[str, Method] = {
        "asr": lambda q, k, v: lsh_attention(q, v, lengths, rotation, BUCKET),
        "asr in PyTorch": _in_torch(lambda q, k, v: lsh_attention(q, v, lengths, rotation, BUCKET)),
        "softmax, SDPA": sdpa(False),
    }
    _add_fast_transformers(bidirectional, causal, lsh, batch, frames, dim)
    _add_reformer(lsh, frames)
    _add_performer(bidirectional, dim)
    return {"linear": bidirectional, "causal linear": causal, f"LSH-{ROUNDS}": lsh}


def missing() -> list[str]:
    """Peers that are not installed."""
    packages = {
        "fast_transformers": "pytorch-fast-transformers",
        "reformer_pytorch": "reformer-pytorch",
        "performer_pytorch": "performer-pytorch",
    }
    return [name for module, name in packages.items() if _import(module) is None]


def _import(module: str) -> Any:
    try:
        return __import__(module, fromlist=["attention"])
    except Exception:  # old packages fail in many ways beside recent versions of torch
        return None


def _in_torch(method: Method) -> Method:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with forced("reference"):
            return method(q, k, v)

    return run


def _obvious(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As one writes it down from the paper: elu(x) + 1, two einsums and a normaliser."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = torch.einsum("nshd,nshm->nhmd", k, v)
    z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + 1e-6)
    return torch.einsum("nlhd,nhmd,nlh->nlhm", q, kv, z)


def _obvious_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The masked N x N product."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weights = torch.einsum("nlhd,nshd->nhls", q, k).tril()
    return torch.einsum("nhls,nshm->nlhm", weights / (weights.sum(-1, keepdim=True) + 1e-6), v)


def _add_fast_transformers(
    bidirectional: dict[str, Method],
    causal: dict[str, Method],
    lsh: dict[str, Method],
    batch: int,
    frames: int,
    dim: int,
) -> None:
    if _import("fast_transformers.attention") is None:
        return
    from fast_transformers.attention import CausalLinearAttention, LinearAttention, ReformerAttention
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    lengths = LengthMask(torch.full((batch,), frames))
    full, triangle = FullMask(frames), TriangularCausalMask(frames)
    linear, causal_linear = LinearAttention(HEADS * dim), CausalLinearAttention(HEADS * dim)
    bidirectional["fast-transformers"] = lambda q, k, v: linear(q, k, v, full, lengths, lengths)
    causal["fast-transformers"] = lambda q, k, v: causal_linear(q, k, v, triangle, lengths, lengths)
    if frames % (2 * BUCKET) == 0:
        reformer = ReformerAttention(chunk_size=BUCKET, rounds=ROUNDS, bits=max(1, (frames // BUCKET).bit_length() - 1))
        lsh["fast-transformers"] = lambda q, k, v: reformer(q, k, v, full, lengths, lengths)


def _add_reformer(lsh: dict[str, Method], frames: int) -> None:
    if _import("reformer_pytorch") is None or frames % (2 * BUCKET):
        return
    from reformer_pytorch import LSHAttention

    attention = LSHAttention(bucket_size=BUCKET, n_hashes=ROUNDS)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        qk, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, v))
        return attention(qk, v)[0]

    lsh["reformer-pytorch"] = run


def _add_performer(bidirectional: dict[str, Method], dim: int) -> None:
    if _import("performer_pytorch") is None:
        return
    from performer_pytorch import FastAttention

    attention = FastAttention(dim_heads=dim)
    bidirectional["performer-pytorch (FAVOR+)"] = lambda q, k, v: attention(*(t.transpose(1, 2) for t in (q, k, v)))
