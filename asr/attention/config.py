"""`attention:` in a recipe: the union of every mixer's own config, chosen by `kind`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from asr.attention.decay import DecayConfig
from asr.attention.gated import GatedConfig
from asr.attention.gau import GauConfig
from asr.attention.lightning import LightningConfig
from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.lstm import LstmConfig
from asr.attention.retention import RetentionConfig
from asr.attention.softmax import SoftmaxConfig
from asr.attention.ssm import SsmConfig
from asr.attention.summary import SummaryConfig

AttentionConfig = Annotated[
    SoftmaxConfig
    | LshConfig
    | LinearConfig
    | LightningConfig
    | DecayConfig
    | RetentionConfig
    | GatedConfig
    | GauConfig
    | SummaryConfig
    | LstmConfig
    | SsmConfig,
    Field(discriminator="kind"),
]
