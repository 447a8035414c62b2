"""Reading and writing manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr.data.manifest import Utterance, read_manifest, scan_manifest, write_manifest
from asr.errors import DataError

GOOD = {"id": "u1", "audio": "wav/u1.wav", "duration": 1.5, "speaker": "s", "text": "ONE TWO"}


def write(path: Path, *items: dict | str) -> Path:
    path.write_text("".join((i if isinstance(i, str) else json.dumps(i)) + "\n" for i in items), encoding="utf-8")
    return path


def test_read(tmp_path):
    path = write(tmp_path / "m.jsonl", GOOD | {"start": 2, "phones": "AH0 N", "note": [1]}, GOOD | {"id": "u0"})
    first, second = read_manifest(path)
    assert first == Utterance("u1", tmp_path / "wav/u1.wav", 1.5, "s", "ONE TWO", 2.0, ("AH0", "N"))
    assert first.extra == {"note": [1]}
    assert first.words == ["ONE", "TWO"]
    assert second.id == "u0"  # the order of the file is kept
    assert second.phones is None


def test_G5_phones_are_whole_symbols(tmp_path):
    path = write(tmp_path / "m.jsonl", GOOD | {"phones": ["AH0", "N"]}, GOOD | {"id": "u2", "phones": " AH0\tN "})
    assert [u.phones for u in read_manifest(path)] == [("AH0", "N")] * 2


def test_relative_manifest_path_gives_absolute_audio(tmp_path, monkeypatch):
    write(tmp_path / "m.jsonl", GOOD)
    monkeypatch.chdir(tmp_path)
    assert read_manifest("m.jsonl")[0].audio == tmp_path / "wav/u1.wav"


def test_byte_order_mark_and_crlf(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    assert read_manifest(path)[0].text == "ONE TWO"


def test_B5_line_separator_in_a_text_stays_one_record(tmp_path):
    path = write(tmp_path / "m.jsonl", json.dumps(GOOD | {"text": "ONE\u2028TWO"}, ensure_ascii=False))
    (utterance,) = read_manifest(path)
    assert utterance.words == ["ONE", "TWO"]
    assert utterance.text == "ONE\u2028TWO"  # the reference is never altered


def without(key: str) -> dict:
    return {k: v for k, v in GOOD.items() if k != key}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *[(without(key), f"{key}: this key is missing") for key in GOOD],
        (GOOD | {"duration": 0}, "duration: 0 is not above 0"),
        (GOOD | {"duration": "1"}, "duration: a number of seconds is expected, got '1'"),
        (GOOD | {"duration": True}, "duration: a number"),
        (GOOD | {"start": -1}, "start: -1 is below 0"),
        (GOOD | {"start": None}, "start: a number"),
        (GOOD | {"id": ""}, "id: a non-empty string"),
        (GOOD | {"id": 7}, "id: a non-empty string is expected, got 7"),
        (GOOD | {"id": "a b"}, "id: 'a b' holds a space"),
        (GOOD | {"speaker": "a\u200b"}, r"speaker: invisible character U\+200B"),
        (GOOD | {"text": "A\u200bB"}, r"text: invisible character U\+200B at position 2"),
        (GOOD | {"text": ["A"]}, "text: a string is expected"),
        (GOOD | {"audio": "a\0b"}, "audio: holds a NUL"),
        (GOOD | {"phones": "A\u200bB"}, "phones|invisible"),
        (GOOD | {"phones": ["A B"]}, "phones: symbols"),
        ('{"id": "a", "id": "b"}', "id: this key stands twice"),
        ('{"duration": NaN}', "NaN is not a number"),
        ('{"duration": 1e999}', "this key is missing|duration"),
        ("[1]", "a JSON object is expected"),
        ("an1 ONE TWO", "not JSON"),
        ("[" * 100000, "nested too deeply|not JSON"),
    ],
)
def test_wrong_line_names_file_line_and_key(tmp_path, line, message):
    path = write(tmp_path / "m.jsonl", GOOD | {"id": "first"}, line)
    with pytest.raises(DataError, match=message) as error:
        read_manifest(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert "\n" not in str(error.value)


def test_infinite_duration_is_refused(tmp_path):
    path = write(tmp_path / "m.jsonl", json.dumps(GOOD).replace("1.5", "1e999"))
    with pytest.raises(DataError, match=r":1: duration: a number of seconds is expected, got inf"):
        read_manifest(path)


def test_C3_duplicate_id_names_both_lines(tmp_path):
    path = write(tmp_path / "m.jsonl", GOOD, GOOD | {"id": "u2"}, GOOD | {"audio": "other.wav"})
    with pytest.raises(DataError, match=r"m.jsonl:3: id: 'u1' stands already in line 1"):
        read_manifest(path)


def test_scan_goes_on_after_wrong_lines(tmp_path):
    path = write(tmp_path / "m.jsonl", "x", GOOD, "y", GOOD | {"id": "u2"})
    found = [(n, item if isinstance(item, DataError) else item.id) for n, item in scan_manifest(path)]
    assert [(n, i) for n, i in found if not isinstance(i, DataError)] == [(2, "u1"), (4, "u2")]
    assert [n for n, i in found if isinstance(i, DataError)] == [1, 3]


def test_empty_manifest(tmp_path):
    with pytest.raises(DataError, match="no utterances"):
        read_manifest(write(tmp_path / "m.jsonl"))


def make(id: str, folder: Path, **more) -> Utterance:
    return Utterance(id, folder / "a" / f"{id}.wav", 1.0, "s", "Ä ß\u00a0x", **more)


def test_C3_written_in_byte_order_whatever_the_locale(tmp_path):
    ids = ["a-1", "A2", "a1", "B1", "a_1", "é", "\U0001f600", "\uffee"]
    code = (
        "import sys; from pathlib import Path; from asr.data.manifest import *\n"
        "write_manifest('m.jsonl', [Utterance(i, Path('w.wav'), 1.0, 's', 'é') for i in sys.argv[1:]])"
    )
    seen = set()
    for locale, order in (("C", ids), ("en_US.UTF-8", ids[::-1]), ("C.UTF-8", ids[2:] + ids[:2])):
        env = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "1"}  # UTF-8 mode only so that argv arrives intact
        subprocess.run([sys.executable, "-c", code, *order], cwd=tmp_path, env=env, check=True)
        seen.add((tmp_path / "m.jsonl").read_bytes())
    (data,) = seen
    written = [json.loads(line)["id"].encode() for line in data.split(b"\n") if line]
    assert written == sorted(id.encode() for id in ids)
    assert data.endswith(b"}\n")
    assert b"\r" not in data


def test_round_trip_and_relative_audio(tmp_path):
    inside, outside = make("u1", tmp_path, phones=("A", "B"), extra={"k": {"x": 1}}), make("u2", Path("/elsewhere"))
    path = tmp_path / "m.jsonl"
    write_manifest(path, iter([outside, inside]))
    first, second = map(json.loads, path.read_text(encoding="utf-8").strip().split("\n"))
    assert first["audio"] == "a/u1.wav"
    assert second["audio"] == "/elsewhere/a/u2.wav"
    assert read_manifest(path) == [inside, outside]
    assert read_manifest(path)[0].extra == {"k": {"x": 1}}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"duration": float("nan")}, "not JSON compliant"),
        ({"id": "a b"}, "holds a space"),
        ({"audio": Path("/a/\udcff.wav")}, "surrogates"),
        ({"extra": {"text": "x"}}, "extra holds text"),
    ],
)
def test_write_refuses_what_cannot_be_read_and_leaves_the_old_file(tmp_path, bad, message):
    path = tmp_path / "m.jsonl"
    write_manifest(path, [make("old", tmp_path)])
    before = path.read_bytes()
    fields = {"id": "u", "audio": Path("/a.wav"), "duration": 1.0, "speaker": "s", "text": ""} | bad
    with pytest.raises(DataError, match=message):
        write_manifest(path, [make("good", tmp_path), Utterance(**fields)])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.jsonl"]


def test_write_refuses_duplicate_ids(tmp_path):
    with pytest.raises(DataError, match="utterance 'u': this id stands twice"):
        write_manifest(tmp_path / "m.jsonl", [make("u", tmp_path), make("u", tmp_path)])
