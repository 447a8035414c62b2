"""Checkpoints: written whole or not at all, read without running code."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr.errors import AsrError, DataError
from asr.files import replacing

FORMAT = 1


def save_checkpoint(path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
    """Write tensors and plain types in place of `path`, as `asr.files.replacing` does.

    Args:
        keep: where the checkpoint that stood at `path` goes on.

    Raises:
        AsrError: the disk does not take it; what stood at `path` before still does.
    """
    try:
        with replacing(path, keep) as file:
            torch.save({"format": FORMAT, **content}, file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as either
        raise AsrError(
            f"{path}: cannot be written ({_first_line(error)}); what stood there before still does: make "
            "room, then go on with --resume"
        ) from None


def load_checkpoint(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint with `weights_only=True`.

    Raises:
        DataError: no such file, damaged, or written by another program or format.
    """
    if not path.is_file():
        raise DataError(f"{path}: no checkpoint here; train the recipe first (asr train)")
    try:
        with zipfile.ZipFile(path) as archive:  # torch itself does not look at the check sums
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the check sum of {damaged} is wrong")
        content = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{path}: not a readable checkpoint, or a damaged one ({_first_line(error)})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a checkpoint of this program, or of another format than {FORMAT}")
    return content


def load_newest(paths: Sequence[Path]) -> tuple[Path, dict[str, Any], list[str]]:
    """The first of `paths`, newest first, that can be read: (its path, its content, why those before it could not).

    Raises:
        DataError: none can; one line for each that is there.
    """
    reasons: list[str] = []
    for path in (p for p in paths if p.exists()):
        try:
            return path, load_checkpoint(path), reasons
        except DataError as error:
            reasons.append(str(error))
    raise DataError("\n".join(reasons) or f"{paths[0]}: no checkpoint here; train the recipe first (asr train)")


def decodable(path: Path) -> Path:
    """The checkpoint that stands for an experiment: `averaged.pt` of a folder, `best.pt` where there is none."""
    if not path.is_dir():
        return path
    averaged = path / "averaged.pt"
    return averaged if averaged.is_file() else path / "best.pt"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].split(". This file can still be loaded")[0][:200]
