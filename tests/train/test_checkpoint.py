"""Files that are whole or not there, and damage that is named."""

from __future__ import annotations

import os
import random
import resource

import pytest
import torch

from asr.errors import AsrError, DataError
from asr.train.checkpoint import load_checkpoint, save_checkpoint

CONTENT = {"model": {"weight": torch.arange(2000.0).view(40, 50)}, "epoch": 3, "recipe": {"name": "ä"}}


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    loaded = load_checkpoint(path)
    assert torch.equal(loaded["model"]["weight"], CONTENT["model"]["weight"])
    assert (loaded["epoch"], loaded["recipe"]) == (3, {"name": "ä"})
    assert os.listdir(tmp_path) == ["last.pt"]


def test_same_content_same_bytes(tmp_path):
    save_checkpoint(tmp_path / "a.pt", CONTENT)
    save_checkpoint(tmp_path / "b.pt", CONTENT)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_damage_anywhere_is_one_line_or_harmless(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    good = path.read_bytes()
    rng = random.Random(0)
    cases = [good[:n] for n in (0, 1, 100, len(good) // 2, len(good) - 1)]
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 1, 20])):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        cases.append(bytes(bad))
    messages = []
    for bad in cases:
        path.write_bytes(bad)
        try:
            loaded = load_checkpoint(path)
            assert torch.equal(loaded["model"]["weight"], CONTENT["model"]["weight"])
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(m.startswith(f"{path}: ") and "\n" not in m for m in messages)


@pytest.mark.parametrize("content", [b"hello\n" * 50, b"PK\x03\x04 no zip", b"\x80\x04}."])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "best.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a readable checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize("content", [{"model": {}}, [1, 2], {"format": 99}, torch.zeros(3)])
def test_checkpoints_of_other_programs_are_refused(tmp_path, content):
    path = tmp_path / "best.pt"
    torch.save(content, path)
    with pytest.raises(DataError, match="not a checkpoint of this program"):
        load_checkpoint(path)


def test_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / "best.pt"
    torch.save({"format": 1, "model": Evil()}, path)
    with pytest.raises(DataError, match="not a readable checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_or_a_folder_says_what_to_do(tmp_path):
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(DataError, match="no checkpoint here; train the recipe first"):
            load_checkpoint(path)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(AsrError, match=r"last\.pt: cannot be written"):
            save_checkpoint(path, CONTENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.pt"]
