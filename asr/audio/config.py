"""`features:` in a recipe: what the encoder sees of the sound."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from asr.config import Config


class FeaturesConfig(Config):
    """Log-mel filterbanks, Kaldi's definition. The defaults are the paper's: 40 bins, 25/10 ms, no deltas."""

    sample_rate: int = Field(16000, ge=4000, le=192000)  # Hz; stored with the model, other rates are resampled to it
    bins: int = Field(40, ge=8, le=256)  # mel bands
    window_ms: float = Field(25.0, gt=0)
    hop_ms: float = Field(10.0, gt=0)
    low_hz: float = Field(20.0, ge=0)
    high_hz: float = 0.0  # Hz; 0 is half the sample rate, a negative value is counted down from there (Kaldi's rule)
    deltas: bool = False  # append first and second time differences: bins becomes 3 * bins
    dither: float = Field(0.0, ge=0)  # in units of one 16-bit step; applied in training only
    cmvn: Literal["none", "utterance", "speaker", "global"] = "utterance"

    @property
    def dim(self) -> int:
        """Width of one feature frame."""
        return self.bins * (3 if self.deltas else 1)

    @model_validator(mode="after")
    def _check(self) -> FeaturesConfig:
        nyquist = self.sample_rate / 2
        high = self.high_hz if self.high_hz > 0 else nyquist + self.high_hz
        if not self.low_hz < high <= nyquist:
            raise ValueError(f"high_hz must lie between low_hz and half the sample rate ({nyquist:g} Hz)")
        if self.hop_ms > self.window_ms:
            raise ValueError("hop_ms must not exceed window_ms: samples would be skipped")
        return self
