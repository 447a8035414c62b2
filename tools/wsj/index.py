"""Index files (.ndx): one `disc:path` a line, comments after `;`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from asr.data.text import read_lines
from asr.errors import DataError

_LINE = re.compile(r"(\d+)[-_.](\d+)[-_.](\d+)\s*:\s*(\S+)")


@dataclass(frozen=True)
class Entry:
    """One listed recording: `disc` as `11-2.1`; `path` from wsj0/ or wsj1/ on, in lower case, without .wv1 or .wv2."""

    disc: str
    path: str

    @property
    def id(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def speaker(self) -> str:
        return self.id[:3]


def read_index(path: Path) -> list[Entry]:
    """The entries in the order of the file, each once. Raises DataError naming file and line."""
    entries: dict[Entry, None] = {}
    for number, line in read_lines(path):
        line = line.partition(";")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise DataError(f"{path}:{number}: 'disc:path' such as 11_1_1:wsj0/si_tr_s/... is expected, got {line!r}")
        place = match[4].lower().replace("\\", "/").lstrip("./")
        place = re.sub(r"\.wv[12]$", "", place)  # the nvp lists of the November 1992 test have none
        if not re.fullmatch(r"wsj[01]/(.*/)?\w{8}", place):
            raise DataError(f"{path}:{number}: not the path of a WSJ recording: {match[4]!r}")
        entries[Entry(f"{match[1]}-{int(match[2])}.{match[3]}", place)] = None
    if not entries:
        raise DataError(f"{path}: lists no recordings")
    return list(entries)
