"""The speakers: voices of espeak-ng, each in one set only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

_ACCENTS = {"us": "gmw/en-US", "gb": "gmw/en", "rp": "gmw/en-GB-x-rp"}
# Accent and variant. A variant (the shape of the mouth) is in one set only; robots and whispers are left out.
_SETS = {
    "train": """us_m1 us_m2 us_m3 us_m4 us_m6 us_m7 us_f1 us_f2 us_f3 us_f5 us_adam us_Andrea us_Annie us_Michael
        us_Denis us_edward gb_iven gb_john gb_linda gb_max rp_norbert rp_paul rp_travis us_steph us_pablo us_marcelo""",
    "dev": "us_m5 us_f4 gb_quincy us_belinda",
    "test": "us_m8 us_anika gb_robert us_Alicia",
}


@dataclass(frozen=True)
class Speaker:
    """A voice and its habits. `rate` in words per minute; `pitch` and `pitch_range` on espeak-ng's scale, 0 to 100."""

    id: str
    voice: str
    rate: int
    pitch: int
    pitch_range: int


def speakers(split: str) -> list[Speaker]:
    """The speakers of `train`, `dev` or `test`; the same ones whatever the seed of the corpus."""
    return [_speaker(name) for name in _SETS[split].split()]


def _speaker(name: str) -> Speaker:
    accent, variant = name.split("_")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    rate, pitch, pitch_range = rng.integers((140, 35, 35), (190, 66, 66))
    return Speaker(name, f"{_ACCENTS[accent]}+{variant}", int(rate), int(pitch), int(pitch_range))
