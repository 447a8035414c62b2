"""Computes the features of many utterances with several processes, in order, whatever happens to single files."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import numpy as np
import torch

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import fbank
from asr.audio.read import read_audio
from asr.audio.resample import resample
from asr.errors import AsrError, DataError

CHUNK = 16  # utterances a process takes at a time
AHEAD = 4  # chunks per process that may be computed ahead of a slow one: bounds memory
START = "spawn"  # not fork: a forked copy of a process that has used OpenMP or CUDA can hang
MAX_DEATHS = 20  # processes; more is not a matter of single files
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
    speed: float = 1.0  # 1.1: the sound played faster by a tenth, with pitch and formants


Result = tuple[str, "np.ndarray | str"]  # id, and (frames, dim) float32 or the reason why there are none


class Extractor:
    """Computes features with several processes, which it starts when they are first needed. A context manager.

    On Ctrl-C, or when the caller stops listening, no process is left.

    Args:
        workers: processes; 0 is one per core that falls to this process.
        total: utterances that there are to compute, in however many calls; seconds: their sound. Little work is done
            in this process. The results do not depend on it.
    """

    def __init__(self, config: FeaturesConfig, workers: int, total: int, seconds: float) -> None:
        self._config = config
        self._workers = min(workers or _cores(), -(-total // CHUNK))
        self._alone = self._workers == 1 or seconds < SERIAL_SECONDS
        self._crew: list[_Worker] = []
        self._shown: set[str] = set()

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._crew:
            worker.end()

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yields every job's result in the order of `jobs`. A call has to be read to its end before the next.

        A file that makes a process crash fails like any other; DataError if that goes on, or if processes cannot
        start at all.
        """
        if self._alone:
            return (result for job in jobs for result in _compute([job], self._config))
        if not self._crew:
            self._crew.extend(_Worker(self._config) for _ in range(self._workers))
        return (result for chunk in _parallel(jobs, self._config, self._crew, self._shown) for result in chunk)


class _Worker:
    """Another process, and the piece of work it has. It says "ready" once it has started."""

    def __init__(self, config: FeaturesConfig) -> None:
        context: Any = multiprocessing.get_context(START)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, config), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does
        self.ready = False
        self.piece: tuple[int, Sequence[Job]] | None = None

    def end(self) -> None:
        self.process.kill()  # not terminate: a forked child may carry a handler of this process that ignores it
        self.process.join()
        self.pipe.close()


def _parallel(
    jobs: Sequence[Job], config: FeaturesConfig, crew: list[_Worker], shown: set[str]
) -> Iterator[list[Result]]:
    """Hands out pieces (position of the first job, jobs) and yields their results by position."""
    waiting = deque((i, jobs[i : i + CHUNK]) for i in range(0, len(jobs), CHUNK))
    done: dict[int, list[Result]] = {}
    position = deaths = 0
    while position < len(jobs):
        for worker in crew:
            ahead = waiting and waiting[0][0] - position >= AHEAD * CHUNK * len(crew)
            if worker.ready and worker.piece is None and waiting and not ahead:
                worker.piece = waiting.popleft()
                worker.pipe.send(worker.piece[1])
        busy = {worker.pipe: i for i, worker in enumerate(crew) if worker.piece or not worker.ready}
        for pipe in connection.wait(list(busy)):
            index = busy[pipe]  # type: ignore[index]
            worker = crew[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                deaths += 1
                _take_back(worker, waiting, done, deaths)
                worker.end()
                crew[index] = _Worker(config)
                continue
            if worker.piece is None:
                worker.ready = True
                continue
            results, records = message
            _pass_on(records, shown)
            done[worker.piece[0]] = results
            worker.piece = None
        while position in done:
            results = done.pop(position)
            position += len(results)
            yield results


def _take_back(worker: _Worker, waiting: deque, done: dict[int, list[Result]], deaths: int) -> None:
    """The piece of a process that died is tried again job by job; a job that it died of alone has failed."""
    if worker.piece is None or deaths > MAX_DEATHS:
        raise DataError(
            "processes that compute features keep dying (out of memory?); data.workers=1 does without them"
            if worker.ready
            else "processes that compute features cannot start: a script must train under `if __name__ == '__main__':`,"
            " or set data.workers=1"
        )
    first, jobs = worker.piece
    if len(jobs) == 1:
        reason = "its decoder crashed, or memory ran out"
        done[first] = [(jobs[0].id, f"{jobs[0].audio}: the process that read it died: {reason}")]
    else:
        waiting.extendleft(reversed([(first + i, [job]) for i, job in enumerate(jobs)]))


def _pass_on(records: list[logging.LogRecord], shown: set[str]) -> None:
    """Logs what a worker would have; each worker may give the same warning once."""
    for record in records:
        if record.msg not in shown:
            logging.getLogger(record.name).handle(record)
        if record.levelno >= logging.WARNING:
            shown.add(record.msg)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started in here never hears Ctrl-C: only this one does, and ends the others."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread choose
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
            samples = resample(audio.samples, round(1000 * job.speed), 1000)
            features = fbank(samples, config, job.dither_seed)
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


def _work(pipe: connection.Connection, config: FeaturesConfig) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    root = logging.getLogger()
    root.addHandler(_collect)
    root.setLevel(logging.INFO)
    # Where the parent is gone, the pipe is: nothing is left to do.
    with suppress(EOFError, BrokenPipeError):
        pipe.send("ready")
        while True:
            results = _compute(pipe.recv(), config)
            records, _collect.records = _collect.records, []
            pipe.send((results, records))


def _cores() -> int:
    """Of this machine, shared with the processes that torchrun started beside this one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
