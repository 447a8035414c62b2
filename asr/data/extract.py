"""Computes the features of many utterances with several processes, in order, whatever happens to single files."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import fbank
from asr.audio.read import read_audio
from asr.errors import AsrError, DataError

CHUNK = 16  # utterances a process takes at a time
AHEAD = 4  # chunks per process in flight: bounds memory when one file is slow
SERIAL_SECONDS = 7200.0  # of sound: computed here in the time that other processes need to start


@dataclass(frozen=True)
class Job:
    """One utterance to compute. Times in seconds; `channel` counts from 0, None is the mean of all."""

    id: str
    audio: str
    start: float
    duration: float
    channel: Any = None
    dither_seed: int | None = None


Result = tuple[str, "np.ndarray | str"]  # id, and (frames, dim) float32 or the reason why there are none


def extract(jobs: Sequence[Job], config: FeaturesConfig, workers: int) -> Iterator[Result]:
    """Yields every job's result in the order of `jobs`; `workers` 0 is one process per core.

    A progress bar goes to standard error where that is a terminal. On Ctrl-C, or when the caller stops listening, no
    process is left. Raises DataError if a process dies (killed for memory, or crashed by a file).
    """
    from rich.console import Console
    from rich.progress import BarColumn as Bar
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    chunks = [jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK)]
    workers = min(workers or _cores(), len(chunks))
    alone = workers == 1 or sum(job.duration for job in jobs) < SERIAL_SECONDS
    results = (_compute(chunk, config) for chunk in chunks) if alone else _parallel(chunks, config, workers)
    console = Console(stderr=True)
    columns = (TextColumn("features"), Bar(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("features", total=len(jobs))
        for chunk in results:
            progress.advance(task, len(chunk))
            yield from chunk


def _parallel(chunks: Sequence[Sequence[Job]], config: FeaturesConfig, workers: int) -> Iterator[list[Result]]:
    # spawn, not fork: a forked copy of a process that has used OpenMP or CUDA can hang.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    pending: deque[Future] = deque()
    waiting = iter(chunks)
    shown: set[str] = set()
    try:
        while True:
            while len(pending) < AHEAD * workers and (chunk := next(waiting, None)) is not None:
                pending.append(pool.submit(_compute_and_log, chunk, config))
            if not pending:
                break
            results, records = pending.popleft().result()
            for record in records:
                if record.msg not in shown or record.levelno < logging.WARNING:
                    logging.getLogger(record.name).handle(record)
                shown.add(record.msg)
            yield results
        pool.shutdown()
    except BrokenProcessPool:
        raise DataError(
            "a process that computes features died: out of memory, or a file crashes its decoder; data.workers=1"
            " computes without other processes and shows which"
        ) from None
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _compute(jobs: Sequence[Job], config: FeaturesConfig) -> list[Result]:
    return [(job.id, _features(job, config)) for job in jobs]


def _features(job: Job, config: FeaturesConfig) -> np.ndarray | str:
    try:
        if job.channel is not None and type(job.channel) is not int:
            return f"channel: a whole number from 0 is expected, got {job.channel!r}"
        audio = read_audio(
            job.audio,
            sample_rate=config.sample_rate,
            channel=job.channel,
            start=job.start,
            duration=job.duration,
        )
        try:
            features = fbank(audio.samples, config, job.dither_seed)
        except AsrError as error:
            return f"{job.audio}: {error}"
        return features.numpy()
    except AsrError as error:
        return str(error)
    except Exception as error:  # a decoder may fail in ways of its own; the other files must not suffer
        return f"{job.audio}: {type(error).__name__}: {error}"


# --- inside a worker process ---


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None  # plain text survives pickling
        self.records.append(record)


_collect = _Collect()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    torch.set_num_threads(1)
    root = logging.getLogger()
    root.addHandler(_collect)
    root.setLevel(logging.INFO)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compute_and_log(jobs: Sequence[Job], config: FeaturesConfig) -> tuple[list[Result], list[logging.LogRecord]]:
    results = _compute(jobs, config)
    records, _collect.records = _collect.records, []
    return results, records


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
