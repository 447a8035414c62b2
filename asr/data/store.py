"""Features on disk: one flat file of little-endian float32, memory-mapped, and an index of where each utterance lies.

    FOLDER/<fingerprint>/features.f32    all frames of all utterances, in manifest order
    FOLDER/<fingerprint>/index.json      id → [first frame, frames]; id → reason for those that failed

The fingerprint covers the feature settings, the code's version, and each utterance's id, span and audio file (path,
size, modification time): unchanged inputs find the store again, anything else gets one of its own. Stores are raw: CMVN
is applied on reading. Dither, wanted in training only, is added once, when the training set's store is built, seeded by
the utterance's id.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import VERSION as FBANK_VERSION
from asr.audio.fbank import check_config
from asr.data.extract import Job, extract
from asr.errors import DataError
from asr.files import sync, sync_folder, write_atomically

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

log = logging.getLogger(__name__)

FORMAT = 1  # of the folder's two files
DAY = 86400.0  # seconds
DTYPE = np.dtype("<f4")


class FeatureStore:
    """Features of a set of utterances. `store[id]` shares memory with the file: do not write into it."""

    def __init__(self, folder: Path) -> None:
        """Opens a store that `build` wrote. Raises DataError if its files are missing or do not fit together."""
        self.folder = Path(folder)
        try:
            index = json.loads((self.folder / "index.json").read_text("utf-8"))
            data = self.folder / "features.f32"
            self.dim: int = index["dim"]
            self.failed: dict[str, str] = index["failed"]
            self._where: dict[str, list[int]] = index["utterances"]
            total = sum(frames for _, frames in self._where.values())
            if index["format"] != FORMAT or data.stat().st_size != total * self.dim * DTYPE.itemsize:
                raise ValueError("its two files do not fit together")
            self._had_av: bool = index["av"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.folder}: no usable feature store ({error}); delete the folder to compute it anew"
            ) from None
        self._frames = _map(data, self.dim)

    @classmethod
    def build(
        cls,
        folder: str | Path,
        utterances: Sequence[Utterance],
        config: FeaturesConfig,
        workers: int = 0,
        dither: bool = False,
        speed: float = 1.0,
    ) -> FeatureStore:
        """The features of `utterances`, computed unless `folder` holds them already.

        `workers`: processes; 0 is one per core. The result does not depend on it. `dither`: this is a training set,
        add the noise `config.dither` asks for. `speed`: of the sound, 1.1 is shorter and higher by a tenth (Ko et al.,
        "Audio Augmentation for Speech Recognition", 2015). An utterance whose audio cannot be used is left out and its
        reason kept in `failed`; an utterance may choose a channel by `channel` (from 0) in its manifest line.

        Raises DataError if ids repeat, if nothing could be computed, or if the disk does not take it.
        """
        check_config(config)
        if len({utterance.id for utterance in utterances}) != len(utterances):
            raise DataError(f"{folder}: cannot store features: utterance ids repeat")
        if not utterances:
            raise DataError(f"{folder}: cannot store features: there are no utterances")
        noise = config.dither if dither else 0.0
        jobs = [_job(utterance, noise, speed) for utterance in utterances]
        target = Path(folder) / fingerprint(jobs, config, noise)
        if target.exists():
            try:
                store = cls(target)
                if not (store.failed and not store._had_av and _has_av()):  # `av` has come since: try those again
                    return store
            except DataError as error:
                log.warning("%s: computed anew", error)
            shutil.rmtree(target)
        try:
            _write(target, jobs, config, workers)
        except OSError as error:
            raise DataError(f"{folder}: cannot store features: {error.strerror or error}") from None
        return cls(target)

    def frames(self, id: str) -> int:
        """Number of feature frames. Raises DataError for an id that is unknown or failed."""
        return self._find(id)[1]

    def __getitem__(self, id: str) -> Tensor:
        """(frames, dim) float32, without copying. Raises DataError for an id that is unknown or failed."""
        first, count = self._find(id)
        return self._frames[first : first + count]

    def __contains__(self, id: object) -> bool:
        return id in self._where

    def __len__(self) -> int:
        return len(self._where)

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)  # another process maps the file itself

    def _find(self, id: str) -> list[int]:
        if id in self._where:
            return self._where[id]
        reason = self.failed.get(id, "it is not in the store")
        raise DataError(f"{self.folder}: no features for utterance {id!r}: {reason}")


def fingerprint(jobs: Sequence[Job], config: FeaturesConfig, dither: float) -> str:
    """16 hex digits that change with anything the features depend on."""
    settings = config.model_dump(exclude={"cmvn", "dither"})
    digest = hashlib.sha256(json.dumps([FORMAT, FBANK_VERSION, settings, dither], sort_keys=True).encode())
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


def _write(target: Path, jobs: Sequence[Job], config: FeaturesConfig, workers: int) -> None:
    """Everything goes to a folder of another name, which gets its own when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_unfinished(target.parent)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent, ignore_cleanup_errors=True) as name:
        unfinished = Path(name) / target.name
        unfinished.mkdir()
        where: dict[str, tuple[int, int]] = {}
        failed: dict[str, str] = {}
        total = 0
        with open(unfinished / "features.f32", "wb") as file:
            for id, result in extract(jobs, config, workers):
                if isinstance(result, str):
                    failed[id] = result
                    continue
                file.write(np.ascontiguousarray(result, dtype=DTYPE).data)
                where[id] = (total, len(result))
                total += len(result)
            sync(file)  # a store that a power cut left half empty would be trained on
        _report(jobs, failed, total, time.perf_counter() - began)
        if not where:
            id, reason = next(iter(failed.items()))
            raise DataError(f"none of {len(jobs)} utterances gave features; the first, {id!r}: {reason}")
        index = {"format": FORMAT, "dim": config.dim, "av": _has_av(), "utterances": where, "failed": failed}
        write_atomically(unfinished / "index.json", json.dumps(index, ensure_ascii=False))
        try:
            os.replace(unfinished, target)
            sync_folder(target.parent)
        except OSError:
            if not target.exists():  # else another run was faster, with the same inputs
                raise


def _clear_unfinished(folder: Path) -> None:
    """Remove what a killed process left behind; one at work has written to its file within the last day."""
    for features in folder.glob(".unfinished-*/*/features.f32"):
        if time.time() - features.stat().st_mtime > DAY:
            shutil.rmtree(features.parent.parent, ignore_errors=True)


def _report(jobs: Sequence[Job], failed: dict[str, str], frames: int, seconds: float) -> None:
    rate = frames / seconds if seconds > 0 else 0.0
    print(
        f"features: {len(jobs) - len(failed)} of {len(jobs)} utterances, {frames} frames in {seconds:.1f} s"
        f" ({rate:.0f} frames/s), {len(failed)} failed",
        file=sys.stderr,
    )
    for id, reason in failed.items():
        log.warning("utterance %s left out: %s", id, reason)


def _map(path: Path, dim: int) -> Tensor:
    """(frames, dim). Copy-on-write where the system grants it, so that a stray in-place write harms nobody's file."""
    try:
        array = np.memmap(path, DTYPE, mode="c").reshape(-1, dim)
    except OSError:  # a private mapping larger than memory may be refused; a read-only one never is
        array = np.memmap(path, DTYPE, mode="r").reshape(-1, dim)
    if sys.byteorder == "big":
        array = array.astype("=f4")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def _has_av() -> bool:
    return importlib.util.find_spec("av") is not None
