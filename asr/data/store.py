"""Features of a set, read from disk when they are asked for: memory-mapped parts, and an index of a few arrays.

A store's folder is named by a fingerprint of the feature settings, the code's version, and each utterance's id, span
and audio file (path, size, modification time): unchanged inputs find the store again, anything else gets one of its
own. Stores are raw: CMVN is applied on reading. Dither, wanted in training only, is added once, when the training set's
store is built, seeded by the utterance's id.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from asr.audio.config import FeaturesConfig
from asr.data.compact import Names
from asr.data.store_parts import DTYPE, read_parts
from asr.data.store_plan import StorePlan, plan_store
from asr.errors import DataError

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

MOST_OPEN = 64  # parts that are mapped at a time; each is an open file


class FeatureStore:
    """Features of a set of utterances. `store[id]` shares memory with the file: do not write into it.

    Attributes:
        ids: of all utterances, in manifest order. failed: id → the reason why there are no features.
        dim: of a frame.
    """

    def __init__(self, folder: Path) -> None:
        """Opens a store that was computed. Raises DataError if a part is missing or damaged."""
        self.folder = Path(folder)
        parts = read_parts(self.folder)
        self.dim = parts[0].dim
        self.failed = {id: reason for part in parts for id, reason in part.failed.items()}
        self.ids = Names([id for part in parts for id in part.ids])
        self._files = [part.data for part in parts]
        self._bounds = list(accumulate((len(part.ids) for part in parts), initial=0))
        self._lengths = np.fromiter((n for part in parts for n in part.frames), np.int32, len(self.ids))
        self._ends = np.concatenate([np.cumsum(part.frames, dtype=np.int64) for part in parts])  # in its part
        self._open: OrderedDict[int, Tensor] = OrderedDict()

    @classmethod
    def build(
        cls,
        folder: str | Path,
        utterances: Sequence[Utterance],
        config: FeaturesConfig,
        workers: int = 0,
        dither: bool = False,
        speed: float = 1.0,
        share: tuple[int, int] = (0, 1),
    ) -> FeatureStore:
        """The features of `utterances`, of which those are computed that `folder` does not hold already.

        `workers`: processes; 0 is one per core. The result does not depend on it. `dither`: this is a training set,
        add the noise `config.dither` asks for. `speed`: of the sound, 1.1 is shorter and higher by a tenth (Ko et al.,
        "Audio Augmentation for Speech Recognition", 2015). `share`: (rank, size), of so many processes that build it
        together; each begins with its share and then helps the others. An utterance whose audio cannot be used is left
        out and its reason kept in `failed`; it may choose a channel by `channel` (from 0) in its manifest line.

        Raises DataError if ids repeat, if nothing could be computed, or if the disk does not take it.
        """
        return cls.of(plan_store(folder, utterances, config, dither, speed), workers, share)

    @classmethod
    def of(cls, plan: StorePlan, workers: int = 0, share: tuple[int, int] = (0, 1)) -> FeatureStore:
        """As `build`, for a plan that is made already."""
        rank, size = share
        first = rank * plan.count // size
        plan.compute([(first + n) % plan.count for n in range(plan.count)], workers)
        store = cls(plan.folder)
        if not len(store):
            shutil.rmtree(plan.folder, ignore_errors=True)
            id, reason = next(iter(store.failed.items()))
            raise DataError(f"none of {len(store.ids)} utterances gave features; the first, {id!r}: {reason}")
        return store

    def frames(self, id: str) -> int:
        """Number of feature frames. Raises DataError for an id that is unknown or failed."""
        return int(self._lengths[self._find(id)])

    def lengths(self, ids: Iterable[str]) -> array[int]:
        """`frames` of many."""
        return array("i", map(self.frames, ids))

    def __getitem__(self, id: str) -> Tensor:
        """(frames, dim) float32, without copying. Raises DataError for an id that is unknown or failed."""
        row = self._find(id)
        end = int(self._ends[row])
        return self._part(bisect_right(self._bounds, row) - 1)[end - int(self._lengths[row]) : end]

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and (row := self.ids.find(id)) >= 0 and self._lengths[row] > 0

    def __len__(self) -> int:
        return len(self.ids) - len(self.failed)

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)  # another process maps the files itself

    def _find(self, id: str) -> int:
        row = self.ids.find(id)
        if row < 0 or not self._lengths[row]:
            reason = self.failed.get(id, "it is not in the store")
            raise DataError(f"{self.folder}: no features for utterance {id!r}: {reason}")
        return row

    def _part(self, number: int) -> Tensor:
        if number not in self._open:
            if len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)
            self._open[number] = _map(self._files[number], self.dim)
        self._open.move_to_end(number)
        return self._open[number]


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
