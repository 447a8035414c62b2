"""How long a forgetting mixer remembers: 1/(1 − a) frames for a memory that keeps a from one frame to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asr.attention.diagonal import DiagonalSsm
from asr.attention.gated import GatedLinearAttention
from asr.attention.ssm import Ssm
from asr.report.inspect.layers import Layer


@torch.inference_mode()
def memory_frames(layer: Layer, x: Tensor) -> Tensor | None:
    """(heads, values) in frames; None for a layer that does not forget by such a rate.

    One value per head where a rate is fixed or learned (`memory_frames` of the mixer). Gated linear attention sets a
    rate for every frame and channel of a key, from its input x (1, time, dim); S4D has one for each channel's numbers.
    """
    mixer: Any = layer.module
    if hasattr(mixer, "memory_frames"):
        frames = mixer.memory_frames()
        return None if frames is None else frames[:, None].float()
    if isinstance(mixer, GatedLinearAttention):
        log_kept = torch.nn.functional.logsigmoid(mixer.gates(x).float()) / mixer.tau
        return _from_log(log_kept).unflatten(-1, (mixer.heads, -1))[0].transpose(0, 1).flatten(1)
    if isinstance(mixer, Ssm) and isinstance(mixer.core, DiagonalSsm):
        return _from_log(mixer.core.discrete()[0].real).flatten()[None]
    return None


def _from_log(log_kept: Tensor) -> Tensor:
    return -1 / torch.expm1(log_kept)  # from the logarithm: a itself has few digits near 1


def summarise_memory(utterances: Sequence[Tensor], frame_ms: float) -> dict[str, list[float]]:
    """Milliseconds by head: the `median`, and `p5` and `p95` where a head has several values."""
    values = torch.cat(list(utterances), dim=1).double() * frame_ms
    quantiles = values.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=values.dtype), dim=1)
    return dict(zip(("p5", "median", "p95"), quantiles.tolist(), strict=True))
