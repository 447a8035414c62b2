from __future__ import annotations
from typing import Literal
from pydantic import Field
from asr.config import Config


class LinearConfig(Config):
    kind: Literal["linear"] = "linear"
    causal: bool = False
    chunk: int = Field(64, ge=1)
    eps: float = Field(1e-6, gt=0)
