"""Is LSH attention finding what it should? Sizes of buckets, and how much of softmax's attention the rounds let meet.

Two frames meet in a round where the query's chunk of the sorted frames is the key's or the one after it: the op's own
rule (`asr.kernels.lsh`). Recall: of the K keys with the highest scores, those that a query meets in at least one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.attention.lsh import LshAttention
from asr.kernels.lsh import MAX_COLUMNS, bucket_counts, bucket_order, hash_buckets
from asr.report.inspect.implied import QueriesKeys, softmax_weights

TOP = 32  # keys per query that count as the true ones; all of them where there are fewer
ROUNDS = (1, 2, 4, 8)


class Meetings(NamedTuple):
    """Of one utterance. `sizes`: frames in each bucket of every head and round of the layer. By number of rounds
    (heads, time) each, NaN for a query without keys: `recall` of the top keys, `mass`: the share of softmax's weight
    that lies on keys met, `met`: the share of all keys met, which is what chance would give."""

    sizes: Tensor
    recall: dict[int, Tensor]
    mass: dict[int, Tensor]
    met: dict[int, Tensor]


@torch.inference_mode()
def meetings(mixer: LshAttention, qk: QueriesKeys) -> Meetings:
    """For the rounds 1, 2, 4, 8 and the layer's own number; rounds beyond the layer's are drawn from a fixed seed."""
    time, dim = qk.q.shape[1:]
    own = len(mixer.rotation)
    size = min(mixer.bucket_size, time)
    drawn = torch.randn(max(ROUNDS), dim, MAX_COLUMNS, generator=torch.Generator().manual_seed(0))
    # Those after the layer's number: the first of them are the layer's own where its seed is the same.
    rotation = torch.cat([mixer.rotation, drawn[own:].to(mixer.rotation)])
    rotation = rotation[..., : min(MAX_COLUMNS, -(-time // (2 * size)))].float()
    lengths = torch.tensor([time], device=qk.q.device)
    q, k = qk.q[None].float(), qk.k[None].float()
    counts = bucket_counts(lengths, size)
    buckets = hash_buckets(k, rotation[:own], counts)[0]
    sizes = torch.nn.functional.one_hot(buckets, int(counts)).sum(2).flatten()

    q_chunk = bucket_order(q, rotation, lengths, size)[1][0] // size  # (heads, rounds, time)
    k_chunk = q_chunk if qk.shared else bucket_order(k, rotation, lengths, size)[1][0] // size
    weights = softmax_weights(qk, mixer.causal)
    t = torch.arange(time, device=q.device)
    keys = (t <= t[:, None]) if mixer.causal else torch.ones_like(t <= t[:, None])
    keys = keys & (t != t[:, None]) if qk.shared else keys  # a frame looks at itself only if it sees nothing else
    weights = weights * keys
    top = torch.zeros_like(weights, dtype=torch.bool)
    top.scatter_(2, weights.masked_fill(~keys, -1).topk(min(TOP, time), dim=-1).indices, True)
    top &= keys

    found = Meetings(sizes.cpu(), {}, {}, {})
    meet = torch.zeros_like(top)
    for rounds in range(1, len(rotation) + 1):
        behind = q_chunk[:, rounds - 1, :, None] - k_chunk[:, rounds - 1, None]
        meet |= (behind == 0) | (behind == 1)
        if rounds in ROUNDS or rounds == own:
            pairs = (meet & keys).float()
            for name, of in (("recall", top.float()), ("mass", weights), ("met", keys.float())):
                getattr(found, name)[rounds] = ((pairs * of).sum(-1) / of.sum(-1)).cpu()
    return found


def summarise_lsh(utterances: Sequence[Meetings], mixer: LshAttention) -> dict[str, Any]:
    """`buckets`: their sizes over all utterances, heads and rounds; `recall`, `mass` and `met` by rounds and head."""
    sizes = torch.cat([one.sizes for one in utterances]).double()
    filled = sizes[sizes > 0]
    low, median, high = filled.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=filled.dtype)).tolist()

    def by_rounds(name: str) -> dict[str, list[float]]:
        first: dict[int, Tensor] = getattr(utterances[0], name)
        return {
            str(rounds): torch.cat([getattr(one, name)[rounds] for one in utterances], dim=1).nanmean(1).tolist()
            for rounds in sorted(first)
        }

    return {
        "rounds": len(mixer.rotation),
        "bucket_size": mixer.bucket_size,
        "top": TOP,
        "buckets": {
            "count": len(sizes),
            "empty_share": float((sizes == 0).double().mean()),
            "p5": low,
            "median": median,
            "p95": high,
            "max": float(sizes.max()),
            # Frames in a bucket beyond its chunk and the one before meet only part of it.
            "frames_in_oversized_share": float(filled[filled > 2 * mixer.bucket_size].sum() / filled.sum()),
        },
        **{name: by_rounds(name) for name in ("recall", "mass", "met")},
    }
