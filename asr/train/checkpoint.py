"""Checkpoints: written whole or not at all, read without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from asr.errors import DataError

FORMAT = 1


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain types under a temporary name, flush to the disk, then rename over `path`."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint with `weights_only=True`.

    Raises:
        DataError: no such file, damaged, or written by another program or format.
    """
    if not path.is_file():
        raise DataError(f"{path}: no checkpoint here; train the recipe first (asr train)")
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a readable checkpoint ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a checkpoint of this program, or of another format than {FORMAT}")
    return content
