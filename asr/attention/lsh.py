from __future__ import annotations
from typing import Literal
from pydantic import Field
from asr.config import Config


class LshConfig(Config):
    kind: Literal["lsh"] = "lsh"
    causal: bool = False
    rounds: int = Field(4, ge=1, le=64)
    bucket_size: int = Field(32, ge=1)
    seed: int = 0
