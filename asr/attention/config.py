"""`attention:` in a recipe: the union of every mixer's own config, chosen by `kind`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig

AttentionConfig = Annotated[SoftmaxConfig | LinearConfig | LshConfig, Field(discriminator="kind")]
