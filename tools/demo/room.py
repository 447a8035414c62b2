"""What stands between a mouth and a recording: an echoing room, noise, a level."""

from __future__ import annotations

import numpy as np

NOISES = ("white", "pink", "babble")


def reverberate(samples: np.ndarray, rate: int, rt60: float, direct_db: float, rng: np.random.Generator) -> np.ndarray:
    """Convolve (n,) samples with a room response: a direct path and noise that decays by 60 dB in `rt60` seconds.

    direct_db: energy of the direct path over that of the tail, in dB (Polack's statistical model of the tail).
    """
    time = np.arange(1, int(rt60 * rate)) / rate
    tail = rng.standard_normal(len(time)) * 10 ** (-3 * time / rt60)
    tail[: int(0.002 * rate)] = 0  # nothing comes back before sound has travelled to a wall
    tail *= 10 ** (-direct_db / 20) / np.sqrt(np.sum(tail**2))
    response = np.concatenate([[1.0], tail])
    size = 1 << (len(samples) + len(response) - 2).bit_length()
    return np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)[: len(samples)]


def noise(kind: str, count: int, rate: int, rng: np.random.Generator) -> np.ndarray:
    """`count` samples of noise with a root mean square of 1; kind is one of NOISES.

    white: flat spectrum; pink: power falls with 1/f; babble: eight voices' worth of speech-shaped noise (flat to
    500 Hz, then -6 dB per octave), each rising and falling at the rate of syllables.
    """
    if kind == "white":
        sound = rng.standard_normal(count)
    elif kind == "pink":
        sound = _shaped(count, rate, rng, lambda hertz: np.maximum(hertz, 20) ** -0.5)
    else:
        sound = np.zeros(count)
        for _ in range(8):
            envelope = np.abs(_shaped(count, rate, rng, lambda hertz: (hertz > 1) & (hertz < 5)))
            sound += envelope * _shaped(count, rate, rng, lambda hertz: 1 / np.maximum(hertz, 500))
    return sound / np.sqrt(np.mean(sound**2))


def add_noise(samples: np.ndarray, sound: np.ndarray, snr_db: float) -> np.ndarray:
    """Samples plus noise of root mean square 1, `snr_db` below the root mean square of the samples."""
    return samples + sound * np.sqrt(np.mean(samples**2)) * 10 ** (-snr_db / 20)


def set_level(samples: np.ndarray, level_db: float, peak: float = 0.9) -> np.ndarray:
    """Scale to a root mean square of `level_db` relative to full scale, but never above `peak`: nothing is clipped."""
    scale = 10 ** (level_db / 20) / np.sqrt(np.mean(samples**2))
    return samples * min(scale, peak / np.max(np.abs(samples)))


def _shaped(count: int, rate: int, rng: np.random.Generator, gain) -> np.ndarray:
    size = 1 << (count - 1).bit_length()  # a power of two: an utterance of prime length would take seconds
    spectrum = np.fft.rfft(rng.standard_normal(size)) * gain(np.fft.rfftfreq(size, 1 / rate))
    sound = np.fft.irfft(spectrum, size)[:count]
    return sound / np.sqrt(np.mean(sound**2))
