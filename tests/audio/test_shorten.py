"""The shorten decoder: against FFmpeg and the references where there are any, and against a writer of streams below."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
import soundfile

from asr.audio import shorten
from asr.audio.read import read_audio
from asr.audio.sphere import ULAW
from asr.errors import AudioError

RNG = np.random.default_rng(0)
DIFF0, DIFF1, DIFF2, DIFF3, QUIT, BLOCKSIZE, BITSHIFT, QLPC, ZERO, VERBATIM = range(10)


class Writer:
    """Bits of a stream, by the report's definitions and one at a time."""

    def __init__(
        self,
        kind: int = shorten.AU2,
        channels: int = 1,
        block: int = 4,
        order: int = 0,
        means: int = 0,
        version: int = 2,
    ) -> None:
        self.version, self.bits = version, ""
        for value in (kind, channels, block, order, means, 0):
            self.long(value)

    def unsigned(self, value: int, low: int) -> Writer:
        self.bits += "0" * (value >> low) + "1" + (f"{value & ((1 << low) - 1):0{low}b}" if low else "")
        return self

    def signed(self, value: int, low: int) -> Writer:
        return self.unsigned(2 * value if value >= 0 else -2 * value - 1, low + 1)

    def long(self, value: int) -> Writer:
        return self.unsigned(value.bit_length(), 2).unsigned(value, value.bit_length())

    def block(self, function: int, residuals: Sequence[int], energy: int = 3, weights: Sequence[int] = ()) -> Writer:
        self.unsigned(function, 2).unsigned(energy, 3)
        if function == QLPC:
            self.unsigned(len(weights), 2)
            for weight in weights:
                self.signed(weight, 5)
        for residual in residuals:
            self.signed(int(residual), energy)
        return self

    def stream(self, quit: bool = True) -> bytes:
        bits = self.bits + ("0" * (QUIT >> 2) + "1" + f"{QUIT & 3:02b}" if quit else "")
        bits += "0" * (-len(bits) % 32)
        return b"ajkg" + bytes([self.version]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def samples(writer: Writer) -> list[int]:
    return shorten.decode(writer.stream(), "x")[0][:, 0].tolist()


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_predictors_go_on_from_block_to_block(order):
    x = RNG.integers(-500, 500, 12)
    residuals = np.diff(np.r_[np.zeros(3, int), x], order)[3 - order :]
    writer = Writer(shorten.S16_LOW)
    for start in (0, 4, 8):
        writer.block(order, residuals[start : start + 4], energy=9)
    assert samples(writer) == x.tolist()


@pytest.mark.parametrize("version", [1, 2])
def test_linear_prediction_by_hand(version):
    """Weights in 32nds; version 2 rounds (adds 16·2 before the shift), version 1 cuts off."""
    writer = Writer(shorten.S16_LOW, order=2, version=version)
    writer.block(QLPC, [100, 0, 0, 0], energy=6, weights=[31, -5])
    expected, rounding = [0, 0], 32 if version == 2 else 0
    for residual in (100, 0, 0, 0):
        expected.append(residual + ((31 * expected[-1] - 5 * expected[-2] + rounding) >> 5))
    assert samples(writer) == expected[2:]


def test_the_running_mean_by_hand():
    """Two blocks of 10s and −7s; the third block's DIFF0 counts from the mean of both, rounded as C does."""
    writer = Writer(shorten.S16_LOW, means=2)
    writer.block(DIFF0, [10] * 4)  # mean before: (0 + 0 + 1) / 2 = 0; after: (40 + 2) / 4 = 10
    writer.block(DIFF0, [-7 - 5] * 4)  # mean before: (0 + 10 + 1) / 2 = 5; after: (−28 + 2) / 4 = −6
    writer.block(DIFF0, [0] * 4)  # mean before: (10 − 6 + 1) / 2 = 2
    assert samples(writer) == [10] * 4 + [-7] * 4 + [2] * 4


def test_zero_blocks_other_sizes_verbatim_bytes_and_shifts():
    writer = Writer(shorten.S16_HIGH).unsigned(VERBATIM, 2).unsigned(3, 5)
    for byte in b"abc":
        writer.unsigned(byte, 8)
    writer.block(DIFF1, [1, 1, 1, 1]).unsigned(ZERO, 2).unsigned(BITSHIFT, 2).unsigned(3, 2)
    writer.unsigned(BLOCKSIZE, 2).long(2).block(DIFF1, [5, -2])
    assert samples(writer) == [1, 2, 3, 4, 0, 0, 0, 0, 5 << 3, 3 << 3]


def test_channels_alternate():
    writer = Writer(shorten.S16_LOW, channels=2)
    writer.block(DIFF0, [1, 2, 3, 4]).block(DIFF0, [-1, -2, -3, -4]).block(DIFF1, [1, 1, 1, 1]).block(DIFF1, [-1] * 4)
    decoded, kind = shorten.decode(writer.stream(), "x")
    assert kind == shorten.S16_LOW
    assert decoded.T.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [-1, -2, -3, -4, -5, -6, -7, -8]]


def test_unshifted_mulaw_codes():
    """Values 0, 1, 127 are codes 255, 254, 128; −2, −3, −128 are 126, 125, 0. Type 8 writes the negative zero as −1."""
    values = [0, 1, 127, -1, -2, -3, -127, -128]
    writer = Writer(shorten.AU2, block=8).block(DIFF0, values, energy=7)
    assert samples(writer) == [255, 254, 128, 127, 126, 125, 1, 0]
    writer = Writer(shorten.AU1, block=8).block(DIFF0, values, energy=7)
    assert samples(writer) == [255, 254, 128, 126, 125, 124, 0, 127]


