"""Shorten streams of µ-law speech, versions 1 and 2: what Switchboard-era SPHERE files hold and FFmpeg refuses.

Source: T. Robinson, "SHORTEN: Simple lossless and near-lossless waveform compression", CUED/F-INFENG/TR.156, 1994. The
order of µ-law codes under a bit shift is not in the report; `_codes` states it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from asr.errors import AudioError

AU1, S16_HIGH, S16_LOW, AU2 = 0, 3, 5, 8  # sample types; AU2 tells the two zeros of µ-law apart
_DIFF3, _QUIT, _BLOCKSIZE, _BITSHIFT, _QLPC, _ZERO, _VERBATIM = 3, 4, 5, 6, 7, 8, 9
_WRAP = 3  # samples before the block that the fixed predictors need
_MAX_BLOCK, _MAX_ORDER, _MAX_CHANNELS = 1 << 16, 64, 64


def decode(stream: bytes, name: str) -> tuple[np.ndarray, int]:
    """The samples (n, channels) of a stream that starts with `ajkg`, and its sample type.

    µ-law types come as codes 0 to 255, signed 16-bit types as integers. Raises AudioError, starting with `name`, for a
    stream that ends early or holds what no encoder writes.
    """
    if stream[:4] != b"ajkg" or stream[4:5] not in (b"\x01", b"\x02"):
        raise AudioError(f"{name}: not a shorten stream of version 1 or 2")
    try:
        return _Decoder(_Bits(stream[5:]), version=stream[4]).run()
    except _Broken as error:
        raise AudioError(f"{name}: truncated or damaged shorten stream: {error}") from None


class _Broken(Exception):
    pass


class _Decoder:
    def __init__(self, bits: _Bits, version: int) -> None:
        self.bits, self.version = bits, version
        self.type = bits.long()
        if self.type not in (AU1, AU2, S16_HIGH, S16_LOW):
            raise _Broken(f"sample type {self.type} is not read here")
        self.channels = bits.long(1, _MAX_CHANNELS)
        self.block = bits.long(1, _MAX_BLOCK)
        self.order = bits.long(0, _MAX_ORDER)
        self.means = bits.long(0, _MAX_BLOCK)
        bits.skip(bits.long(0, _MAX_BLOCK), 7)
        self.shift = 0
        wrap = max(_WRAP, self.order)
        self.history = [np.zeros(wrap, np.int64) for _ in range(self.channels)]
        self.recent = [[0] * self.means for _ in range(self.channels)]  # means of the last blocks

    def run(self) -> tuple[np.ndarray, int]:
        done: list[list[np.ndarray]] = [[] for _ in range(self.channels)]
        channel = 0
        while (function := self.bits.unsigned(2)) != _QUIT:
            if function == _BLOCKSIZE:
                self.block = self.bits.long(1, _MAX_BLOCK)
            elif function == _BITSHIFT:
                self.shift = self.bits.unsigned(2)
                if self.shift > 31:
                    raise _Broken(f"bit shift {self.shift}")
            elif function == _VERBATIM:  # bytes of the file around the samples
                self.bits.skip(self.bits.unsigned(5), 8)
            elif function in (_QLPC, _ZERO) or function <= _DIFF3:
                done[channel].append(self._unshift(self._samples(function, channel)))
                channel = (channel + 1) % self.channels
            else:
                raise _Broken(f"unknown function {function}")
        if channel:
            raise _Broken(f"it ends after channel {channel} of {self.channels}")
        empty = np.zeros(0, np.int64)
        return np.stack([np.concatenate([empty, *blocks]) for blocks in done], axis=1), self.type

    def _samples(self, function: int, channel: int) -> np.ndarray:
        before, mean = self.history[channel], self._mean(channel)
        if function == _ZERO:
            x = np.zeros(self.block, np.int64)
        else:
            energy = self.bits.unsigned(3)
            if energy > 30:
                raise _Broken(f"residuals of {energy} bits")
            if function == _QLPC:
                x = self._predicted(before - mean, energy) + mean
            else:
                x = _integrated(self.bits.signed_block(self.block, energy), before, function)
                x += mean if function == 0 else 0
        self.history[channel] = np.concatenate([before, x])[-len(before) :]
        if self.means:
            total = int(x.sum()) + (self.block // 2 if self.version > 1 else 0)
            shift = self.shift if self.version > 1 else 0
            self.recent[channel] = [*self.recent[channel][1:], _divided(total, self.block) << shift]
        return x

    def _mean(self, channel: int) -> int:
        if not self.means:
            return 0
        if self.version < 2:
            return _divided(sum(self.recent[channel]), self.means)
        return _divided(sum(self.recent[channel]) + self.means // 2, self.means) >> self.shift

    def _predicted(self, before: np.ndarray, energy: int) -> np.ndarray:
        order = self.bits.unsigned(2)
        if order > self.order:
            raise _Broken(f"a predictor of order {order}, where the head allows {self.order}")
        weights = [self.bits.signed(5) for _ in range(order)]
        rounding = 32 if self.version > 1 else 0
        x = before.tolist()
        for residual in self.bits.signed_block(self.block, energy).tolist():
            total = sum(w * v for w, v in zip(weights, reversed(x[len(x) - order :]), strict=True))
            x.append(residual + ((total + rounding) >> 5))
        try:
            return np.array(x[len(before) :], np.int64)
        except OverflowError:
            raise _Broken("samples beyond 64 bits") from None

    def _unshift(self, x: np.ndarray) -> np.ndarray:
        if self.type in (S16_HIGH, S16_LOW):
            return x << self.shift
        if self.shift > 12:
            raise _Broken(f"bit shift {self.shift} in µ-law")
        if self.type == AU2:  # −1 is the negative zero; what is below it has moved down by one
            codes = np.where(x < -1, x + 1, x) + 128
        else:
            codes = x + 128
        if codes.min() < 0 or codes.max() > 255:
            raise _Broken("µ-law codes beyond 8 bits")
        found = _codes(self.shift)[codes]
        return np.where(x == -1, 127, found) if self.type == AU2 else found


@lru_cache(maxsize=13)
def _codes(shift: int) -> np.ndarray:
    """(256,) µ-law codes by shifted value + 128.

    First come the codes (ITU-T G.711) of the multiples of 8 << shift, from 0 up for positive and from −1 down for
    negative ones; then, in the same directions, all other codes, the negative zero (127) before them.
    """
    width = 8 << shift
    positive = _magnitudes(np.arange(0, 32768, width))
    negative = _magnitudes(np.arange(width, 32769, width))
    above = [255 - m for m in positive + [m for m in range(128) if m not in positive]]
    below = [127 - m for m in negative + [m for m in range(128) if m not in negative]]
    return np.array(below[::-1] + above)


def _magnitudes(x: np.ndarray) -> list[int]:
    """The distinct magnitudes, 0 to 127, of the µ-law codes of x, 0 ≤ x ≤ 32768, in rising order."""
    biased = np.minimum(x, 32635) + 132
    exponent = np.floor(np.log2(biased)).astype(np.int64) - 7
    return sorted(set((exponent << 4 | (biased >> exponent + 3) & 15).tolist()))


def _integrated(residuals: np.ndarray, before: np.ndarray, order: int) -> np.ndarray:
    """The block whose differences of that order, going on from `before`, are the residuals (DIFF0 to DIFF3)."""
    x = residuals
    for level in range(order - 1, -1, -1):
        start = np.diff(before[-order:], level)[-1] if order else 0
        x = start + np.cumsum(x)
    return x


def _divided(a: int, b: int) -> int:
    """a / b towards zero, as in C."""
    return a // b if a >= 0 else -(-a // b)


class _Bits:
    """Rice codes: the part above the low bits in unary (zeros, then a one), then the low bits."""

    def __init__(self, data: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8))
        end = len(self.bits)
        places = np.where(self.bits, np.arange(end, dtype=np.int64), end)
        self.next_one = np.append(np.minimum.accumulate(places[::-1])[::-1], end)
        self.position = 0

    def unsigned(self, low: int) -> int:
        return int(self._block(1, low)[0])

    def signed(self, low: int) -> int:
        return int(self.signed_block(1, low)[0])

    def signed_block(self, count: int, low: int) -> np.ndarray:
        """(count,) int64; the lowest bit of each code is its sign."""
        folded = self._block(count, low + 1)
        return np.where(folded & 1, ~(folded >> 1), folded >> 1)

    def long(self, least: int = 0, most: int = 1 << 30) -> int:
        width = self.unsigned(2)
        value = self.unsigned(min(width, 31))
        if width > 31 or not least <= value <= most:
            raise _Broken(f"its head says {value} where {least} to {most} is possible")
        return value

    def skip(self, count: int, low: int) -> None:
        self._block(count, low)

    def _block(self, count: int, low: int) -> np.ndarray:
        starts, ones, position, end = [], [], self.position, len(self.bits)
        next_one = memoryview(self.next_one)  # type: ignore[arg-type]  # faster to index one by one
        for _ in range(count):
            one = next_one[position]
            starts.append(position)
            ones.append(one)
            position = one + low + 1
            if position > end:
                raise _Broken("it ends early")
        self.position = position
        at = np.array(ones, np.int64)
        values = at - np.array(starts, np.int64)
        for place in range(1, low + 1):
            values = (values << 1) | self.bits[at + place]
        return values
