"""Where the time and the memory of a training go."""

from __future__ import annotations

import ctypes
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.profiler import record_function


class Stopwatch:
    """Seconds by name. On a GPU by its own clock, which reads the time when the work asked for before has been done.

    There nothing waits: a stretch is in `seconds` as soon as the GPU has left it behind, or after `settle`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._asked: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()

    def _now(self) -> float:
        return time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        gpu = self.device.type == "cuda"
        start = self._mark() if gpu else self._now()
        with record_function(name):  # so that a profiler knows the parts of a step
            yield
        if isinstance(start, float):
            self.seconds[name] += self._now() - start
        else:
            self._asked.append((name, start, self._mark()))
            self._collect()

    def settle(self) -> None:
        """Wait until every stretch is in `seconds`."""
        if self._asked:
            self._asked[-1][-1].synchronize()
            self._collect()

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _collect(self) -> None:
        while self._asked and self._asked[0][-1].query():
            name, start, end = self._asked.popleft()
            self.seconds[name] += start.elapsed_time(end) / 1000


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory for the next step instead of handing it back page by page; elsewhere do nothing.

    A step frees and asks again for the same large blocks; giving them back costs 5 to 10 % of a step on a CPU.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of mallopt(3)
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in ((mmap_threshold, 32 << 20), (trim_threshold, 2**31 - 1), (top_pad, 256 << 20)):
            mallopt(name, value)


def give_back_freed_memory() -> None:
    """Let glibc hand all pages that are free back to the system; elsewhere do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def own_memory_mb(key: str = "RssAnon") -> float:
    """MB in memory without the pages of files, which the system can drop; or another line of /proc/self/status.

    Raises:
        OSError: the system does not tell.
    """
    return proc_field(Path("/proc/self/status"), f"{key}:") / 1024


def proc_field(path: Path, name: str) -> int:
    """The number after a name that begins a line of a file under /proc or /sys; 0 where no line does."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(words[1]) for words in lines if words and words[0] == name), 0)


def reset_peak_memory(device: torch.device) -> None:
    """Forget earlier peaks, so that `peak_memory_mb` is this training's own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets VmHWM


def peak_memory_mb(device: torch.device) -> float | None:
    """MB: on a GPU the most that torch had allocated, on a CPU the largest resident size of the whole process.

    None where the system does not tell (Windows without a GPU).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    with suppress(OSError):
        return own_memory_mb("VmHWM")
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)
