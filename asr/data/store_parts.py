"""A feature store on disk: parts of about an hour of sound, each of them whole or not there.

    FOLDER/<fingerprint>/00000-of-00012.f32      all frames of the part's utterances, in manifest order
    FOLDER/<fingerprint>/00000-of-00012.json     what they are; written last, so that with it the part is there

Which utterances make up which part follows from the manifest alone, not from who computes it: any number of processes
and machines take parts until there are none left, and after a kill what is done is done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asr.errors import DataError
from asr.files import replacing, write_atomically

FORMAT = 2  # of the two files
DTYPE = np.dtype("<f4")
ABANDONED_SECONDS = 60.0  # since something was written into a temporary file whose process must be gone
PART_SECONDS = 3600.0  # of sound: some 100 MB, and what a kill costs at most


class Part(NamedTuple):
    """`frames` of each of `ids`, in the order of the file; 0 where there are none, and the reason in `failed`."""

    data: Path
    ids: list[str]
    frames: list[int]
    failed: dict[str, str]
    dim: int
    av: bool  # whether the package `av`, which reads more formats, was there


def split(seconds: Iterable[float]) -> list[int]:
    """The first utterance of each part, and behind them the number of utterances, from the length of each."""
    bounds, total, count = [0], 0.0, 0
    for count, length in enumerate(seconds, 1):
        total += length
        if total >= PART_SECONDS:
            bounds.append(count)
            total = 0.0
    return bounds if bounds[-1] == count else [*bounds, count]


def stem(number: int, count: int) -> str:
    return f"{number:05d}-of-{count:05d}"


def read_part(folder: Path, number: int, count: int) -> Part | None:
    """What a part holds; None if it is not there. Raises DataError, naming the file, if it is damaged."""
    data = folder / f"{stem(number, count)}.f32"
    index = data.with_suffix(".json")
    try:
        tree = json.loads(index.read_text("utf-8"))
        part = Part(data, tree["ids"], tree["frames"], tree["failed"], tree["dim"], tree["av"])
        if tree["format"] != FORMAT or len(part.ids) != len(part.frames):
            raise ValueError(f"format {tree['format']}, {len(part.ids)} ids")
        wanted, found = sum(part.frames) * part.dim * DTYPE.itemsize, data.stat().st_size
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{index}: damaged ({type(error).__name__}: {error})") from None
    if found != wanted:
        raise DataError(f"{data}: damaged ({found} bytes, {wanted} are expected)")
    return part


def write_part(
    folder: Path,
    number: int,
    count: int,
    results: Iterable[tuple[str, np.ndarray | str]],
    dim: int = 0,
    av: bool = True,
) -> Part:
    """Write part `number` of `count` (from 0): of each id its features (frames, dim), or the reason for having none.

    dim: of features where there are none in this part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{stem(number, count)}.f32"
    ids: list[str] = []
    frames: list[int] = []
    failed: dict[str, str] = {}
    with replacing(data) as file:
        for id, result in results:
            ids.append(id)
            if isinstance(result, str):
                failed[id] = result
                frames.append(0)
            else:
                file.write(np.ascontiguousarray(result, dtype=DTYPE).data)
                frames.append(len(result))
                dim = result.shape[1]
    part = Part(data, ids, frames, failed, dim, av)
    index = {"format": FORMAT, **{key: value for key, value in part._asdict().items() if key != "data"}}
    write_atomically(data.with_suffix(".json"), json.dumps(index, ensure_ascii=False))
    for left in folder.glob(f".{data.stem}.*.tmp"):  # by the killed; others work where no locks are
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                left.unlink()
    return part


def read_parts(folder: Path) -> Sequence[Part]:
    """All parts of a store, in order. Raises DataError if one is missing or damaged, or if there are none."""
    counts = {path.stem.partition("-of-")[2] for path in folder.glob("[0-9]*-of-[0-9]*[0-9].json")}
    if not counts:
        raise DataError(f"{folder}: no feature store (there are no parts of one, files such as {stem(0, 1)}.json)")
    if len(counts) > 1:
        raise DataError(f"{folder}: no usable feature store (there are parts of {' and of '.join(sorted(counts))})")
    count = int(counts.pop())
    parts = [read_part(folder, number, count) for number in range(count)]
    missing = [f"{number}" for number, part in enumerate(parts) if part is None]
    if missing:
        raise DataError(f"{folder}: no usable feature store (of its {count} parts there is no {', '.join(missing)})")
    if len({part.dim for part in parts if part}) > 1:
        raise DataError(f"{folder}: no usable feature store (its parts do not have the same number of features)")
    return [part for part in parts if part]
