from __future__ import annotations

import io
import json
import logging
import struct

import pytest

from asr.decode import loop
from asr.decode.formats import FORMATS
from asr.decode.inputs import find_inputs
from asr.decode.loop import Options, decode_files
from asr.decode.sinks import Folder, Stream
from asr.errors import UsageError


def decode(recogniser, *arguments, format="txt", stdin=None, **options):
    """(outcome, what went to the stream) of decoding `arguments`."""
    stream = io.StringIO()
    inputs, _ = find_inputs(arguments)
    outcome = decode_files(recogniser, inputs, Stream(stream, FORMATS[format]()), Options(**options), stdin)
    return outcome, stream.getvalue()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_I5_one_bad_file_never_stops_the_others(recogniser, tone, tmp_path, batch_size):
    (tmp_path / "text.wav").write_text("this is no audio")
    (tmp_path / "folder").mkdir()
    good, last = tone("good.wav", 30), tone("last.wav", 60)
    arguments = [good, tmp_path / "text.wav", tmp_path / "missing.wav", tmp_path / "folder", last]
    outcome, text = decode(recogniser, *arguments, batch_size=batch_size)
    assert text == "good\t30\nlast\t60\n"
    assert [name for name, _ in outcome.failures] == [str(path) for path in arguments[1:4]]
    assert all(reason for _, reason in outcome.failures)
    assert outcome.exit_code == 3


def test_I5_all_failed_has_its_own_exit_code(recogniser, tone, tmp_path):
    assert decode(recogniser, tmp_path / "missing.wav")[0].exit_code == 4
    assert decode(recogniser, tone("good.wav"))[0].exit_code == 0


def test_I5_fail_fast_keeps_what_was_read_and_stops(recogniser, tone, tmp_path):
    outcome, text = decode(
        recogniser, tone("a.wav", 10), tmp_path / "missing.wav", tone("b.wav", 20), fail_fast=True, batch_size=4
    )
    assert text == "a\t10\n"
    assert (outcome.decoded, len(outcome.failures), outcome.inputs) == (1, 1, 3)


def test_I5_one_that_fails_in_the_model_does_not_take_its_batch_along(recogniser, tone):
    outcome, text = decode(recogniser, tone("a.wav", 10), tone("silent.wav", 0), tone("b.wav", 20), batch_size=4)
    assert text == "a\t10\nb\t20\n"
    assert outcome.failures[0][1] == "the fake refuses silence"


