"""Preparing a corpus in shards: several processes or machines decode a part of its audio each, then one run merges.

    python tools/prepare_librispeech.py --data D --out data --shard 1/3        # and 2/3 and 3/3, in any order, anywhere
    python tools/prepare_librispeech.py --data D --out data --merge 3          # the manifests and the report

All runs take the same options and see the same `--data` and `--out`. A shard writes what it measured to OUT/shards and
no manifest; the merging run decodes nothing, and all else is done there, once, so that the result is that of one run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asr.data.audio_stats import AudioStats, Stretch, measure_audio
from asr.errors import DataError
from asr.files import write_atomically
from asr.wording import counted

ELSEWHERE = AudioStats(0, 16000, 16000, 0.0, "", 1.0, 0.0, 0.0)  # stands for what another shard measures
Measured = AudioStats | float | str  # what the samples show, or only seconds, or the reason why there is neither


class Shards:
    """What `--shard` and `--merge` ask for; with neither, everything is done here.

    Raises:
        DataError: a shard is missing, unreadable, or was run with other options or on other data.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.folder: Path = args.out / "shards"
        self.part: tuple[int, int] | None = args.shard
        self.merge: int | None = args.merge
        # A path may be spelt differently on another machine; whether it is the same, the keys of the results show.
        options = {k: v for k, v in vars(args).items() if k not in ("shard", "merge") and not isinstance(v, Path)}
        self._options = json.loads(json.dumps(options, default=str))
        self._found: dict[str, Any] = {}
        self._places: dict[str, int] = {}
        if self.merge is not None:
            self._read(self.merge)

    def share(self, keys: Sequence[tuple[Any, ...]], compute: Callable[[list[int]], Iterable[Any]]) -> list[Any]:
        """The result for each key; None where another shard has it.

        Args:
            keys: what names a piece of work in every run. Those that begin alike, with the same file, go together.
            compute: positions of keys → a result of plain types for each of them.
        """
        names = [json.dumps(key, ensure_ascii=False, default=str) for key in keys]
        if self.merge is not None:
            missing = [key[0] for key, name in zip(keys, names, strict=True) if name not in self._found]
            if missing:
                raise DataError(
                    f"{self.folder}: no shard has measured {missing[0]} (and {len(missing) - 1} more); "
                    "the data are not those of the shards: run them all again"
                )
            return [self._found[name] for name in names]
        number, count = self.part or (1, 1)
        places = [self._places.setdefault(str(key[0]), len(self._places)) for key in keys]
        mine = [i for i, place in enumerate(places) if place % count == number - 1]
        results: list[Any] = [None] * len(keys)
        for i, result in zip(mine, compute(mine), strict=True):
            results[i] = self._found[names[i]] = result
        return results

    def measure(
        self, stretches: Sequence[Stretch], measure: Callable[[list[Stretch]], Sequence[Measured]] = measure_audio
    ) -> list[Measured]:
        """What `measure` finds in each stretch of audio; `ELSEWHERE` if it is another shard's."""

        def compute(mine: list[int]) -> list[Any]:
            print(f"reading {counted(len(mine), 'piece')} of audio ...", file=sys.stderr)
            results = measure([stretches[i] for i in mine])
            return [asdict(result) if isinstance(result, AudioStats) else result for result in results]

        keys = [(str(s.audio.absolute()), s.channel, s.start, s.end) for s in stretches]
        return [
            ELSEWHERE if result is None else AudioStats(**result) if isinstance(result, dict) else result
            for result in self.share(keys, compute)
        ]

    def finish(self) -> bool:
        """Whether this run writes the sets; a shard writes what it measured instead, and says so."""
        if self.part is None:
            return True
        number, count = self.part
        content = {"options": self._options, "found": self._found}
        write_atomically(self._file(number, count), json.dumps(content, ensure_ascii=False))
        print(f"shard {number} of {count}: {len(self._found)} measured; when all are there: --merge {count}")
        return False

    def clear(self) -> None:
        """The sets are written: the shards have served."""
        if self.merge is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, count: int) -> None:
        absent = [f"{n}/{count}" for n in range(1, count + 1) if not self._file(n, count).is_file()]
        if absent:
            raise DataError(f"{self.folder}: --shard {', '.join(absent)} has not been run, or has not ended")
        for number in range(1, count + 1):
            path = self._file(number, count)
            try:
                content = json.loads(path.read_text("utf-8"))
                theirs, found = content["options"], content["found"]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}: cannot be read; run --shard {number}/{count} again") from None
            differ = sorted(k for k in theirs.keys() | self._options.keys() if theirs.get(k) != self._options.get(k))
            if differ:
                raise DataError(
                    f"{path}: was run with other options than this run: {', '.join(differ)}; give all the same"
                )
            self._found |= found

    def _file(self, number: int, count: int) -> Path:
        return self.folder / f"{number}-of-{count}.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--shard", type=shard, metavar="I/N", help="only measure part I of N of the audio")
    group.add_argument("--merge", type=int, metavar="N", help="write the sets from N parts measured before")


def shard(text: str) -> tuple[int, int]:
    """argparse type: I/N with 1 <= I <= N."""
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError
    return int(number), int(count)
