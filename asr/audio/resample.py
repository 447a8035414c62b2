"""Sample rate conversion: torchaudio's Hann-windowed sinc, also where its filter bank would not fit into memory.

Source: J. O. Smith, "Digital Audio Resampling" (https://ccrma.stanford.edu/~jos/resample/).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

WIDTH, ROLLOFF = 6, 0.99  # zero crossings on either side; cut-off as a share of the lower Nyquist frequency
MAX_BANK = 1 << 21  # filter taps torchaudio may tabulate; 44.1 kHz -> 16 kHz needs 76,000, 44,101 Hz 700 million
BLOCK = 1 << 16  # output samples computed at once by the direct form


def resample(samples: Tensor, source_rate: int, rate: int) -> Tensor:
    """(n,) float32 at `source_rate` Hz → (ceil(n * rate / source_rate),) at `rate` Hz."""
    if source_rate == rate:
        return samples
    common = math.gcd(source_rate, rate)
    up, down = rate // common, source_rate // common
    half = math.ceil(WIDTH * down / (min(up, down) * ROLLOFF))
    if up * (2 * half + down) <= MAX_BANK:
        return _bank(down, up)(samples)
    return direct_resample(samples, down, up)


@functools.lru_cache(maxsize=16)
def _bank(down: int, up: int) -> Callable[[Tensor], Tensor]:
    import torchaudio  # takes a second, and most corpora have the model's rate already

    # Tabulated in float64: float32 phases put the taps of long filters off by up to 1e-4.
    kind = torchaudio.transforms.Resample
    return kind(down, up, lowpass_filter_width=WIDTH, rolloff=ROLLOFF, dtype=torch.float64).float()


def direct_resample(samples: Tensor, down: int, up: int) -> Tensor:
    """The same filter, each tap computed where it is needed: for rates with a large common multiple."""
    length = math.ceil(len(samples) * up / down)
    cutoff = ROLLOFF * min(1.0, up / down)  # in units of the source's Nyquist frequency
    half = math.ceil(WIDTH / cutoff)
    padded = torch.nn.functional.pad(samples, (half, half + 1))
    taps = torch.arange(-half, half + 2)
    out = []
    for begin in range(0, length, BLOCK):
        index = torch.arange(begin, min(begin + BLOCK, length))
        # Whole and fractional source position in integers, so that hours of sound lose no precision.
        whole, fraction = index * down // up, (index * down % up).double() / up
        phase = (cutoff * (taps - fraction[:, None])).clamp(-WIDTH, WIDTH)
        weights = cutoff * torch.special.sinc(phase) * torch.cos(phase * (math.pi / WIDTH / 2)).square()
        frames = padded[(whole[:, None] + taps + half).clamp(max=len(padded) - 1)]
        out.append((frames * weights.float()).sum(1))
    return torch.cat(out)
