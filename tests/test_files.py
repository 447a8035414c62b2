"""Files whole or not there, in folders left as they were, and locks that end with their holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from asr.files import replacing, try_lock, write_atomically


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def fails():
        with replacing(path) as file:
            file.write(b"half of the ne")
            raise MemoryError

    with pytest.raises(MemoryError):
        fails()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_was_there_goes_on_under_another_name(tmp_path):
    path, keep = tmp_path / "a", tmp_path / "b"
    for text in (b"1", b"2", b"3"):
        with replacing(path, keep) as file:
            file.write(text)
    assert (path.read_bytes(), keep.read_bytes()) == (b"3", b"2")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    seen = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        seen.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("rename"), real_replace(a, b)))
    write_atomically(tmp_path / "a", "text")
    assert seen == ["file", "rename", "folder"]


def test_a_lock_is_held_by_one_and_ends_with_a_kill(tmp_path):
    path = tmp_path / "lock"
    holder = (
        "import sys, time; from asr.files import try_lock; f = open(sys.argv[1], 'a')\n"
        "print(try_lock(f.fileno()), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        with open(path, "a") as file:
            assert not try_lock(file.fileno())
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert try_lock(file.fileno())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
