"""The whole acoustic model: front-end, encoder, and a log-softmax over tokens for every encoder frame."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asr.encoder.bilstm import BilstmEncoder
from asr.encoder.config import BilstmConfig, ModelConfig
from asr.encoder.frontend import build_frontend
from asr.encoder.stack import TransformerEncoder


class CtcModel(nn.Module):
    """Features to token log-probabilities.

    Args:
        config: the recipe's `model:` section.
        feature_dim: width of one feature frame.
        tokens: size of the token table, blank included.

    Example:
        >>> model = CtcModel(ModelConfig(), feature_dim=40, tokens=42)
        >>> log_probs, lengths = model(torch.randn(2, 100, 40), torch.tensor([100, 70]))
        >>> log_probs.shape, lengths.tolist()
        (torch.Size([2, 100, 42]), [100, 70])
    """

    def __init__(self, config: ModelConfig, feature_dim: int, tokens: int) -> None:
        super().__init__()
        encoder = config.encoder
        dim = encoder.hidden if isinstance(encoder, BilstmConfig) else encoder.dim
        self.frontend = build_frontend(config.frontend, feature_dim, dim)
        self.encoder: BilstmEncoder | TransformerEncoder
        if isinstance(encoder, BilstmConfig):
            self.encoder = BilstmEncoder(encoder, dim)
        else:
            self.encoder = TransformerEncoder(encoder)
        self.output = nn.Linear(self.encoder.width, tokens)

    def forward(self, features: Tensor, lengths: Tensor, after: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """(batch, frames, feature_dim), (batch,) → (batch, out, tokens) natural log, float32, and (batch,) lengths.

        With `after`, numbers of encoder layers from 1 and rising: (len(after), batch, out, tokens), what the output
        layer gives after each of them.

        What stands in `features` past a row's length, NaN included, has no influence on real frames.
        """
        if features.shape[1]:
            x, lengths = self.frontend(features, lengths)
            x = self.encoder(x, lengths, after)
        else:  # which convolutions and recurrences refuse
            x = features.new_zeros(*([len(after)] if after else []), features.shape[0], 0, self.encoder.width)
        x = self.output(x)
        return x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(-1), lengths

    def output_length(self, frames: int) -> int:
        """Encoder frames that this many feature frames give."""
        return self.frontend.output_length(frames)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
