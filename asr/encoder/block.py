"""One transformer block: mixer, optional gated depth-wise convolution, feed-forward; each has a residual and a norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.encoder.config import TransformerConfig
from asr.encoder.dropout import Dropout

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class GatedConvolution(nn.Module):
    """Point-wise with gate, depth-wise over time, norm, SiLU, point-wise: the convolution module of the Conformer.

    Gulati et al., "Conformer", 2020, section 2.2, with a layer norm where it has a batch norm, since batch statistics
    would make a result depend on its batch. (batch, time, dim), (batch,) → (batch, time, dim).
    """

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 2 * dim)
        # A 2-D convolution of height 1: on CPUs torch's 1-D depth-wise convolution is several times slower.
        self.depthwise = nn.Conv2d(dim, dim, (1, kernel), padding=(0, kernel // 2), groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = zero_padding(F.glu(self.gate(x), dim=-1), lengths)  # a bias must not reach real frames from the padding
        x = self.depthwise(x.transpose(1, 2)[:, :, None]).squeeze(2).transpose(1, 2)
        return self.output(F.silu(self.norm(x)))


class Block(nn.Module):
    """(batch, time, dim), (batch,) → (batch, time, dim).

    `norm: pre` is x + f(norm(x)) (Xiong et al. 2020), `post` is norm(x + f(x)) (Vaswani et al. 2017).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.dim
        self.pre = config.norm == "pre"
        self.mixer = config.attention.build(dim, config.heads, rotary=config.positions == "rotary")
        self.convolution = GatedConvolution(dim, config.convolution) if config.convolution else None
        self.feedforward = nn.Sequential(
            nn.Linear(dim, config.feedforward),
            ACTIVATIONS[config.activation](),
            Dropout(config.dropout),
            nn.Linear(config.feedforward, dim),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3 if config.convolution else 2))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        parts = [lambda t: self.mixer(t, lengths)]
        if self.convolution is not None:
            convolution = self.convolution
            parts.append(lambda t: convolution(t, lengths))
        parts.append(self.feedforward)
        for part, norm in zip(parts, self.norms, strict=True):
            x = x + self.dropout(part(norm(x))) if self.pre else norm(x + self.dropout(part(x)))
        return x