def test_I5_results_are_out_before_a_later_failure(recogniser, tone, monkeypatch):
    """Killed in mid-run: what was decoded is already in the stream."""
    stream = io.StringIO()
    inputs, _ = find_inputs([tone("a.wav", 10), tone("b.wav", 20)])
    one = recogniser.transcribe

    def interrupted(batch):
        if recogniser.batches:
            raise KeyboardInterrupt
        return one(batch)

    monkeypatch.setattr(recogniser, "transcribe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decode_files(recogniser, inputs, Stream(stream, FORMATS["txt"]()), Options(batch_size=1))
    assert stream.getvalue() == "a\t10\n"


def test_H1_batch_size_changes_no_result(recogniser, tone):
    paths = [tone(f"{n}.wav", 10 + n, seconds) for n, seconds in enumerate([0.5, 2.0, 0.01, 3.0, 0.7])]
    texts = {size: decode(recogniser, *paths, batch_size=size, format="json")[1] for size in (1, 2, 3, 8)}
    assert len(set(texts.values())) == 1
    assert [json.loads(line)["text"] for line in texts[8].splitlines()] == ["10", "11", "", "13", "14"]


def test_a_batch_never_holds_more_padded_audio_than_the_longest_file_allowed(recogniser, tone):
    paths = [tone(f"{n}.wav", 10, seconds) for n, seconds in enumerate([1.0, 1.0, 3.0, 1.0])]
    decode(recogniser, *paths, batch_size=8, max_seconds=4.0)
    assert recogniser.batches == [[16000, 16000], [48000], [16000]]


@pytest.mark.parametrize("samples", [1, 399])
def test_D1_audio_below_one_window_is_empty_text_and_a_warning(recogniser, tone, caplog, samples):
    paths = [tone("long.wav", 30), tone("short.wav", 40, samples / 16000), tone("last.wav", 60)]
    outcome, text = decode(recogniser, *paths)
    assert text == "long\t30\nshort\t\nlast\t60\n"
    assert outcome.exit_code == 0
    assert "short.wav" in "".join(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)


def test_D1_a_file_without_samples_is_a_named_failure(recogniser, tone):
    outcome, text = decode(recogniser, tone("none.wav", seconds=0.0), tone("b.wav", 20))
    assert text == "b\t20\n"
    assert outcome.failures[0][0].endswith("none.wav")


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_D5_other_rates_are_resampled_or_refused_naming_both(recogniser, tone, rate):
    path = tone("x.wav", 50, 0.5, rate)
    outcome, text = decode(recogniser, path, format="json")
    record = json.loads(text)
    assert record["rate"] == rate
    assert record["duration"] == pytest.approx(0.5, abs=1e-3)
    assert abs(int(record["text"]) - 50) <= 2
    outcome, text = decode(recogniser, path, resample=False)
    assert text == ""
    assert outcome.exit_code == 4
    assert f"{rate} Hz" in outcome.failures[0][1]
    assert "16000 Hz" in outcome.failures[0][1]


def test_D5_the_right_rate_passes_without_resampling(recogniser, tone):
    assert decode(recogniser, tone("x.wav", 50), resample=False)[1] == "x\t50\n"


def test_H7_too_long_is_refused_before_it_is_read_and_the_others_are_written(recogniser, tone):
    paths = [tone("a.wav", 10), tone("long.wav", 20, seconds=30.0, rate=8000), tone("b.wav", 30)]
    outcome, text = decode(recogniser, *paths, max_seconds=20.0)
    assert text == "a\t10\nb\t30\n"
    assert "30.0 s" in outcome.failures[0][1]
    assert "20 s" in outcome.failures[0][1]


def test_A1_shorten_that_cannot_be_read_names_the_coding(recogniser, tmp_path):
    header = (
        b"NIST_1A\n   1024\nsample_rate -i 16000\nchannel_count -i 1\nsample_n_bytes -i 2\nsample_count -i 16000\n"
        b"sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    )
    path = tmp_path / "x.wv1"
    path.write_bytes(header.ljust(1024) + bytes(range(256)) * 20)
    outcome, text = decode(recogniser, path)
    assert text == ""
    assert "shorten" in outcome.failures[0][1]


def wav(payload: bytes, declared: int) -> bytes:
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16)
    return b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE" + fmt + b"data" + struct.pack("<I", declared) + payload


def test_A3_streamed_wav_lasts_as_long_as_its_bytes(recogniser, tmp_path):
    payload = struct.pack("<1600h", *([16384] * 1600))
    (tmp_path / "open.wav").write_bytes(wav(payload, 0xFFFFFFFF))
    (tmp_path / "zero.wav").write_bytes(wav(payload, 0))
    outcome, text = decode(recogniser, tmp_path / "open.wav", tmp_path / "zero.wav", format="json")
    assert json.loads(text)["duration"] == 0.1
    assert json.loads(text)["id"] == "open"
    assert outcome.failures[0][0].endswith("zero.wav")


def test_A5_truncated_audio_is_a_failure_with_both_numbers(recogniser, tone):
    path = tone("cut.wav", 50, 0.1)
    data = path.read_bytes()
    path.write_bytes(data[: 44 + (len(data) - 44) * 2 // 5])
    outcome, text = decode(recogniser, path)
    assert text == ""
    assert "1600" in outcome.failures[0][1]
    assert "640" in outcome.failures[0][1]


def test_A7_decoded_length_wins_for_compressed_audio(recogniser, tone, tmp_path):
    import av

    source = tone("x.wav", 50, 1.0)
    m4a = tmp_path / "y.m4a"
    with av.open(str(source)) as reading, av.open(str(m4a), "w") as writing:
        stream = writing.add_stream("aac", rate=16000, layout="mono")
        for frame in reading.decode(audio=0):
            writing.mux(stream.encode(frame))
        writing.mux(stream.encode(None))
    renamed = tmp_path / "z.wav"
    renamed.write_bytes(m4a.read_bytes())
    outcome, text = decode(recogniser, m4a, renamed, format="json")
    assert not outcome.failures
    for record in map(json.loads, text.splitlines()):
        assert record["duration"] == pytest.approx(1.0, abs=0.13)  # two AAC frames of 1,024 samples at most
        assert abs(int(record["text"]) - 50) <= 5


def test_stdin_is_one_audio_stream(recogniser, tone):
    data = tone("x.wav", 50).read_bytes()
    assert decode(recogniser, "-", stdin=io.BytesIO(data))[1] == "stdin\t50\n"
    outcome, text = decode(recogniser, "-", stdin=io.BytesIO(b""))
    assert (text, outcome.failures[0][0]) == ("", "stdin")


def test_channel_is_chosen_or_mixed(recogniser, tone):
    path = tone("two.wav", 60, channels=2)  # 60 % and 30 %
    assert [decode(recogniser, path, channel=c)[1] for c in (0, 1, None)] == ["two\t60\n", "two\t30\n", "two\t45\n"]
    assert decode(recogniser, path, channel=1, format="ctm")[1].split()[1] == "2"
    outcome, _ = decode(recogniser, path, channel=2)
    assert "channel" in outcome.failures[0][1]


def test_an_unforeseen_error_of_a_reader_is_a_failure_of_that_file_alone(recogniser, tone, monkeypatch):
    real = loop.read_audio

    def read(source, **options):
        if "odd" in str(source):
            raise IndexError("deep inside")
        return real(source, **options)

    monkeypatch.setattr(loop, "read_audio", read)
    outcome, text = decode(recogniser, tone("odd.wav"), tone("b.wav", 20))
    assert text == "b\t20\n"
    assert outcome.failures[0][1] == "IndexError: deep inside"


def test_I7_a_folder_gets_one_file_per_input_and_keeps_structure(recogniser, tone, tmp_path):
    inputs, _ = find_inputs([tone("a/x.wav", 10), tone("b/x.wav", 20), tone("b/y.wav", 30)])
    out = tmp_path / "out"
    decode_files(recogniser, inputs, Folder(out, FORMATS["txt"](), inputs))
    written = {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert written == {"a/x.txt": "a/x\t10\n", "b/x.txt": "b/x\t20\n", "y.txt": "y\t30\n"}


def test_I7_existing_output_is_kept_unless_told(recogniser, tone, tmp_path):
    inputs, _ = find_inputs([tone("x.wav", 10)])
    out = tmp_path / "out"
    out.mkdir()
    (out / "x.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"x\.txt exists.*--overwrite"):
        Folder(out, FORMATS["txt"](), inputs)
    assert (out / "x.txt").read_text() == "precious"
    decode_files(recogniser, inputs, Folder(out, FORMATS["txt"](), inputs, overwrite=True))
    assert (out / "x.txt").read_text() == "x\t10\n"


def test_I7_an_output_never_replaces_an_input(tone, tmp_path):
    path = tone("x.wav").rename(tmp_path / "x.txt")
    inputs, _ = find_inputs([path])
    with pytest.raises(UsageError, match="is an input"):
        Folder(tmp_path, FORMATS["txt"](), inputs, overwrite=True)


def test_an_output_that_cannot_be_written_is_a_failure_of_that_input(recogniser, tone, tmp_path):
    inputs, _ = find_inputs([tone("x.wav", 10), tone("y.wav", 20)])
    out = tmp_path / "out"
    sink = Folder(out, FORMATS["txt"](), inputs)
    (out / "x.txt").mkdir()
    outcome = decode_files(recogniser, inputs, sink)
    assert (out / "y.txt").read_text() == "y\t20\n"
    assert outcome.exit_code == 3
    assert not list(out.glob(".*partial"))
