"""How retention and gated linear attention end: a norm in place of the normaliser, a gate, and the way back to `dim`.

    y = (swish(x W_G + b) ⊙ norm(o)) W_O

Sun et al., "Retentive Network", 2023, equation 8; Yang et al., "Gated Linear Attention", 2023, section 4.3.
The norm is a layer norm over each head's channels, frame by frame (RetNet's group norm with a group per head): it makes
the size of the memory's sums, which no denominator holds down, of no account. It has no weights: W_O has them.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class GatedOutput(nn.Module):
    """o (batch, time, heads, width) and the mixer's input x (batch, time, dim) → (batch, time, dim)."""

    def __init__(self, dim: int, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gate = nn.Linear(dim, heads * width)
        self.output = nn.Linear(heads * width, dim)

    def forward(self, o: Tensor, x: Tensor) -> Tensor:
        normed = F.layer_norm(o, o.shape[-1:], eps=self.eps).flatten(2)
        return self.output(F.silu(self.gate(x)) * normed.to(self.output.weight.dtype))


def check_width(width: int) -> None:
    """Raises ValueError for a head too narrow for the norm: one channel's distance from its own mean is always 0."""
    if width < 2:
        raise ValueError(f"the norm of each head needs a head width of at least 2, got {width}; take fewer heads")
