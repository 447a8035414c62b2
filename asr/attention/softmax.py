from __future__ import annotations
from typing import Literal
from asr.config import Config


class SoftmaxConfig(Config):
    kind: Literal["softmax"] = "softmax"
    causal: bool = False
    implementation: Literal["sdpa", "materialised"] = "sdpa"
