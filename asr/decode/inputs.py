"""Which audio the command line named, and a unique id for each."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

STDIN = "-"
# What a folder is searched for. A file named on the command line is tried whatever its extension.
EXTENSIONS = frozenset(
    f".{name}"
    for name in (
        *("wav", "wave", "flac", "sph", "nist", "wv1", "wv2", "aif", "aiff", "aifc", "au", "snd", "caf"),
        *("mp3", "mp2", "m4a", "aac", "mp4", "mov", "ogg", "oga", "opus", "webm", "mka", "wma", "amr"),
    )
)


@dataclass(frozen=True)
class Input:
    """One thing to decode. `path` is None for standard input; `problem` says why it cannot even be opened."""

    id: str
    path: Path | None
    problem: str | None = None

    @property
    def name(self) -> str:
        """How messages call it; always printable, also where a file name is not valid UTF-8."""
        return "stdin" if self.path is None else printable(self.path)


def find_inputs(arguments: Iterable[str | Path]) -> tuple[list[Input], list[str]]:
    """Expand files, folders and `-` in the order given; folders are searched in depth, in byte order of their paths.

    A missing path or a folder without audio stays in the list with its `problem`, so that it is counted and named.
    A file that several arguments name is decoded once. Ids are unique and free of whitespace: a file's stem, or its
    path within the folder that was searched. Inputs that would share an id all take their path below the folder
    common to every input, with the extension too where that is still ambiguous.

    Returns:
        The inputs, and a note for each repeated file.
    """
    found: list[tuple[Path | None, str, str | None]] = []
    for argument in arguments:
        if str(argument) == STDIN:
            found.append((None, "stdin", None))
        else:
            found.extend(_expand(Path(argument)))
    unique: dict[str, tuple[Path | None, str, str | None]] = {}
    notes = []
    for entry in found:
        path = entry[0]
        key = STDIN if path is None else os.path.abspath(path)
        if key in unique:
            notes.append(f"{'stdin' if path is None else printable(path)}: named more than once, decoded once")
        unique.setdefault(key, entry)
    entries = list(unique.values())
    ids = _unique_ids([(path, short) for path, short, _ in entries])
    return [Input(id, path, problem) for id, (path, _, problem) in zip(ids, entries, strict=True)], notes


def _expand(path: Path) -> list[tuple[Path | None, str, str | None]]:
    """(path, short name, problem) of everything `path` stands for."""
    try:
        if not path.is_dir():
            return [(path, path.stem, None if path.exists() else "no such file")]
        unreadable: list[OSError] = []
        files = sorted(_walk(path, unreadable), key=os.fsencode)
    except OSError as error:  # a name too long, a loop of symbolic links
        return [(path, path.stem or "input", error.strerror or str(error))]
    entries: list[tuple[Path | None, str, str | None]] = [
        (file, file.relative_to(path).with_suffix("").as_posix(), None) for file in files
    ]
    for refused in unreadable:
        folder = Path(refused.filename)
        entries.append((folder, folder.name, f"cannot be searched: {refused.strerror}"))
    if not entries:
        kinds = " ".join(sorted(EXTENSIONS))
        entries.append((path, path.name or "folder", f"folder without audio files (looked for {kinds})"))
    return entries


def _walk(top: Path, unreadable: list[OSError]) -> Iterable[Path]:
    seen: set[str] = set()  # symbolic links are followed, so loops must be cut
    for folder, folders, files in os.walk(top, onerror=unreadable.append, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS:
                yield Path(folder, name)


def _unique_ids(entries: Sequence[tuple[Path | None, str]]) -> list[str]:
    absolute = [Path(os.path.abspath(path)) for path, _ in entries if path is not None]
    try:
        common = Path(os.path.commonpath([path.parent for path in absolute])) if absolute else Path()
    except ValueError:  # Windows: several drives have nothing in common
        common = None
    choices = []
    for path, short in entries:
        names = [short]
        if path is not None:
            full = Path(os.path.abspath(path))
            relative = full.relative_to(common) if common else Path(full.drive.rstrip(":"), *full.parts[1:])
            names += [relative.with_suffix("").as_posix() if relative.name else short, relative.as_posix()]
        choices.append([re.sub(r"\s", "_", printable(name)) for name in names])
    level = [0] * len(choices)
    while True:
        ids = [names[i] for names, i in zip(choices, level, strict=True)]
        count = Counter(ids)
        clashing = [n for n, id in enumerate(ids) if count[id] > 1 and level[n] + 1 < len(choices[n])]
        if not clashing:
            return _number(ids)
        for n in clashing:
            level[n] += 1


def _number(ids: list[str]) -> list[str]:
    """`a_b.wav` beside `a b.wav`: the only names that can still be equal get a number."""
    taken = set(ids)
    used: set[str] = set()
    result = []
    for id in ids:
        unique, n = id, 1
        while unique in used or (n > 1 and unique in taken):
            n += 1
            unique = f"{id}-{n}"
        used.add(unique)
        result.append(unique)
    return result


def printable(path: str | Path) -> str:
    """`path` as valid Unicode; bytes that are none become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")
