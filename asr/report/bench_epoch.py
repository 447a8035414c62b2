"""`asr bench epoch`: how long an epoch of the paper's models takes, on made-up features.

The four models of "Transformers are RNNs" (Katharopoulos et al., ICML 2020, Table 3), softmax both fused and forming
the N x N matrix. Utterances are noise with the number and lengths of WSJ's, or all of one length; a sample of the
batches is trained on, models taking turns, and the rest extrapolated by their length.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr.attention.config import AttentionConfig
from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig
from asr.ctc.loss import ctc_loss_sum
from asr.data.batches import padded_frames, plan_batches
from asr.encoder.config import BilstmConfig, ModelConfig, TransformerConfig
from asr.encoder.model import CtcModel
from asr.kernels import linear_attention
from asr.train.measure import keep_freed_memory

BINS, LABELS, FRAMES_PER_LABEL = 40, 72, 10  # of filterbanks; phones with stress; a phone lasts about 0.1 s
UTTERANCES, MEAN, LONGEST = 37_416, 783, 2_400  # WSJ si284, in frames of 10 ms
PAPER = {"linear": 824.0, "softmax, materialised": 2711.0, "LSH-4": 2250.0, "Bi-LSTM": 1047.0}  # seconds per epoch


class EpochTime(NamedTuple):
    model: str
    seconds: float  # per epoch
    frames_per_second: float  # without padding
    attention_share: float | None  # of the step, for linear attention


def wsj_lengths(count: int = UTTERANCES, seed: int = 0) -> list[int]:
    """Frames per utterance with WSJ's mean and maximum; the shape, a gamma distribution, is ours."""
    drawn = np.random.default_rng(seed).gamma(6.0, size=count)
    lengths = np.clip(drawn * MEAN / 6.0, 100, LONGEST)
    return np.clip(lengths * MEAN / lengths.mean(), 100, LONGEST).astype(int).tolist()  # type: ignore[no-any-return]


def models() -> dict[str, ModelConfig]:
    def transformer(attention: AttentionConfig) -> ModelConfig:
        return ModelConfig(encoder=TransformerConfig(attention=attention))

    return {
        "linear": transformer(LinearConfig()),
        "softmax, fused": transformer(SoftmaxConfig()),
        "softmax, materialised": transformer(SoftmaxConfig(implementation="materialised")),
        "LSH-4": transformer(LshConfig(rounds=4, bucket_size=32)),
        "Bi-LSTM": ModelConfig(encoder=BilstmConfig(layers=3, hidden=320)),
    }


def measure(
    lengths: Sequence[int],
    batch_frames: int = 10_000,
    samples: int = 6,
    repeats: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> list[EpochTime]:
    """Times `samples` batches, from short to long, with every model.

    Args:
        lengths: feature frames of all utterances of an epoch.
        batch_frames: padded frames of a batch.
        samples: batches measured; more make the extrapolation finer.
        repeats: measurements of each, of which the median counts.
    """
    keep_freed_memory()
    plan = sorted(plan_batches(lengths, batch_frames, seed=0, epoch=1), key=lambda rows: max(lengths[i] for i in rows))
    chosen = [plan[i] for i in np.linspace(0, len(plan) - 1, min(samples, len(plan))).round().astype(int)]
    steps = {name: _Step(config) for name, config in models().items()}
    for step in steps.values():  # warm up
        step([lengths[i] for i in chosen[0]])
    rates: dict[str, list[float]] = {name: [] for name in steps}  # seconds per padded frame, by sample
    shares = []
    for rows in chosen:
        sizes = [lengths[i] for i in rows]
        padded = padded_frames(rows, lengths)
        found: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeats):
            for name, step in steps.items():
                found[name].append(step(sizes))
        for name, seconds in found.items():
            rates[name].append(statistics.median(seconds) / padded)
        layers = len(TransformerConfig().mixers)
        shares.append(layers * _attention_seconds(sizes) / statistics.median(found["linear"]))
        report(
            f"{len(rows)} x {max(sizes)} frames: " + ", ".join(f"{n} {r[-1] * padded:.2f} s" for n, r in rates.items())
        )
    at = [max(lengths[i] for i in rows) for rows in chosen]
    times = []
    for name, known in rates.items():
        total = sum(
            padded_frames(rows, lengths) * float(np.interp(max(lengths[i] for i in rows), at, known)) for rows in plan
        )
        share = statistics.mean(shares) if name == "linear" else None
        times.append(EpochTime(name, total, sum(lengths) / total, share))
    return times


class _Step:
    """A training step of one model: forward, loss, backward, clipping, optimiser. Returns its seconds."""

    def __init__(self, config: ModelConfig) -> None:
        torch.manual_seed(0)
        self.model = CtcModel(config, BINS, LABELS)
        self.optimiser = torch.optim.RAdam(self.model.parameters(), lr=1e-4)

    def __call__(self, sizes: Sequence[int]) -> float:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(len(sizes), max(sizes), BINS, generator=generator)
        labels = [torch.randint(1, LABELS, (n // FRAMES_PER_LABEL,), generator=generator).tolist() for n in sizes]
        start = time.perf_counter()
        log_probs, out_lengths = self.model(features, torch.tensor(sizes))
        loss = ctc_loss_sum(log_probs, out_lengths, labels) / sum(map(len, labels))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return time.perf_counter() - start


def _attention_seconds(sizes: Sequence[int]) -> float:
    """One linear attention op, forward and backward, as it runs within a layer."""
    encoder = TransformerConfig()
    lengths = torch.tensor(sizes)
    joined = torch.randn(len(sizes), max(sizes), 3, encoder.heads, encoder.dim // encoder.heads, requires_grad=True)

    def run() -> Tensor:
        q, k, v = joined.unbind(2)
        return linear_attention(q, k, v, lengths)

    gradient = torch.randn_like(run())
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run().backward(gradient)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
