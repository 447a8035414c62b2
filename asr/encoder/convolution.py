"""The convolution module of the Conformer: what a block's mixer does not see well, the nearest frames.

Gulati et al., "Conformer", 2020, section 2.2, with a layer norm where it has a batch norm, since batch statistics
would make a result depend on its batch. Cost O(N · dim · (dim + kernel)).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.kernels import depthwise_convolution, gate


class GatedConvolution(nn.Module):
    """Point-wise with gate, depth-wise over time, norm, SiLU, point-wise.

    (batch, time, dim), (batch,) → (batch, time, dim).

    Args:
        kernel: frames, odd: the current one and as many on either side; when `causal`, it and those before it.

    Example:
        >>> layer = GatedConvolution(dim=16, kernel=5, causal=True)
        >>> y, state = layer.step(torch.randn(2, 3, 16), layer.initial_state(2))
        >>> y.shape, state.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 4, 16]))
    """

    def __init__(self, dim: int, kernel: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.gate = nn.Linear(dim, 2 * dim)
        self.depthwise = nn.Conv2d(dim, dim, (1, kernel), groups=dim)  # holds the weights
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = gate(self.gate(x), lengths)  # a bias must not reach real frames from the padding
        kernel = self.depthwise.kernel_size[1]
        return self._convolve(x, *((kernel - 1, 0) if self.causal else (kernel // 2, kernel // 2)))

    def initial_state(self, batch: int) -> Tensor:
        """The gated frames before the next one, (batch, kernel − 1, dim): silence before the first frame."""
        if not self.causal:
            raise ValueError("a convolution that sees later frames cannot stream; it is causal where every mixer is")
        return self.output.weight.new_zeros(batch, self.depthwise.kernel_size[1] - 1, self.output.in_features)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next frames, (batch, time, dim), any number of them → the same shape, and the state after them."""
        seen = torch.cat([state, F.glu(self.gate(x), dim=-1).to(state.dtype)], dim=1)
        return self._convolve(seen, 0, 0), seen[:, x.shape[1] :].clone()  # a view would hold on to the whole piece

    def _convolve(self, x: Tensor, left: int, right: int) -> Tensor:
        """`left`, `right`: frames of silence before and after x."""
        kernel = self.depthwise.kernel_size[1]
        if x.shape[1] + left + right < kernel or not x.shape[1]:  # no frame comes out
            return x[:, :0]
        x = depthwise_convolution(x, self.depthwise.weight.flatten(1), self.depthwise.bias, left, right)
        return self.output(F.silu(self.norm(x)))
