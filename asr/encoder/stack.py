"""The encoder as a stack of transformer blocks."""

from __future__ import annotations

from torch import Tensor, nn

from asr.encoder.block import Block
from asr.encoder.config import TransformerConfig
from asr.encoder.dropout import Dropout
from asr.encoder.positions import sinusoidal


class TransformerEncoder(nn.Module):
    """(batch, time, dim), (batch,) → (batch, time, dim); `width` is dim on both sides."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width = config.dim
        self.sinusoidal = config.positions == "sinusoidal"
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.sinusoidal:
            x = x + sinusoidal(x.shape[1], x.shape[2], x.device).to(x.dtype)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)
