"""How much memory a training on a CPU may use. MB are of 2^20 bytes; Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from asr.train.config import AutoBatchConfig
from asr.train.measure import own_memory_mb, proc_field

ROOT = Path("/")
SPARE = 0.15  # of the memory: for what a trial does not see, batches of many shapes that leave fragments most of all
PAGES = ("inactive_file", "active_file")  # of files: counted as used by the control group, and dropped at need


def limit_mb(auto: AutoBatchConfig) -> float:
    """Of this process, pages of files not counted: what the recipe gives it, or its share of what is free.

    Raises:
        OSError: the system does not say what is free.
    """
    room = auto.memory_mb or own_memory_mb() + free_memory_mb() / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return (1 - SPARE) * room


def free_memory_mb(root: Path = ROOT) -> float:
    """What processes here can still get: of the machine, and within the control groups (containers, Slurm).

    Raises:
        OSError: the system does not say.
    """
    machine = proc_field(root / "proc/meminfo", "MemAvailable:") / 1024
    return max(0.0, min([machine, *_control_groups(root)]))


def _control_groups(root: Path) -> Iterator[float]:
    """MB left in each group that this process is in and that has a limit: version 2, and `memory` of version 1."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
                yield from _left(root / "sys/fs/cgroup/memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[float]:
    """Of a group and those above it; in a container the mount shows the group itself at its root."""
    inside = PurePosixPath(path.lstrip("/"))
    for folder in (mount / part for part in (inside, *inside.parents)):
        with suppress(OSError, ValueError):  # no such folder here, or `max`
            most = int((folder / limit).read_text())
            used = int((folder / usage).read_text())
            droppable = sum(proc_field(folder / "memory.stat", prefix + name) for name in PAGES)
            yield (most - used + droppable) / 2**20
