from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from asr.audio.read import audio_info, read_audio
from asr.audio.sphere import ALAW, ULAW
from asr.errors import AudioError


def sphere(body: bytes, size: int = 1024, **fields: int | str) -> bytes:
    lines = [f"NIST_1A\n{size:7d}"]
    lines += [f"{k} -i {v}" if isinstance(v, int) else f"{k} -s{len(v)} {v}" for k, v in fields.items()]
    return "\n".join([*lines, "end_head\n"]).encode().ljust(size) + body


PCM = {
    "channel_count": 1,
    "sample_rate": 16000,
    "sample_n_bytes": 2,
    "sample_byte_format": "01",
    "sample_coding": "pcm",
}


def int16(audio) -> np.ndarray:
    return (audio.samples * 32768).round().short().numpy()


@pytest.mark.parametrize(
    ("width", "layout", "dtype"), [(2, "01", "<i2"), (2, "10", ">i2"), (4, "0123", "<i4"), (4, "3210", ">i4")]
)
def test_pcm_of_both_byte_orders(tone, width, layout, dtype):
    scaled = tone.astype(dtype) * (1 if width == 2 else 65536)
    data = sphere(
        scaled.astype(dtype).tobytes(),
        **PCM | {"sample_count": 16000, "sample_n_bytes": width, "sample_byte_format": layout},
    )
    assert np.array_equal(int16(read_audio(io.BytesIO(data))), tone)
    assert np.array_equal(int16(read_audio(io.BytesIO(data), start=0.25, duration=0.5)), tone[4000:12000])
    assert audio_info(io.BytesIO(data)).seconds == 1.0


def test_companding_tables_are_libsndfiles():
    codes = bytes(range(256))
    for subtype, table in (("ULAW", ULAW), ("ALAW", ALAW)):
        expected, _ = soundfile.read(
            io.BytesIO(codes), samplerate=8000, channels=1, format="RAW", subtype=subtype, dtype="int16"
        )
        assert np.array_equal((table * 32768).astype(np.int16), expected)


def test_long_header_and_missing_count(tone):
    assert np.array_equal(int16(read_audio(io.BytesIO(sphere(tone.astype("<i2").tobytes(), size=3072, **PCM)))), tone)


def test_A1_payload_that_is_not_what_the_header_says(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 20000, dtype=np.uint8).tobytes()
    for coding in ("pcm,embedded-shorten-v2.00", "ulaw,embedded-shorten-v2.00"):
        for magic in (b"", b"ajkg\x02"):
            path = tmp_path / "x.wv1"
            path.write_bytes(sphere(magic + noise, **PCM | {"sample_coding": coding, "sample_count": 8000}))
            with pytest.raises(AudioError, match="shorten") as caught:
                read_audio(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("coding", ["pcm,embedded-shortpack-v0.00", "pcm,embedded-wavpack", "pculaw", "", "pcm,x"])
def test_A1_unknown_codings_are_named(tone, coding):
    data = sphere(tone.tobytes(), **PCM | {"sample_coding": coding or "?"})
    with pytest.raises(AudioError, match="is not read here; convert it with `sph2pipe"):
        read_audio(io.BytesIO(data))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sample_rate": "fast"}, "`sample_rate` = 'fast'"),
        ({"channel_count": 0}, "`channel_count` = '0'"),
        ({"sample_byte_format": "1"}, "sample_byte_format '1' is not read"),
        ({"sample_n_bytes": 3}, "pcm of 3 bytes"),
        ({"sample_n_bytes": 1}, "pcm of 1 bytes"),
        ({"sample_count": 16001}, "promises 16001 samples, the file holds 16000"),
        ({"sample_count": "1e400"}, "`sample_count`"),
    ],
)
def test_faulty_headers_name_the_field(tone, change, reason):
    data = sphere(tone.astype("<i2").tobytes(), **PCM | change)
    for function in (read_audio, audio_info):
        with pytest.raises(AudioError, match=reason):
            function(io.BytesIO(data))


def test_A5_cut_at_forty_percent(tone):
    data = sphere(tone.astype("<i2").tobytes(), **PCM | {"sample_count": 16000})
    with pytest.raises(AudioError, match="promises 16000 samples, the file holds 6400"):
        read_audio(io.BytesIO(data[: 1024 + 12800]))


def test_real_samples_are_exact(corpus):
    """Every readable file equals its reference to the sample; every faulty one is an error that names it."""
    folder = corpus("sphere_samples")
    mono, _ = soundfile.read(folder / "reference.wav", dtype="int16")
    stereo, _ = soundfile.read(folder / "reference_2ch.wav", dtype="int16")
    silent = mono.copy()
    silent[4000:9000] = 0
    special = {"shn_pcm16_le_zero.sph": silent, "shn_pcm16_le_shift2.sph": (mono >> 2) << 2}
    exact = 0
    for path in sorted(folder.glob("*.sph")):
        if path.name.startswith("bad_"):
            with pytest.raises(AudioError, match=path.name):
                read_audio(path)
            continue
        assert audio_info(path).frames == len(mono)
        for channel in range(2 if "_2ch" in path.name else 1):
            expected = special.get(path.name, stereo[:, channel] if "_2ch" in path.name else mono)
            if "law" in path.name:  # libsndfile reads µ-law and A-law, but not compressed
                plain = path.with_name(path.name.removeprefix("shn_"))
                expected = soundfile.read(plain, dtype="int16", always_2d=True)[0][:, channel]
            assert np.array_equal(int16(read_audio(path, channel=channel)), expected), path.name
            exact += 1
    assert exact == 21  # 17 files, four of them of two channels
