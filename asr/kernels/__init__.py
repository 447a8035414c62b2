"""Attention ops, and what stands beside them in every block; defined in PyTorch, most of them also compiled.

Every op is one function. It picks its implementation by where its inputs lie and what `ASR_KERNELS` says (see
`backend`), has gradients, and traces under `torch.compile` and export. Nothing here knows speech.
"""

from asr.kernels.backend import prepare
from asr.kernels.causal import causal_linear_attention, causal_linear_step
from asr.kernels.depthwise import depthwise_convolution
from asr.kernels.dropout import add_dropout, dropout
from asr.kernels.features import FEATURE_MAPS, rotary_table
from asr.kernels.gated import gated_linear_attention
from asr.kernels.linear import linear_attention
from asr.kernels.lsh import lsh_attention
from asr.kernels.padding import gate, zero_padding

__all__ = [
    "FEATURE_MAPS",
    "add_dropout",
    "causal_linear_attention",
    "causal_linear_step",
    "depthwise_convolution",
    "dropout",
    "gate",
    "gated_linear_attention",
    "linear_attention",
    "lsh_attention",
    "prepare",
    "rotary_table",
    "zero_padding",
]
