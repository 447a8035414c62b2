"""The sets of WSJ: where each is listed, and how many utterances it must have.

Counts are those of the published index files, the same in every toolkit that prepares WSJ from the discs.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr.errors import DataError
from wsj.discs import MERGED, Corpus
from wsj.index import Entry, read_index

Place = tuple[str, str]  # disc, path from wsj0/ or wsj1/ on


@dataclass(frozen=True)
class WsjSet:
    """`indices` list it; else it is every recording in `folder`. `count`: utterances it must have."""

    name: str
    count: int
    indices: tuple[Place, ...] = ()
    folder: Place = ("", "")


_SI84 = ("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx")
_SI200 = ("13-34.1", "wsj1/doc/indices/si_tr_s.ndx")
_NOV92 = "wsj0/doc/indices/test/nvp"
_DEV93 = "wsj1/doc/indices"
_NOV93 = "wsj1/doc/indices/wsj1/eval"

SETS = (
    WsjSet("train_si84", 7138, (_SI84,)),
    WsjSet("train_si284", 37416, (_SI200, _SI84)),
    WsjSet("test_dev93", 503, (("13-34.1", f"{_DEV93}/h1_p0.ndx"),)),
    WsjSet("test_dev93_5k", 513, (("13-34.1", f"{_DEV93}/h2_p0.ndx"),)),
    WsjSet("test_eval92", 333, (("11-13.1", f"{_NOV92}/si_et_20.ndx"),)),
    WsjSet("test_eval92_5k", 330, (("11-13.1", f"{_NOV92}/si_et_05.ndx"),)),
    WsjSet("test_eval93", 213, (("13-32.1", f"{_NOV93}/h1_p0.ndx"),)),
    WsjSet("test_eval93_5k", 215, (("13-32.1", f"{_NOV93}/h2_p0.ndx"),)),
    WsjSet("dev_dt_20", 503, folder=("13-16.1", "wsj1/si_dt_20")),
    WsjSet("dev_dt_05", 913, folder=("13-16.1", "wsj1/si_dt_05")),
)


def entries_of(one: WsjSet, corpus: Corpus, mic: str) -> dict[str, Entry]:
    """The recordings of a set by utterance id, whether or not their files are there.

    Raises DataError naming the missing disc or index, a wrong line of an index, or an id that stands for two files.
    """
    entries = [entry for place in one.indices for entry in _listed(one, place, corpus)]
    if not one.indices:
        entries = _in_folder(one, corpus, mic)
    found: dict[str, Entry] = {}
    for entry in entries:
        if _is_duplicate(entry):
            continue
        if found.setdefault(entry.id, entry) != entry:
            raise DataError(f"{one.name}: {entry.id} stands for {found[entry.id].path} and {entry.path}")
    return found


def _is_duplicate(entry: Entry) -> bool:
    """Speaker 401 on disc 11-2.1 is in the training set a second time; every published count is without."""
    return entry.disc == "11-2.1" and entry.path.startswith("wsj0/si_tr_s/401/")


def _listed(one: WsjSet, place: Place, corpus: Corpus) -> list[Entry]:
    disc, path = place
    file = corpus.find(path, disc)
    if file is None:
        raise DataError(f"{one.name}: {_absence(disc, path, corpus)}; the index {path} lists this set")
    return read_index(file)


def _in_folder(one: WsjSet, corpus: Corpus, mic: str) -> list[Entry]:
    disc, folder = one.folder
    entries = [
        Entry(disc, path.removesuffix(f".{mic}"))
        for path, places in corpus.files.items()
        if path.startswith(f"{folder}/") and path.endswith(f".{mic}") and (disc in places or MERGED in places)
    ]
    if not entries:
        raise DataError(f"{one.name}: {_absence(disc, folder, corpus)}; this set is the .{mic} files of {folder}")
    return sorted(entries, key=lambda entry: entry.path)


def _absence(disc: str, path: str, corpus: Corpus) -> str:
    """What is not there: the disc, or a part of it."""
    if disc in corpus.discs:
        return f"a part of disc {disc} is missing in {corpus.discs[disc]}"
    top = path.partition("/")[0]
    if corpus.is_merged(top):
        return f"a part of {top} (disc {disc}) is missing under {corpus.where}"
    return f"disc {disc} is missing under {corpus.where}"


def missing_audio(name: str, missing: list[Entry], corpus: Corpus, mic: str) -> list[str]:
    """One line for each disc that lacks recordings of a set."""
    lines = []
    for disc in sorted({entry.disc for entry in missing}):
        paths = sorted(f"{entry.path}.{mic}" for entry in missing if entry.disc == disc)
        lines.append(f"{name}: {_absence(disc, paths[0], corpus)}: {len(paths)} recordings, the first is {paths[0]}")
    return lines
