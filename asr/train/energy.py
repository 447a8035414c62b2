"""The electricity that a training takes, as far as the machine counts it.

- `nvml`: the counters of the training's GPUs on this machine, through NVML (package nvidia-ml-py; Volta and later).
- `rapl`: the counters of all CPU packages of the machine, whoever uses them (Linux, where /sys/class/powercap is
  readable; most systems show it to root alone). David et al., "RAPL", ISLPED 2010.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
POLL = 60.0  # seconds: a RAPL counter starts again from 0 after some 20 minutes of full load at the earliest


class EnergyMeter:
    """Counts from its making to `stop`."""

    def __init__(self, device: torch.device) -> None:
        self._gpus = _gpu_counters(device)
        self._at_start = [read() for read in self._gpus]
        self._packages = [zone for zone in map(RaplZone.open, sorted(POWERCAP.glob("intel-rapl:?"))) if zone]
        self._stopped = threading.Event()
        if self._packages:
            threading.Thread(target=self._poll, name="energy", daemon=True).start()

    def stop(self) -> dict[str, float] | None:
        """Joules by source; None where nothing counts."""
        self._stopped.set()
        found: dict[str, float] = {}
        with suppress(Exception):  # a driver that went away
            if self._gpus:
                found["nvml"] = sum(read() - start for read, start in zip(self._gpus, self._at_start, strict=True))
        if self._packages:
            found["rapl"] = sum(zone.joules() for zone in self._packages)
        return found or None

    def _poll(self) -> None:
        while not self._stopped.wait(POLL):
            for zone in self._packages:
                zone.joules()


class RaplZone:
    """The counter of one CPU package, followed across its wraps."""

    def __init__(self, folder: Path) -> None:
        self._counter, self._range = folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())
        self._last, self._sum = int(self._counter.read_text()), 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> RaplZone | None:
        with suppress(OSError, ValueError):
            return cls(folder)
        return None

    def joules(self) -> float:
        """Since the beginning; to be asked at least once for each time the counter wraps."""
        with self._lock:
            with suppress(OSError, ValueError):
                now = int(self._counter.read_text())
                self._sum += now - self._last if now >= self._last else now + self._range - self._last
                self._last = now
            return self._sum / 1e6


def _gpu_counters(device: torch.device) -> list[Any]:
    """A function for each GPU that the training has on this machine, that reads its joules since some moment."""
    if device.type != "cuda":
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        first = device.index if device.index is not None else torch.cuda.current_device()
        counters = []
        for index in range(here) if here > 1 else [first]:
            uuid = str(torch.cuda.get_device_properties(index).uuid)  # NVML's numbers know no CUDA_VISIBLE_DEVICES
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            counters.append(lambda handle=handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)
        for read in counters:
            read()
    except Exception:  # no package, no library, no permission, an older GPU: each has errors of its own
        return []
    return counters
