"""Mixed precision: products in 16 bits, weights and sums in 32.

Micikevicius et al., "Mixed Precision Training", 2018. torch's autocast computes matrix products in bfloat16 or
float16; the log-softmax, the CTC loss and the sums of the linear mixers stay in float32, and so do the weights,
validation and decoding. float16 has few exponents, so that its loss is scaled up before the backward pass and
its gradients down again; bfloat16 needs no such scale.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from asr.train.config import Precision

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Mixed:
    """The forward pass runs within `forward()`, the backward pass through `backward`; then `unscale`, and `update`."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.device, self.dtype = device.type, DTYPES[precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")  # type: ignore[attr-defined]
        if self.scaler.is_enabled():  # or it has no scale before the first loss, which a process may be late to have
            self.scaler.scale(torch.zeros((), device=device))

    def forward(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimiser: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their own size, before anything looks at them."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimiser)

    def overflowed(self, norm: float) -> bool:
        """Whether a gradient that is not finite is so because the scale was too large, and not the data's fault."""
        return self.scaler.is_enabled() and not math.isfinite(norm) and self.scaler.get_scale() > 1.0

    def update(self) -> None:
        """After the step or in its place: halve the scale if a gradient was not finite, raise it after many steps."""
        if self.scaler.is_enabled():
            self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
