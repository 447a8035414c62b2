"""torch.compile for training: what stands beside the mixers in every block, for batches of any shape."""

from __future__ import annotations

from torch import nn

from asr.encoder.block import Block
from asr.encoder.model import CtcModel


def compile_blocks(model: CtcModel) -> None:
    """Compile feed-forwards and convolutions in place, for sizes that vary; names of weights stay.

    Mixers are left as they are: they have kernels of their own, and some decide by the length what to do, which would
    compile them anew for every length. So is a Bi-LSTM, whose layers are one op each.
    """
    for block in model.modules():
        if isinstance(block, Block):
            parts: tuple[nn.Module | None, ...] = (block.first, block.convolution, block.feedforward)
            for part in parts:
                if part is not None:
                    part.compile(dynamic=True)
