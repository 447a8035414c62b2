"""`model:` in a recipe: the front-end that shortens the features and the encoder that mixes them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from asr.attention.config import AttentionConfig
from asr.attention.softmax import SoftmaxConfig
from asr.config import Config


class _FrontendConfig(Config):
    @model_validator(mode="before")
    @classmethod
    def _written_before_kinds_had_their_own_keys(cls, values: Any) -> Any:
        """Experiment folders of earlier versions hold every key of every kind; those that meant nothing are dropped."""
        if isinstance(values, dict) and {"kind", "factor", "channels"} == set(values) and values["channels"] == 64:
            mute = {"channels"} | ({"factor"} if values["factor"] == 1 else set())
            return {key: value for key, value in values.items() if key in cls.model_fields or key not in mute}
        return values


class NoFrontendConfig(_FrontendConfig):
    """One encoder frame per feature frame, as in the paper."""

    factor: ClassVar[int] = 1

    kind: Literal["none"] = "none"


class StackFrontendConfig(_FrontendConfig):
    """Neighbouring frames become one vector; encoder frames = ceil(feature frames / factor)."""

    kind: Literal["stack"] = "stack"
    factor: int = Field(4, ge=1, le=8)


class ConvFrontendConfig(_FrontendConfig):
    """Convolutions over time and frequency; encoder frames = ceil(feature frames / factor)."""

    kind: Literal["conv"] = "conv"
    factor: Literal[2, 4] = 4
    channels: int = Field(64, ge=1)


FrontendConfig = Annotated[NoFrontendConfig | StackFrontendConfig | ConvFrontendConfig, Field(discriminator="kind")]


class LayerConfig(Config):
    """An entry of `layers:`; so many blocks with a mixer of their own."""

    attention: AttentionConfig | None = None  # null: the encoder's `attention`
    repeat: int = Field(1, ge=1)


Layers = Annotated[int, Field(ge=1), Tag("number")] | Annotated[list[LayerConfig], Field(min_length=1), Tag("list")]


class TransformerConfig(Config):
    """A stack of blocks: mixer, optional gated depth-wise convolution, feed-forward. Defaults are the paper's sizes.

    `layers` is a number, of blocks that all have `attention`, or a list: `[{attention: softmax}, {attention: linear,
    repeat: 8}]` from the input up. An entry that names no mixer has `attention`; where every entry names its own,
    `attention` is null.
    """

    kind: Literal["transformer"] = "transformer"
    layers: Layers = Field(
        9, discriminator=Discriminator(lambda given: "list" if isinstance(given, list) else "number")
    )
    dim: int = Field(192, ge=1)
    heads: int = Field(6, ge=1)
    feedforward: int = Field(768, ge=1)
    activation: Literal["relu", "gelu", "silu"] = "gelu"
    block: Literal["transformer", "macaron", "conformer"] = "transformer"  # see asr.encoder.block
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none", "sinusoidal", "rotary"] = "sinusoidal"
    # Kernel of the gated depth-wise convolution in each block, in frames; 0: none. It sees only the past where every
    # mixer is causal or streams, else as much of either side.
    convolution: int = Field(0, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    layer_drop: float = Field(0.0, ge=0, lt=1)  # probability that a training step leaves a block out
    # That a residual branch of the last block is left out for an utterance; it grows linearly from the first block.
    stochastic_depth: float = Field(0.0, ge=0, lt=1)
    attention: AttentionConfig | None = SoftmaxConfig()

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.mixers)

    @property
    def mixers(self) -> list[AttentionConfig]:
        """Of each block, from the input up."""
        entries = [LayerConfig(repeat=self.layers)] if isinstance(self.layers, int) else self.layers
        chosen = [entry.attention or self.attention for entry in entries for _ in range(entry.repeat)]
        return [mixer for mixer in chosen if mixer is not None]

    @model_validator(mode="before")
    @classmethod
    def _no_default_that_nobody_uses(cls, values: Any) -> Any:
        if isinstance(values, dict) and "attention" not in values and _name_their_own(values.get("layers")):
            return {**values, "attention": None}
        return values

    @model_validator(mode="after")
    def _check(self) -> TransformerConfig:
        if _name_their_own(self.layers):
            if self.attention is not None:
                raise ValueError("attention: no layer has it, every entry of layers names its own; make it null")
        elif self.attention is None:
            raise ValueError("attention: null fits only a list of layers in which every entry names its own")
        rotary = self.positions == "rotary"
        for mixer in self.mixers:
            try:
                mixer.check(self.dim, self.heads, rotary)
            except ValueError as error:
                raise ValueError(str(error) if isinstance(self.layers, int) else f"{mixer.kind}: {error}") from None
        if rotary and not any(mixer.turns for mixer in self.mixers):
            names = " or ".join(dict.fromkeys(mixer.kind for mixer in self.mixers))
            raise ValueError(f"attention kind: {names} has nothing that rotary positions could turn")
        if self.convolution and self.convolution % 2 == 0:
            raise ValueError("convolution needs an odd kernel")
        if self.block == "conformer" and not self.convolution:
            raise ValueError("block: conformer has a convolution; give its kernel, for example convolution: 31")
        if self.block == "conformer" and self.norm == "post":
            raise ValueError("block: conformer has its norms where norm: pre puts them, and one at its end")
        return self


def _name_their_own(layers: Any) -> bool:
    """Whether `layers` is a list whose entries, dicts or configs, all have a mixer of their own."""
    return isinstance(layers, list) and all(
        (entry.get("attention") if isinstance(entry, dict) else getattr(entry, "attention", None)) is not None
        for entry in layers
    )


class BilstmConfig(Config):
    """The paper's recurrent baseline: 3 layers of 320 cells in each direction."""

    kind: Literal["bilstm", "lstm"] = "bilstm"  # lstm: forwards only, so causal
    layers: int = Field(3, ge=1)
    hidden: int = Field(320, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.layers


EncoderConfig = Annotated[TransformerConfig | BilstmConfig, Field(discriminator="kind")]


class ModelConfig(Config):
    frontend: FrontendConfig = NoFrontendConfig()
    encoder: EncoderConfig = TransformerConfig()
