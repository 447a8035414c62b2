from __future__ import annotations

import os

import pytest

from asr.decode.inputs import find_inputs


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def ids(*arguments):
    return [item.id for item in find_inputs(arguments)[0]]


def test_a_folder_is_searched_in_depth_sorted_and_only_for_audio(tmp_path):
    touch(tmp_path, "z.wav", "b/2.FLAC", "b/10.flac", "notes.txt", ".hidden.wav", ".cache/x.wav", "B/1.wv1")
    assert ids(tmp_path) == ["B/1", "b/10", "b/2", "z"]


def test_a_file_named_outright_is_tried_whatever_its_extension(tmp_path):
    touch(tmp_path, "notes.txt")
    (item,), _ = find_inputs([tmp_path / "notes.txt"])
    assert item.problem is None
    assert item.id == "notes"


def test_what_cannot_be_opened_stays_in_the_list_with_its_reason(tmp_path):
    (tmp_path / "empty").mkdir()
    missing, empty, long = find_inputs([tmp_path / "no.wav", tmp_path / "empty", "x" * 5000 + ".wav"])[0]
    assert missing.problem == "no such file"
    assert "without audio files" in empty.problem
    assert "too long" in long.problem


def test_I7_same_stem_in_two_folders_keeps_the_folders(tmp_path):
    touch(tmp_path, "a/x.wav", "b/x.wav", "b/y.wav")
    assert ids(tmp_path / "a/x.wav", tmp_path / "b/x.wav", tmp_path / "b/y.wav") == ["a/x", "b/x", "y"]
    assert ids(tmp_path / "a", tmp_path / "b") == ["a/x", "b/x", "y"]


def test_I7_same_stem_with_two_extensions_keeps_the_extensions(tmp_path):
    touch(tmp_path, "x.wav", "x.flac", "y.wav")
    assert ids(tmp_path / "x.wav", tmp_path / "x.flac", tmp_path / "y.wav") == ["x.wav", "x.flac", "y"]
    touch(tmp_path, "x.wav.wav")
    assert ids(tmp_path) == ["x.flac", "x.wav", "x.wav.wav", "y"]


def test_I7_same_file_twice_is_decoded_once_and_said(tmp_path, monkeypatch):
    touch(tmp_path, "a/x.wav")
    monkeypatch.chdir(tmp_path)
    items, notes = find_inputs(["a/x.wav", "a", "a/../a/x.wav", "-", "-"])
    assert [item.id for item in items] == ["x", "stdin"]
    assert len(notes) == 3
    assert all("decoded once" in note for note in notes)


def test_I7_ids_are_unique_and_without_whitespace(tmp_path):
    touch(tmp_path, "a b.wav", "a_b.wav", "a\tb.wav", "a_b-2.wav")
    found = ids(tmp_path)
    assert len(set(found)) == 4
    assert not any(character.isspace() for id in found for character in id)


def test_a_file_called_stdin_does_not_clash_with_stdin(tmp_path):
    touch(tmp_path, "d/stdin.wav")
    assert ids("-", tmp_path / "d/stdin.wav") == ["stdin", "stdin.wav"]


@pytest.mark.skipif(os.name == "nt", reason="file names there are Unicode")
def test_a_name_that_is_not_utf8_gives_a_printable_id(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"x")
    (item,), _ = find_inputs([tmp_path])
    assert item.id == "caf\ufffd"
    (item.id + item.name).encode("utf-8")


def test_a_loop_of_links_ends(tmp_path):
    touch(tmp_path, "a/x.wav")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a", target_is_directory=True)
    assert ids(tmp_path) == ["a/x"]
