"""`model:` in a recipe: the front-end that shortens the features and the encoder that mixes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from asr.attention.config import AttentionConfig
from asr.attention.softmax import SoftmaxConfig
from asr.config import Config


class FrontendConfig(Config):
    """How features become encoder frames."""

    kind: Literal["none", "stack", "conv"] = "none"  # none: one encoder frame per feature frame, as in the paper
    factor: int = Field(1, ge=1, le=8)  # encoder frames = ceil(feature frames / factor); conv takes 2 or 4
    channels: int = Field(64, ge=1)  # of the convolutions (conv only)

    @model_validator(mode="after")
    def _check(self) -> FrontendConfig:
        if self.kind == "none" and self.factor != 1:
            raise ValueError("kind: none does not shorten; factor must be 1")
        if self.kind == "conv" and self.factor not in (2, 4):
            raise ValueError("kind: conv shortens by factor 2 or 4")
        return self


class TransformerConfig(Config):
    """A stack of blocks: mixer, optional gated depth-wise convolution, feed-forward. Defaults are the paper's sizes."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(9, ge=1)
    dim: int = Field(192, ge=1)
    heads: int = Field(6, ge=1)
    feedforward: int = Field(768, ge=1)
    activation: Literal["relu", "gelu", "silu"] = "gelu"
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none", "sinusoidal", "rotary"] = "sinusoidal"
    convolution: int = Field(0, ge=0)  # kernel of the gated depth-wise convolution in each block, in frames; 0: none
    dropout: float = Field(0.1, ge=0, lt=1)
    attention: AttentionConfig = SoftmaxConfig()

    @model_validator(mode="after")
    def _check(self) -> TransformerConfig:
        self.attention.check(self.dim, self.heads, self.positions == "rotary")
        if self.positions == "rotary" and not self.attention.turns:
            raise ValueError(f"attention kind: {self.attention.kind} has nothing that rotary positions could turn")
        if self.convolution and self.convolution % 2 == 0:
            raise ValueError("convolution needs an odd kernel")
        return self


class BilstmConfig(Config):
    """The paper's recurrent baseline: 3 layers of 320 cells in each direction."""

    kind: Literal["bilstm", "lstm"] = "bilstm"  # lstm: forwards only, so causal
    layers: int = Field(3, ge=1)
    hidden: int = Field(320, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)


EncoderConfig = Annotated[TransformerConfig | BilstmConfig, Field(discriminator="kind")]


class ModelConfig(Config):
    frontend: FrontendConfig = FrontendConfig()
    encoder: EncoderConfig = TransformerConfig()
