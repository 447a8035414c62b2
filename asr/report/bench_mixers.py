"""`asr bench mixers`: what one layer of each mixer costs, in time and in memory, beside softmax attention.

A layer is the whole mixer, projections, gates and norms included, of the paper's WSJ width. All get the same random
(batch, frames, dim) input without padding, batch · frames constant, so that a cost that is linear in the frames shows
as one number in every column. Mixers take turns, so that a change of the machine's load meets all alike; times are
medians. Peak memory is that of a fresh process for each mixer and size.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from asr.attention.config import AttentionConfig
from asr.attention.decay import DecayConfig
from asr.attention.feature_maps import FavorConfig, FixedMapConfig, HedgehogConfig
from asr.attention.gated import GatedConfig
from asr.attention.gau import GauConfig
from asr.attention.lightning import LightningConfig
from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.lstm import LstmConfig
from asr.attention.mixer import Mixer
from asr.attention.retention import RetentionConfig
from asr.attention.softmax import SoftmaxConfig
from asr.attention.ssm import SsmConfig
from asr.attention.summary import SummaryConfig
from asr.report.bench_kernels import interleaved
from asr.train.measure import peak_memory_mb, reset_peak_memory

BASELINE = "softmax"
MIXERS: dict[str, AttentionConfig] = {
    BASELINE: SoftmaxConfig(),  # torch's fused scaled_dot_product_attention
    "softmax-materialised": SoftmaxConfig(implementation="materialised"),
    "softmax-window": SoftmaxConfig(window=(8, 8)),
    "softmax-chunks": SoftmaxConfig(chunk_frames=8, left_chunks=4),
    "lsh": LshConfig(),
    "linear": LinearConfig(),
    "linear-exp": LinearConfig(feature_map=FixedMapConfig(kind="exp")),
    "linear-square": LinearConfig(feature_map=FixedMapConfig(kind="square")),
    "linear-favor": LinearConfig(feature_map=FavorConfig()),
    "linear-hedgehog": LinearConfig(feature_map=HedgehogConfig()),
    "linear-output": LinearConfig(normaliser="output"),
    "lightning": LightningConfig(),
    "decay": DecayConfig(),
    "retention": RetentionConfig(),
    "gated": GatedConfig(),
    "gau": GauConfig(),
    "ssm": SsmConfig(),
    "ssm-selective": SsmConfig(selective=True),
    "summary": SummaryConfig(),
    "lstm": LstmConfig(hidden=72),
}
DIM, HEADS = 192, 6  # of the paper's WSJ models
MOST_BYTES = 4 << 30  # of matrices of frame pairs; more is left out
CPU = torch.device("cpu")


class Cost(NamedTuple):
    """One mixer at one length."""

    mixer: str
    parameters: int
    causal: Literal["no", "yes", "streams"]  # its form under causal: true
    state_bytes: int | None  # of one utterance, where that streams
    frames: int
    batch: int
    forward_ms: float | None = None  # None, as all below: `left_out` says why
    both_ms: float | None = None  # forward and backward, to input and weights
    forward_mb: float | None = None  # peak above what the process held before
    both_mb: float | None = None
    left_out: str = ""

    @property
    def ms(self) -> tuple[float, float] | None:
        return _pair(self.forward_ms, self.both_ms)

    @property
    def mb(self) -> tuple[float, float] | None:
        return _pair(self.forward_mb, self.both_mb)


def _pair(forward: float | None, both: float | None) -> tuple[float, float] | None:
    return None if forward is None or both is None else (forward, both)


def measure(
    lengths: Sequence[int],
    tokens: int = 8192,
    repeats: int = 5,
    report: Callable[[str], None] = lambda line: None,
) -> list[Cost]:
    """Every mixer at every length; batch = tokens / frames, at least 1."""
    facts = {name: _facts(name, config) for name, config in MIXERS.items()}
    rows = []
    for frames in lengths:
        batch = max(1, tokens // frames)
        report(f"{batch} x {frames} frames: time")
        times = _times(batch, frames, repeats)
        for name, fixed in facts.items():
            cost = fixed._replace(frames=frames, batch=batch, left_out=_too_large(MIXERS[name], batch, frames))
            if not cost.left_out:
                report(f"{batch} x {frames} frames: memory of {name}")
                forward, both = _peaks_of_a_process(name, batch, frames)
                cost = Cost(*cost[:6], *times[name], forward, both)
            rows.append(cost)
    return rows


def _facts(name: str, config: AttentionConfig) -> Cost:
    """What does not depend on the length."""
    state, causal = state_bytes(config), causal_form(config) is not None
    size = sum(p.numel() for p in _layer(config).parameters())
    return Cost(name, size, "no" if not causal else "yes" if state is None else "streams", state, 0, 0)


def _times(batch: int, frames: int, repeats: int) -> dict[str, tuple[float, float]]:
    lengths = torch.full((batch,), frames)

    def method(config: AttentionConfig) -> Callable[[Tensor], Tensor]:
        layer = _layer(config)
        return lambda x: layer(x, lengths)

    fit = {name: method(config) for name, config in MIXERS.items() if not _too_large(config, batch, frames)}
    return interleaved(fit, (_input(batch, frames),), repeats)


def causal_form(config: AttentionConfig) -> AttentionConfig | None:
    """The mixer under `causal: true`, a window then without its right side; one that streams as it is; or None."""
    if _layer(config).streams:
        return config
    values: dict[str, Any] = config.model_dump() | {"causal": True}
    if values.get("window"):
        values["window"] = (values["window"][0], 0)
    try:
        return type(config).model_validate(values)
    except ValidationError:
        return None


def state_bytes(config: AttentionConfig, frames: int = 512) -> int | None:
    """What a layer of the causal form remembers of one utterance after `frames` frames; None: it does not stream."""
    causal = causal_form(config)
    layer = _layer(causal) if causal else None
    if layer is None or not layer.streams:
        return None
    with torch.no_grad():
        _, state = layer.step(_input(1, frames), layer.initial_state(1))
    return sum(t.numel() * t.element_size() for t in _tensors(state))


def peaks(config: AttentionConfig, batch: int, frames: int) -> tuple[float, float]:
    """MB above what this process holds before: forward alone, and forward and backward. For a fresh process."""
    layer, x, lengths = _layer(config), _input(batch, frames), torch.full((batch,), frames)
    small = _input(1, 16).requires_grad_()
    layer(small, torch.tensor([16])).sum().backward()  # loads what is loaded at first use
    layer.zero_grad()
    reset_peak_memory(CPU)
    before = peak_memory_mb(CPU) or 0.0
    with torch.no_grad():
        layer(x, lengths)
    forward = (peak_memory_mb(CPU) or 0.0) - before
    y = layer(x.requires_grad_(), lengths)
    y.backward(torch.ones_like(y))
    return forward, (peak_memory_mb(CPU) or 0.0) - before


def _peaks_of_a_process(name: str, batch: int, frames: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "asr.report.bench_mixers", name, str(batch), str(frames)]
    command.append(str(torch.get_num_threads()))
    forward, both = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(forward), float(both)


def _layer(config: AttentionConfig) -> Mixer:
    torch.manual_seed(0)
    return config.build(DIM, HEADS)


def _input(batch: int, frames: int) -> Tensor:
    return torch.randn(batch, frames, DIM, generator=torch.Generator().manual_seed(0))


def _too_large(config: AttentionConfig, batch: int, frames: int) -> str:
    size = batch * config.pair_bytes(HEADS, frames)
    return f"its matrices of frame pairs take {size / 2**30:.1f} GiB" if size > MOST_BYTES else ""


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, (tuple, list)):
        for part in state:
            yield from _tensors(part)


if __name__ == "__main__":
    row, *sizes = sys.argv[1:]
    of, long, threads = map(int, sizes)
    torch.set_num_threads(threads)
    print(*peaks(MIXERS[row], of, long))
