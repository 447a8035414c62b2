"""Kaldi's extended file names: a path, `ark:offset`, or a command with a pipe sign, of which none is ever run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from asr.errors import DataError

# Outside plain words a shell does something with these; in a command that has them, the file's name is not certain.
_SHELL = re.compile(r"[;&|<>$`(){}*?!#~\[\]\n]")
_READS = "only `sph2pipe -f wav -p -c CHANNEL FILE |` is understood, and read without running it"


@dataclass(frozen=True)
class Place:
    """Where data lies. `offset`: bytes into an archive; `channel` counts from 0."""

    path: Path
    offset: int | None = None
    channel: int | None = None


def parse(text: str, root: Path, where: str) -> Place:
    """The place an extended file name means; relative paths are relative to `root`.

    Raises DataError beginning with `where` for pipes but the one form, standard input and ranges: whoever wrote the
    file could have anything run on this machine, so there is no switch to allow it.
    """
    if text.startswith("|") or text == "-":
        raise DataError(f"{where}: {text!r} is no file to read from")
    if text.endswith("|"):
        return _sph2pipe(text[:-1].strip(), root, where)
    if text.endswith("]"):
        raise DataError(f"{where}: {text!r}: ranges of rows are not read; write the archive anew without them")
    archive = re.fullmatch(r"(.+):(\d+)", text)
    if archive and not (root / text).exists():
        return Place(root / archive[1], offset=int(archive[2]))
    return Place(root / text)


def _sph2pipe(command: str, root: Path, where: str) -> Place:
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words or words[0].rpartition("/")[2] != "sph2pipe":
        raise DataError(f"{where}: the command {command!r} is not run, as it could do anything; {_READS}")
    if _SHELL.search(command):
        raise DataError(f"{where}: the command {command!r} holds characters that a shell would act on; {_READS}")
    channel, files = None, []
    rest = iter(words[1:])
    for word in rest:
        if word == "-p":
            continue
        if word in ("-f", "-c"):
            value = next(rest, "")
        elif word[:2] in ("-f", "-c"):
            value = word[2:]
        elif word.startswith("-"):
            raise DataError(f"{where}: option {word!r} of {command!r} is not known; {_READS}")
        else:
            files.append(word)
            continue
        if word[:2] == "-f" and value not in ("wav", "rif", "riff"):
            raise DataError(f"{where}: {command!r} asks for the format {value!r}; {_READS}")
        if word[:2] == "-c":
            if value not in ("1", "2"):
                raise DataError(f"{where}: {command!r} asks for channel {value!r}; 1 and 2 are known; {_READS}")
            channel = int(value) - 1
    if len(files) != 1:
        raise DataError(f"{where}: {command!r} names {len(files)} files, one is expected; {_READS}")
    return Place(root / files[0], channel=channel)
