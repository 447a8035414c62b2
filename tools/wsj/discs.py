"""The WSJ0 and WSJ1 files below the given folders, whatever the layout and the case of names.

Understood are numbered discs (`11-13.1/wsj0/...`, also `11_13_1`, at any of a few levels) and merged trees
(`wsj0/...` without disc folders). Files are known by their lower-case path from `wsj0` or `wsj1` on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import DataError

MERGED = ""  # the "disc" of a tree without disc folders
_DISC = re.compile(r"(?:.*\D)?(1[13])[-_.](\d{1,2})[-_.](\d)")
_CONTENT = re.compile(r"doc|trans|transcrp|s[id]_(tr|dt|et)_\w+", re.IGNORECASE)
_WANTED = (".wv1", ".wv2", ".ndx", ".dot", ".ptx")
_DEPTH = 4  # folders above wsj0/ or wsj1/: LDC93S6A/csr_1/11-13.1/wsj0


@dataclass
class Corpus:
    """What was found. `files`: path from wsj0/ or wsj1/ on → disc → file; `discs`: disc → its folder."""

    roots: list[Path]
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    discs: dict[str, Path] = field(default_factory=dict)
    transcripts: dict[str, list[Path]] = field(default_factory=dict)  # lower-case file name → files

    def find(self, path: str, disc: str) -> Path | None:
        """The file of this path on this disc, else in a merged tree, else on any other disc.

        The last because the lists of the November 1993 test name disc 13-32.1 for files that are on 13-33.1.
        """
        places = self.files.get(path)
        if not places:
            return None
        return places.get(disc) or places.get(MERGED) or places[min(places)]

    def is_merged(self, top: str) -> bool:
        """Whether `top` (wsj0 or wsj1) is there without disc folders."""
        return any(MERGED in places and path.startswith(f"{top}/") for path, places in self.files.items())

    @property
    def where(self) -> str:
        return " and ".join(map(str, self.roots))


def find_corpus(roots: Iterable[tuple[str, Path]]) -> Corpus:
    """Search folders given as (`wsj0` or `wsj1`, folder); one folder may hold both corpora.

    Raises DataError for a folder that is missing or has nothing of the corpus in it.
    """
    roots = list(roots)
    corpus = Corpus(list(dict.fromkeys(root for _, root in roots)))
    for option, root in roots:
        if not root.is_dir():
            raise DataError(f"--{option} {root}: no such folder")
        before = len(corpus.files), len(corpus.discs)
        _search(corpus, root, option, _disc(root.name), 0)
        if (len(corpus.files), len(corpus.discs)) == before and not any(
            path.startswith(option) for path in corpus.files
        ):
            raise DataError(f"--{option} {root}: neither discs such as 11-13.1 nor a folder {option} in it")
    for paths in corpus.transcripts.values():
        paths[:] = sorted(set(paths))
    return corpus


def _disc(name: str) -> str:
    match = _DISC.fullmatch(name)
    return f"{match[1]}-{int(match[2])}.{match[3]}" if match else MERGED


def _search(corpus: Corpus, folder: Path, option: str, disc: str, depth: int) -> None:
    """Look for the top folder of the corpus; below it, `_collect` takes everything."""
    children = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if disc:
        corpus.discs.setdefault(disc, folder)
    tops = [child for child in children if child.name.lower() in ("wsj0", "wsj1")]
    for top in tops:
        _collect(corpus, top, top.name.lower(), disc, set())
    if not tops and any(_CONTENT.fullmatch(child.name) for child in children):
        _collect(corpus, folder, {"11": "wsj0", "13": "wsj1"}.get(disc[:2], option), disc, set())
    elif depth < _DEPTH:
        for child in children:
            if child not in tops:
                _search(corpus, child, option, _disc(child.name) or disc, depth + 1)


def _collect(corpus: Corpus, folder: Path, path: str, disc: str, above: set[tuple[int, int]]) -> None:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link to a folder that holds it
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = entry.name.lower().partition(";")[0]  # ISO 9660 copies may keep version numbers: X.WV1;1
            if entry.is_dir():
                _collect(corpus, Path(entry.path), f"{path}/{name}", disc, above | {here})
            elif name.endswith(_WANTED):
                corpus.files.setdefault(f"{path}/{name}", {}).setdefault(disc, Path(entry.path))
                if name.endswith((".dot", ".ptx")):
                    corpus.transcripts.setdefault(name, []).append(Path(entry.path))