@pytest.mark.parametrize("shift", range(13))
def test_shifted_mulaw_codes_are_those_of_the_multiples(shift):
    """Value v under shift s is the G.711 code of v · 8 · 2^s, as libsndfile has it, while these differ."""
    values = np.arange(0, min(128, 1 + (32767 >> (shift + 3))))
    linear = np.concatenate([values, -values[1:]]) << (shift + 3)
    raw = io.BytesIO()
    soundfile.write(raw, linear.astype(np.int16), 8000, format="RAW", subtype="ULAW")
    expected = np.frombuffer(raw.getvalue(), np.uint8)
    half = len(values)
    distinct = [i for i in range(half) if len(set(expected[: i + 1])) == i + 1]
    writer = Writer(shorten.AU1, block=2 * len(distinct)).unsigned(BITSHIFT, 2).unsigned(shift, 2)
    writer.block(DIFF0, [*distinct, *(-i for i in distinct)], energy=7)
    mine = samples(writer)
    assert mine[: len(distinct)] == expected[distinct].tolist()
    assert mine[len(distinct) + 1 :] == [expected[half - 1 + i] for i in distinct[1:]]


@pytest.mark.parametrize("kind", [shorten.AU1, shorten.AU2])
@pytest.mark.parametrize("shift", range(13))
def test_every_code_can_be_written_under_every_shift(kind, shift):
    values = np.arange(-128, 128)
    writer = Writer(kind, block=256).unsigned(BITSHIFT, 2).unsigned(shift, 2).block(DIFF0, values, energy=7)
    found = samples(writer)
    if kind == shorten.AU1:
        assert sorted(found) == list(range(256))
    else:
        assert found[127] == 127
        assert len(set(found)) >= 255
    assert (np.diff(ULAW[found[128:]]) > 0).sum() >= 126  # rising by magnitude but for one step back


def test_real_streams_equal_their_references(corpus):
    folder = corpus("sphere_samples")
    for path in sorted(folder.glob("shn_*.sph")):
        decoded, kind = shorten.decode(path.read_bytes()[1024:], path.name)
        if kind == shorten.AU2:
            expected = np.frombuffer(path.with_name(path.name[4:]).read_bytes()[1024:], np.uint8)
            assert np.array_equal(decoded.ravel(), expected), path.name
        else:  # FFmpeg reads these
            for channel in range(decoded.shape[1]):
                expected = read_audio(path, channel=channel).samples.numpy() * 32768
                assert np.array_equal(decoded[:, channel], expected), path.name


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"RIFF", "not a shorten stream"),
        (b"ajkg\x03\xff", "not a shorten stream of version 1 or 2"),
        (b"ajkg\x02", "ends early"),
        (Writer(7).stream(), "sample type 7 is not read here"),
        (Writer(channels=65).stream(), "65 where 1 to 64 is possible"),
        (Writer(block=0).stream(), "0 where 1 to"),
        (Writer().block(DIFF0, [1, 2, 3, 4]).stream(quit=False), "ends early"),
        (Writer(channels=2).block(DIFF0, [1, 2, 3, 4]).stream(), "ends after channel 1 of 2"),
        (Writer().block(DIFF0, [1, 2, 300, 4]).stream(), "beyond 8 bits"),
        (Writer().unsigned(BITSHIFT, 2).unsigned(13, 2).block(DIFF0, [0] * 4).stream(), "bit shift 13"),
        (Writer().unsigned(10, 2).stream(), "unknown function 10"),
        (Writer().block(QLPC, [0] * 4, weights=[1, 2]).stream(), "predictor of order 2"),
        (Writer().unsigned(DIFF0, 2).unsigned(40, 3).stream(), "residuals of 40 bits"),
    ],
)
def test_damage_is_named(stream, reason):
    with pytest.raises(AudioError, match=reason) as caught:
        shorten.decode(stream, "a.sph")
    assert str(caught.value).startswith("a.sph: ")


def test_noise_never_raises_anything_else():
    for seed in range(300):
        noise = np.random.default_rng(seed).integers(0, 256, 400, dtype=np.uint8).tobytes()
        head = Writer(block=64, order=4, means=4).stream(quit=False)
        for stream in (b"ajkg\x02" + noise, head + noise):
            try:
                shorten.decode(stream, "a.sph")
            except AudioError as error:
                assert str(error).startswith("a.sph: ")  # noqa: PT017


def test_cut_mulaw_is_refused_and_counts_are_checked(corpus, tmp_path):
    whole = (corpus("sphere_samples") / "shn_ulaw.sph").read_bytes()
    path = tmp_path / "cut.sph"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match=r"cut\.sph: truncated or damaged shorten stream: it ends early"):
        read_audio(path)
    path.write_bytes(whole.replace(b"sample_count -i 44800", b"sample_count -i 44801"))
    with pytest.raises(AudioError, match=r"cut\.sph: truncated .* promises 44801 samples .* gives 44800"):
        read_audio(path)


def test_a_mulaw_header_over_a_pcm_stream_is_refused(corpus, tmp_path):
    whole = (corpus("sphere_samples") / "shn_pcm16_le.sph").read_bytes()
    path = tmp_path / "x.sph"
    head = whole[:1024].replace(b"-s26 pcm,embedded", b"-s27 ulaw,embedded").rstrip().ljust(1024)
    path.write_bytes(head + whole[1024:])
    with pytest.raises(AudioError, match="stream holds type 5"):
        read_audio(path)
