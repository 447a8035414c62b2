"""Which features a set needs, and the computing of those that are missing, by as many processes as there are."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import VERSION as FBANK_VERSION
from asr.audio.fbank import check_config
from asr.data.extract import Extractor, Job, Result
from asr.data.store_parts import FORMAT, Part, read_part, split, stem, write_part
from asr.errors import DataError
from asr.files import locked
from asr.wording import counted

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

log = logging.getLogger(__name__)

POLL = 0.2  # seconds between two looks at parts that other processes compute


@dataclass(frozen=True)
class StorePlan:
    """A feature store that there is to be. `bounds`: the first utterance of each part, and behind them their number."""

    folder: Path
    utterances: Sequence[Utterance]
    config: FeaturesConfig
    dither: float
    speed: float
    bounds: list[int]

    @property
    def count(self) -> int:
        """Of parts."""
        return len(self.bounds) - 1

    def part(self, number: int) -> Sequence[Utterance]:
        return self.utterances[self.bounds[number] : self.bounds[number + 1]]

    def missing(self, numbers: Iterable[int] | None = None, warn: bool = False) -> list[int]:
        """The parts (of these) that are not there, or cannot be used. warn: say which are damaged."""
        return [n for n in (range(self.count) if numbers is None else numbers) if not self._usable(n, warn)]

    def compute(self, numbers: Iterable[int], workers: int = 0) -> None:
        """See to it that these parts are there, in this order; those that other processes have in hand come last.

        `workers`: processes, 0 is one per core. An utterance whose audio cannot be used is listed with its reason.

        Raises DataError if the disk does not take them.
        """
        todo = deque(self.missing(numbers, warn=True))
        if not todo:
            return
        done: list[Part] = []
        began = time.perf_counter()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _name_old(self.folder.parent)
            self._compute(todo, workers, done)
        except OSError as error:
            raise DataError(f"{self.folder.parent}: cannot store features: {error.strerror or error}") from None
        finally:
            _report(done, time.perf_counter() - began)

    def _compute(self, todo: deque[int], workers: int, done: list[Part]) -> None:
        utterances = [u for number in todo for u in self.part(number)]
        seconds = sum(u.duration for u in utterances)
        held, told = 0, False
        with Extractor(self.config, workers, len(utterances), seconds) as extractor, _bar(len(utterances)) as shown:
            while todo:
                number = todo.popleft()
                with locked(self.folder / f".{stem(number, self.count)}.lock") as mine:
                    if mine and not self._usable(number):
                        jobs = [_job(utterance, self.dither, self.speed) for utterance in self.part(number)]
                        results = shown(extractor(jobs))
                        dim, av = self.config.dim, _has_av()
                        done.append(write_part(self.folder, number, self.count, results, dim, av))
                if mine:
                    held = 0
                    continue
                todo.append(number)
                held += 1
                if held >= len(todo):  # others have all that is left
                    if not told:
                        left = counted(len(todo), "part")
                        log.info("%s: waiting for %s that other processes compute", self.folder, left)
                    told, held = True, 0
                    time.sleep(POLL)

    def _usable(self, number: int, warn: bool = False) -> bool:
        try:
            part = read_part(self.folder, number, self.count)
        except DataError as error:
            if warn:
                log.warning("%s: computed anew", error)
            return False
        # `av` has come since: try those again that failed
        return part is not None and not (part.failed and not part.av and _has_av())


def plan_store(
    folder: str | Path,
    utterances: Sequence[Utterance],
    config: FeaturesConfig,
    dither: bool = False,
    speed: float = 1.0,
) -> StorePlan:
    """The plan of a store in `folder`, under the name that its fingerprint gives it. Computes nothing.

    Raises DataError if ids repeat or there are none, and as `check_config`.
    """
    check_config(config)
    if len({utterance.id for utterance in utterances}) != len(utterances):
        raise DataError(f"{folder}: cannot store features: utterance ids repeat")
    if not utterances:
        raise DataError(f"{folder}: cannot store features: there are no utterances")
    noise = config.dither if dither else 0.0
    bounds = split(u.duration for u in utterances)
    name = fingerprint((_job(utterance, noise, speed) for utterance in utterances), config, noise, bounds)
    return StorePlan(Path(folder) / name, utterances, config, noise, speed, bounds)


def fingerprint(jobs: Iterable[Job], config: FeaturesConfig, dither: float, bounds: Sequence[int]) -> str:
    """16 hex digits that change with anything the features and their parts depend on."""
    settings = config.model_dump(exclude={"cmvn", "dither"})
    digest = hashlib.sha256(json.dumps([FORMAT, FBANK_VERSION, settings, dither, bounds], sort_keys=True).encode())
    stats: dict[str, Any] = {}
    for job in jobs:
        if job.audio not in stats:
            try:
                status = os.stat(job.audio)
                stats[job.audio] = (status.st_size, status.st_mtime_ns)
            except (OSError, ValueError):
                stats[job.audio] = None
        line: tuple[Any, ...] = (job.id, job.audio, stats[job.audio], job.start, job.duration, repr(job.channel))
        if job.speed != 1.0:
            line = (*line, job.speed)
        digest.update(json.dumps(line).encode())
    return digest.hexdigest()[:16]


def _job(utterance: Utterance, dither: float, speed: float) -> Job:
    return Job(
        id=utterance.id,
        audio=str(utterance.audio.absolute()),
        start=utterance.start,
        duration=utterance.duration,
        channel=utterance.extra.get("channel"),
        dither_seed=zlib.crc32(utterance.id.encode()) if dither > 0 else None,
        speed=speed,
    )


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    """A function that passes results on and shows a progress bar, where standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("features", total=total)

        def shown(results: Iterator[Result]) -> Iterator[Result]:
            for result in results:
                progress.advance(task)
                yield result

        yield shown


def _report(parts: Sequence[Part], seconds: float) -> None:
    """What was computed here."""
    if not parts:
        return
    total, frames = (sum(len(part.ids) for part in parts), sum(sum(part.frames) for part in parts))
    failed = {id: reason for part in parts for id, reason in part.failed.items()}
    rate = frames / seconds if seconds > 0 else 0.0
    print(
        f"features: {total - len(failed)} of {counted(total, 'utterance')}, {frames} frames in {seconds:.1f} s"
        f" ({rate:.0f} frames/s), {len(failed)} failed",
        file=sys.stderr,
    )
    for id, reason in failed.items():
        log.warning("utterance %s left out: %s", id, reason)


def _name_old(folder: Path) -> None:
    """Say which stores are of format 1, an `index.json` and a `features.f32`, which nothing reads any more."""
    for index in folder.glob("*/index.json"):
        if (index.parent / "features.f32").exists():
            log.warning("%s: features as an earlier version stored them, not used any more; delete it", index.parent)


def _has_av() -> bool:
    return importlib.util.find_spec("av") is not None
