"""A shorten encoder, version 2: polynomial predictors, zero blocks, Rice codes.

Source: T. Robinson, "SHORTEN: Simple lossless and near-lossless waveform compression", CUED/F-INFENG/TR.156, 1994.
Left out: linear prediction, bit shifts and the running mean (its length is declared as 0).
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
_QUIT, _BLOCKSIZE, _ZERO = 4, 5, 8  # functions 0 to 3 are the predictors of that order
_TYPES = {">": 3, "<": 5}  # signed 16 bit, high or low byte first
_FUNCTION_BITS, _ENERGY_BITS, _LONG_BITS = 2, 3, 2


def encode(samples: np.ndarray, order: str = "<") -> bytes:
    """The stream of (n, channels) int16 samples, `ajkg` included; order: of the bytes after decoding, `<` or `>`."""
    if samples.dtype != np.int16 or samples.ndim != 2:
        raise ValueError("int16 samples of shape (n, channels) are expected")
    count, channels = samples.shape
    stream = [_long(value) for value in (_TYPES[order], channels, BLOCK, 0, 0, 0)]  # 0: no LPC, no mean, no skip
    residuals = [_residuals(samples[:, channel].astype(np.int64)) for channel in range(channels)]
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        if stop - start < BLOCK:
            stream += [_unsigned(np.array([_BLOCKSIZE]), _FUNCTION_BITS), _long(stop - start)]
        for channel in range(channels):
            stream += _block(residuals[channel][:, start:stop], not samples[start:stop, channel].any())
    stream.append(_unsigned(np.array([_QUIT]), _FUNCTION_BITS))
    bits = np.concatenate(stream)
    bits = np.pad(bits, (0, -len(bits) % 32))  # decoders read 32 bits at a time
    return b"ajkg\x02" + np.packbits(bits).tobytes()


def _residuals(x: np.ndarray) -> np.ndarray:
    """(4, n): the errors of the predictors of order 0 to 3, which take what is before the first sample as 0."""
    padded = np.concatenate([np.zeros(3, np.int64), x])
    return np.stack([np.diff(padded, order)[3 - order :] for order in range(4)])


def _block(residuals: np.ndarray, silent: bool) -> list[np.ndarray]:
    if silent:
        return [_unsigned(np.array([_ZERO]), _FUNCTION_BITS)]
    order = int(np.abs(residuals).sum(axis=1).argmin())
    folded = np.where(residuals[order] < 0, (~residuals[order] << 1) | 1, residuals[order] << 1)
    bits = min(range(1, 17), key=lambda bits: int((folded >> bits).sum()) + bits * len(folded))
    head = [_unsigned(np.array([order]), _FUNCTION_BITS), _unsigned(np.array([bits - 1]), _ENERGY_BITS)]
    return [*head, _unsigned(folded, bits)]


def _long(value: int) -> np.ndarray:
    width = value.bit_length()
    return np.concatenate([_unsigned(np.array([width]), _LONG_BITS), _unsigned(np.array([value]), width)])


def _unsigned(values: np.ndarray, low: int) -> np.ndarray:
    """Rice codes of values ≥ 0: the part above `low` bits in unary (zeros, then a one), then the low bits."""
    ends = np.cumsum((values >> low) + 1 + low)
    bits = np.zeros(ends[-1], np.uint8)
    bits[ends - low - 1] = 1
    for place in range(low):
        bits[ends - low + place] = values >> (low - 1 - place) & 1
    return bits
