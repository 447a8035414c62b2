"""What a run ran on, and which code it was: for the record alone, so that nothing here fails."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import asr


def machine() -> dict[str, Any]:
    """Names of the host, its system, processor and GPUs."""
    gpus: list[str] = []
    with suppress(RuntimeError, AssertionError):
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"host": platform.node(), "system": platform.platform(), "cpu": _processor(), "gpus": gpus}


def code_version(folder: Path | None = None) -> dict[str, Any] | None:
    """Commit of the checkout that the package runs from, and whether its files differ from it; None: not a checkout.

    A repository that merely contains the place where the package is installed is not asked.
    """
    folder = folder or Path(asr.__file__).parents[1]
    if not (folder / ".git").exists():
        return None
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # to look only
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment, check=True)
        return done.stdout.strip()
    return None


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
