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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asr.data.audio_stats import AudioStats, Stretch, measure_audio
from asr.errors import DataError
from asr.files import write_atomically

ELSEWHERE = AudioStats(0, 16000, 16000, 0.0, "", 1.0, 0.0, 0.0)  # stands for what another shard measures


class Shards:
    """What `--shard` and `--merge` ask for; with neither, everything is measured here.

    Raises:
        DataError: from `measure` and `finish`; a shard is missing, or was run with other options.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.folder: Path = args.out / "shards"
        self.part: tuple[int, int] | None = args.shard
        self.merge: int | None = args.merge
        self._found: dict[str, AudioStats | str] = {}
        self._asked = 0
        if self.merge is not None:
            self._read(self.merge)

    def measure(self, files: Sequence[Path]) -> list[AudioStats | str]:
        """Of each file its statistics or the reason why it cannot be used; `ELSEWHERE` if it is another shard's."""
        if self.merge is not None:
            missing = [file for file in files if str(file.absolute()) not in self._found]
            if missing:
                raise DataError(
                    f"{self.folder}: no shard has measured {missing[0]} (and {len(missing) - 1} more); run all shards "
                    "with the options of this run"
                )
            return [self._found[str(file.absolute())] for file in files]
        number, count = self.part or (1, 1)
        mine = [i for i in range(len(files)) if (self._asked + i) % count == number - 1]
        self._asked += len(files)
        results: list[AudioStats | str] = [ELSEWHERE] * len(files)
        for i, result in zip(mine, measure_audio([Stretch(files[i]) for i in mine]), strict=True):
            results[i] = self._found[str(files[i].absolute())] = result
        return results

    def finish(self) -> bool:
        """Whether this run writes the sets; a shard writes what it measured instead, and says so."""
        if self.part is None:
            return True
        number, count = self.part
        content = {key: value if isinstance(value, str) else asdict(value) for key, value in self._found.items()}
        write_atomically(self._file(number, count), json.dumps(content, ensure_ascii=False))
        print(f"shard {number} of {count}: {len(content)} files measured; when all are there: --merge {count}")
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
            content = json.loads(self._file(number, count).read_text("utf-8"))
            self._found |= {key: v if isinstance(v, str) else AudioStats(**v) for key, v in content.items()}

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
