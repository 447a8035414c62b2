"""A causal language model of symbols: embedding, the encoder of the speech recipes, logits."""

from __future__ import annotations

from torch import Tensor, nn

from asr.encoder.config import TransformerConfig
from asr.encoder.stack import TransformerEncoder


class SymbolModel(nn.Module):
    """(batch, time) symbols 0 … `symbols`, (batch,) lengths → (batch, time, symbols + 1) logits of the next one."""

    def __init__(self, config: TransformerConfig, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols + 1, config.dim)
        self.encoder = TransformerEncoder(config)
        self.output = nn.Linear(config.dim, symbols + 1)

    def forward(self, symbols: Tensor, lengths: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(symbols), lengths))
