"""Log-mel filterbanks by Kaldi's definition (`compute-fbank-feats`, and `torchaudio.compliance.kaldi.fbank`).

Samples on the 16-bit scale, frames only where a whole window fits (snip_edges), mean removed per frame, pre-emphasis
0.97, povey window, power spectrum, HTK mel scale, natural log floored at float32's epsilon. Written out here because
the mel matrix is kept between calls: more than twice as fast as torchaudio, which makes it anew for each utterance.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.audio.config import FeaturesConfig
from asr.errors import AudioError, RecipeError

SCALE = 32768.0  # samples in [-1, 1] become the 16-bit integers that Kaldi works on
PREEMPHASIS = 0.97
VERSION = 1  # raise it whenever the numbers change: stored features are then computed anew


@dataclass(frozen=True)
class _Analysis:
    """What depends on the configuration alone. Lengths in samples."""

    window: int
    hop: int
    fft: int
    taper: Tensor  # (window,), with the sample scale in it
    mel: Tensor  # (fft / 2 + 1, bins)


def fbank(samples: Tensor, config: FeaturesConfig, dither_seed: int | None = None) -> Tensor:
    """(n,) float32 in [-1, 1] at `config.sample_rate` → (frames, config.dim) float32, natural log.

    With a `dither_seed`, Gaussian noise of `config.dither` 16-bit steps is added to the samples; without, none.
    Raises AudioError if the samples are not one-dimensional or do not fill one window.
    """
    if samples.ndim != 1:
        hint = "; the axes are swapped or the channels not mixed down" if samples.ndim == 2 else ""
        raise AudioError(f"samples must have shape (n,), got {tuple(samples.shape)}{hint}")
    analysis = _analysis(config)
    count = num_frames(len(samples), config)
    if count == 0:
        raise AudioError(
            f"{len(samples)} samples ({1000 * len(samples) / config.sample_rate:.1f} ms) are too short:"
            f" one window needs {analysis.window} ({config.window_ms:g} ms at {config.sample_rate} Hz)"
        )
    samples = samples.to(torch.float32)
    if dither_seed is not None and config.dither > 0:
        generator = torch.Generator().manual_seed(dither_seed)
        samples = samples + torch.randn(samples.shape, generator=generator) * (config.dither / SCALE)
    frames = samples.unfold(0, analysis.window, analysis.hop)
    frames = frames - frames.mean(dim=1, keepdim=True)
    # x[t] - 0.97 x[t - 1]; the first sample of a frame has itself for a predecessor.
    emphasised = torch.empty_like(frames)
    torch.sub(frames[:, 1:], frames[:, :-1], alpha=PREEMPHASIS, out=emphasised[:, 1:])
    torch.mul(frames[:, 0], 1 - PREEMPHASIS, out=emphasised[:, 0])
    spectrum = torch.fft.rfft(emphasised.mul_(analysis.taper), n=analysis.fft)
    power = spectrum.real.square() + spectrum.imag.square()
    features = (power @ analysis.mel).clamp_(min=torch.finfo(torch.float32).eps).log_()
    return add_deltas(features) if config.deltas else features


def num_frames(samples: int, config: FeaturesConfig) -> int:
    """Frames that `fbank` makes of this many samples at `config.sample_rate`; 0 if they do not fill one window."""
    window, hop = _lengths(config)
    return 0 if samples < window else 1 + (samples - window) // hop


def check_config(config: FeaturesConfig) -> None:
    """Raises RecipeError if no filterbank can be made of this configuration, before any audio is read."""
    _analysis(config)


def add_deltas(features: Tensor) -> Tensor:
    """(frames, bins) → (frames, 3 * bins): first and second time differences appended, Kaldi's `add-deltas`, window 2.

    The edge frames are repeated outwards for both orders, so the second is not the difference of the first there.
    """
    first = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]) / 10
    second = torch.nn.functional.conv1d(first.view(1, 1, -1), first.flip(0).view(1, 1, -1), padding=4).view(-1)
    filters = torch.stack([torch.nn.functional.pad(first, (2, 2)), second]).unsqueeze(1)  # (2, 1, 9)
    padded = torch.nn.functional.pad(features.T.unsqueeze(1), (4, 4), mode="replicate")  # (bins, 1, frames + 8)
    deltas = torch.nn.functional.conv1d(padded, filters)  # (bins, 2, frames)
    return torch.cat([features, deltas[:, 0].T, deltas[:, 1].T], dim=1)


def _lengths(config: FeaturesConfig) -> tuple[int, int]:
    """Window and hop in samples, rounded down as Kaldi does (11,025 Hz has 275 in 25 ms)."""
    # The small addition keeps a whole number whole when the product falls just below it in floating point.
    window, hop = (int(config.sample_rate * ms / 1000 + 1e-6) for ms in (config.window_ms, config.hop_ms))
    if window < 2 or hop < 1:
        raise RecipeError(
            f"features: window_ms {config.window_ms:g} and hop_ms {config.hop_ms:g} are less than two samples and one"
            f" at {config.sample_rate} Hz"
        )
    return window, hop


@functools.lru_cache(maxsize=8)
def _analysis(config: FeaturesConfig) -> _Analysis:
    window, hop = _lengths(config)
    fft = 1 << (window - 1).bit_length()
    taper = torch.hann_window(window, periodic=False, dtype=torch.float64).pow(0.85) * SCALE
    return _Analysis(window, hop, fft, taper.float(), _mel_matrix(config, fft))


def _mel_matrix(config: FeaturesConfig, fft: int) -> Tensor:
    """(fft / 2 + 1, bins): triangles of equal width on the mel scale 1127 ln(1 + f / 700), f in Hz."""
    nyquist = config.sample_rate / 2
    high = config.high_hz if config.high_hz > 0 else nyquist + config.high_hz
    edges = torch.linspace(_mel(config.low_hz), _mel(high), config.bins + 2, dtype=torch.float64)
    hertz = torch.arange(fft // 2 + 1, dtype=torch.float64) * (config.sample_rate / fft)
    mel = (1127.0 * torch.log1p(hertz / 700.0))[:, None]
    rising = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel) / (edges[2:] - edges[1:-1])
    matrix = torch.minimum(rising, falling).clamp_(min=0)
    matrix[-1] = 0  # Kaldi leaves the Nyquist bin out
    if empty := int((matrix.sum(0) == 0).sum()):
        raise RecipeError(
            f"features.bins: {config.bins} bands are too many for a {config.window_ms:g} ms window at"
            f" {config.sample_rate} Hz: {empty} of them cover no frequency; take fewer bins or a longer window"
        )
    return matrix.float()


def _mel(hertz: float) -> float:
    return 1127.0 * math.log(1 + hertz / 700.0)
