"""The paper's recurrent baseline: a stack of bidirectional LSTM layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from asr.encoder.config import BilstmConfig
from asr.encoder.dropout import Dropout


class BilstmEncoder(nn.Module):
    """(batch, time, input), (batch,) → (batch, time, 2 · hidden).

    Sequences are packed, so that the backward direction starts at each utterance's own last frame.
    """

    def __init__(self, config: BilstmConfig, input_dim: int) -> None:
        super().__init__()
        self.width = 2 * config.hidden
        self.lstm = nn.LSTM(
            input_dim,
            config.hidden,
            config.layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        time = x.shape[1]
        if x.numel() == 0:
            return x.new_zeros(x.shape[0], time, self.width)
        # Packing refuses empty rows: they run over one frame of padding, and no real frame sees that.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=time)
        return self.dropout(y)
