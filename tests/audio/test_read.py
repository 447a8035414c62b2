from __future__ import annotations

import io
import logging
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch

from asr.audio import read
from asr.audio.read import audio_info, read_audio
from asr.errors import AudioError


def int16(audio) -> np.ndarray:
    return (audio.samples * 32768).round().short().numpy()


def put(tmp_path, name: str, data: bytes):
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("format", ["WAV", "FLAC", "AIFF", "RF64", "CAF", "W64", "AU"])
def test_lossless_formats_are_exact_whatever_the_name(tmp_path, tone, encode, format):
    path = put(tmp_path, "sound.mp3", encode(tone, format))
    audio = read_audio(path)
    assert np.array_equal(int16(audio), tone)
    assert audio.samples.dtype == torch.float32
    assert (audio.rate, audio.source_rate) == (16000, 16000)
    info = audio_info(path)
    assert (info.rate, info.frames, info.channels, info.seconds) == (16000, 16000, 1, 1.0)


def test_channels_are_averaged_or_chosen(tone, encode):
    stereo = np.stack([tone, -tone // 2], axis=1)
    data = encode(stereo, "WAV")
    assert np.array_equal(int16(read_audio(io.BytesIO(data), channel=0)), stereo[:, 0])
    assert np.array_equal(int16(read_audio(io.BytesIO(data), channel=1)), stereo[:, 1])
    mean = read_audio(io.BytesIO(data)).samples.numpy()
    np.testing.assert_allclose(mean, stereo.mean(axis=1) / 32768, atol=1e-7)
    with pytest.raises(AudioError, match=r"2 channel\(s\), counted from 0; there is no channel 2"):
        read_audio(io.BytesIO(data), channel=2)


@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_adjacent_segments_share_and_miss_no_sample(tone, encode, format):
    data = encode(tone, format)
    edges = [0.0, 0.10003, 0.33335, 0.7001, 1.0]
    parts = [int16(read_audio(io.BytesIO(data), start=a, duration=b - a)) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), tone)
    assert len(parts[0]) == round(0.10003 * 16000)


def test_segment_end_is_cut_within_tolerance_and_refused_beyond(tone, wav_bytes, caplog):
    data = wav_bytes(tone)
    with caplog.at_level(logging.INFO):
        assert len(read_audio(io.BytesIO(data), start=0.5, duration=0.6).samples) == 8000
    assert "cut to the end of the audio" in caplog.text
    with pytest.raises(AudioError, match=r"ends at 1.110 s \(17760 samples\) but the audio at 1.000 s"):
        read_audio(io.BytesIO(data), start=0.5, duration=0.61)
    with pytest.raises(AudioError, match=r"starts at 1 s but the audio ends at 1\.000 s"):
        read_audio(io.BytesIO(data), start=1.0, duration=0.05)


@pytest.mark.parametrize(
    "span",
    [{"start": -1.0}, {"start": float("nan")}, {"duration": 0.0}, {"duration": float("inf")}, {"duration": 1e-6}],
)
def test_senseless_spans_are_refused(tone, wav_bytes, span):
    with pytest.raises(AudioError, match=r"start must|duration must|less than one sample"):
        read_audio(io.BytesIO(wav_bytes(tone)), **span)


def test_unusable_files_are_named(tmp_path, tone, encode, wav_bytes):
    bad = tone.astype(np.float32) / 32768
    bad[77] = np.nan
    cases = {
        tmp_path / "missing.wav": "No such file",
        tmp_path: "is a folder",
        put(tmp_path, "empty.wav", b""): "is empty",
        put(tmp_path, "text.wav", b"what was said\n" * 50): "not audio in a known format",
        put(tmp_path, "six.wav", b"RIFF\0\0"): "not audio in a known format",
        put(tmp_path, "none.wav", wav_bytes(tone[:0])): "holds no samples",
        put(tmp_path, "nan.wav", encode(bad, "WAV", subtype="FLOAT")): "not finite",
        put(tmp_path, "scale.wav", encode(tone.astype(np.float32), "WAV", subtype="FLOAT")): "full scale is 1",
        put(tmp_path, "rate.wav", wav_bytes(tone, rate=7)): "sample rate of 7 Hz",
    }
    for path, reason in cases.items():
        with pytest.raises(AudioError, match=reason) as caught:
            read_audio(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(AudioError, match="regular file"):
        read_audio("/dev/null")


def test_stream_that_cannot_seek(tone, wav_bytes):
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    assert np.array_equal(int16(read_audio(Pipe(wav_bytes(tone)))), tone)


def test_A3_streamed_wav_reaches_to_the_end_of_the_file(tone, wav_bytes):
    for declared in (0xFFFFFFFF, 0x7FFFF000, 0xFFFFFFFF - 36):
        data = wav_bytes(tone[:1600], declared=declared)
        assert np.array_equal(int16(read_audio(io.BytesIO(data))), tone[:1600])
        assert audio_info(io.BytesIO(data)).seconds == 0.1


def test_A3_wav_that_declares_nothing_is_reported(tone, wav_bytes):
    data = wav_bytes(tone[:1600], declared=0)
    for function in (read_audio, audio_info):
        with pytest.raises(AudioError, match="declares 0 bytes of sound but 3200 bytes follow"):
            function(io.BytesIO(data))


def test_A5_truncated_wav_and_aiff_name_both_lengths(tone, wav_bytes, encode):
    wav, aiff = wav_bytes(tone), encode(tone, "AIFF")
    for data in (wav[:12844], aiff[: len(aiff) - 32000 + 12800]):
        for function in (read_audio, audio_info, lambda file: read_audio(file, duration=0.1)):
            with pytest.raises(AudioError, match="promises 16000 samples, the file holds 6400"):
                function(io.BytesIO(data))


def test_A5_flac_cut_in_mid_frame(tone, encode):
    data = encode(tone, "FLAC")
    with pytest.raises(AudioError, match=r"promises 16000 samples, the file holds (\d+)") as caught:
        read_audio(io.BytesIO(data[: len(data) * 4 // 10]))
    assert 0 < int(str(caught.value).split()[-1]) < 9000


def test_A5_m4a_cut_in_its_sound(tone, m4a_bytes):
    data = m4a_bytes(np.tile(tone, 5))
    start = data.index(b"mdat") + 4
    silent = data[:start] + b"\0" * 20000 + data[start + 20000 :]  # the packet table is intact, the packets are not
    with pytest.raises(AudioError, match=r"decoding fails|promises"):
        read_audio(io.BytesIO(silent))


def test_flac_that_does_not_declare_its_length(tone, encode):
    data = bytearray(encode(tone, "FLAC"))
    data[21] &= 0xF0  # the 36 bits of STREAMINFO's total sample count
    data[22:26] = b"\0\0\0\0"
    assert audio_info(io.BytesIO(data)).frames == 16000
    assert np.array_equal(int16(read_audio(io.BytesIO(data))), tone)
    assert np.array_equal(int16(read_audio(io.BytesIO(data), start=0.5)), tone[8000:])


def test_flac_that_declares_a_terabyte_takes_no_memory(tone, encode):
    data = bytearray(encode(tone, "FLAC"))
    data[21] |= 0x0F
    data[22:26] = b"\xff\xff\xff\xff"
    with pytest.raises(AudioError, match=r"promises 68719476735 samples, the file holds 1[56]"):
        read_audio(io.BytesIO(data))


@pytest.mark.parametrize("format", ["MP3", "m4a", "OGG"])
def test_A7_decoded_length_wins_over_metadata(tmp_path, tone, encode, m4a_bytes, format):
    pytest.importorskip("av")
    sound = np.tile(tone, 3)
    data = m4a_bytes(sound) if format == "m4a" else encode(sound, format)
    path = put(tmp_path, "renamed.wav", data)
    audio, info = read_audio(path), audio_info(path)
    assert info.estimated
    assert info.seconds == pytest.approx(3.0, abs=0.2)
    assert audio.seconds == pytest.approx(3.0, abs=0.2)
    tail = read_audio(path, start=2.0, duration=info.seconds - 2.0)  # a segment that ends at the metadata's length
    assert torch.equal(tail.samples, audio.samples[2 * audio.rate : round(info.seconds * audio.rate)])
    offset = max(
        range(0, 3000, 50), key=lambda k: float(audio.samples[k : k + 8000] @ torch.tensor(sound[:8000] / 1e5).float())
    )
    clean = torch.tensor(sound[8000:16000] / 32768).float()
    heard = audio.samples[8000 + offset : 16000 + offset]
    assert float(torch.corrcoef(torch.stack([clean, heard]))[0, 1]) > 0.9


def test_A7_opus_length_is_exact(corpus):
    pytest.importorskip("av")
    for path in sorted(corpus("speechocean762").glob("audio/*.ogg"))[:5]:
        assert audio_info(path).frames == len(read_audio(path).samples)


def test_A7_mp3_without_a_length_tag(tone, encode):
    pytest.importorskip("av")
    data = encode(np.tile(tone, 3), "MP3")
    assert b"Xing" in data[:100] or b"Info" in data[:100]
    data = data[data.index(data[:2], 100) :]  # the tag is a frame of its own, and begins with the same two bytes
    assert read_audio(io.BytesIO(data)).seconds == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 11127, 44101])
def test_D5_other_rates_are_resampled(caplog, wav_bytes, rate):
    read._noted.clear()
    time = np.arange(2 * rate) / rate
    data = wav_bytes(8000 * np.sin(2 * np.pi * 440 * time), rate=rate)
    with caplog.at_level(logging.INFO):
        audio = read_audio(io.BytesIO(data), sample_rate=16000)
        read_audio(io.BytesIO(data), sample_rate=16000)
    assert (audio.rate, audio.source_rate, len(audio.samples)) == (16000, rate, 32000)
    expected = 8000 / 32768 * np.sin(2 * np.pi * 440 * np.arange(32000) / 16000)
    np.testing.assert_allclose(audio.samples[200:-200].numpy(), expected[200:-200], atol=2e-3)
    assert len(caplog.records) == 1  # once for a rate, not for a file
    assert str(rate) in caplog.text
    assert "16000" in caplog.text
    assert caplog.records[0].levelno == (logging.WARNING if rate < 16000 else logging.INFO)


def test_J1_wav_flac_and_sphere_need_no_ffmpeg(tmp_path, tone, encode, m4a_bytes):
    """In a fresh process where neither `av` nor torchcodec can be imported."""
    put(tmp_path, "a.wav", encode(tone, "WAV"))
    put(tmp_path, "a.flac", encode(tone, "FLAC"))
    put(tmp_path, "a.m4a", m4a_bytes(tone))
    script = (
        "import sys\n"
        "sys.modules['av'] = sys.modules['torchcodec'] = None\n"
        "from asr.audio.read import read_audio\n"
        "from asr.errors import AudioError\n"
        "print(len(read_audio('a.wav').samples), len(read_audio('a.flac').samples))\n"
        "try: read_audio('a.m4a')\n"
        "except AudioError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["16000 16000", "a.m4a: this format needs the package `av` (pip install av)"]


def test_A5_cut_mp3_is_told_to_the_log(tone, encode, caplog):
    pytest.importorskip("av")
    data = encode(np.tile(tone, 3), "MP3")
    audio = read_audio(io.BytesIO(data[: len(data) // 2]))
    assert audio.seconds < 2
    assert f"speaks of 3.00 s, decoding gives {audio.seconds:.2f} s" in caplog.text


def test_playlists_are_not_followed(tmp_path, tone, encode):
    """FFmpeg would open whatever a playlist names, also addresses on the network."""
    put(tmp_path, "secret.wav", encode(tone, "WAV"))
    for text in ("ffconcat version 1.0\nfile secret.wav\n", "#EXTM3U\n#EXTINF:1,\nsecret.wav\n#EXT-X-ENDLIST\n"):
        with pytest.raises(AudioError, match="not audio"):
            read_audio(put(tmp_path, "list.mp3", text.encode()))


def test_odd_files_read_right_or_give_one_line(corpus, capfd):
    """Oddities and fuzzers' finds from public test suites."""
    readable, errors = {}, {}
    for path in sorted(corpus("odd_audio").rglob("*.*")):
        try:
            readable[path.name] = read_audio(path, channel=0)
        except AudioError as error:
            errors[path] = str(error)
    assert all(text.startswith(f"{path}: ") and "\n" not in text for path, text in errors.items())
    assert len(readable) >= 30
    assert "Traceback" not in capfd.readouterr().err
    assert len(readable["test-44100Hz-be-1ch-4bytes.wav"].samples) == 4410
    same = [
        readable[f"test-44100Hz-{kind}.wav"].samples
        for kind in ("be-1ch-4bytes", "le-1ch-4bytes", "le-1ch-4bytes-rf64")
    ]
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    floats = [readable[f"test-44100Hz-2ch-32bit-float-{order}.wav"].samples for order in ("be", "le")]
    torch.testing.assert_close(*floats, atol=1e-6, rtol=0)
    assert readable["test-8000Hz-le-3ch-5S-24bit.wav"].samples.tolist() == pytest.approx(
        [-1, -0.5, 0, 0.5, 1], abs=1e-6
    )
    assert readable["nonstandard-02.wav"].samples.tolist() == pytest.approx(
        [19 / 2**31, 33587161 / 2**31 * 1.0], abs=1e-3
    )
    for refused in (
        "test-44100Hz-le-1ch-4bytes-early-eof.wav",
        "waveformatextensible-24bit-4byte-48kHz-stereo.wav",
        "null.wav",
    ):
        assert refused not in readable
    wav, sph = readable["stereo.wav"].samples, readable["stereo.sph"].samples
    assert torch.equal(wav, sph)


def test_ctrl_c_while_reading_is_no_truncated_file(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(1600, "float32"), 16000)

    class Interrupted(io.BytesIO):
        def readinto(self, buffer):
            if self.tell() > 0:
                raise KeyboardInterrupt
            return super().readinto(buffer)

    with pytest.raises(KeyboardInterrupt):
        read_audio(Interrupted(path.read_bytes()))
