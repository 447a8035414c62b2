"""Writes the discs: index files and transcripts with the quirks of the real ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fake_wsj.plan import Planned

UPPER = "13-16.1"  # this disc has its names in upper case
DUPLICATED, DUPLICATES = "401", "11-2.1"  # the training index names this speaker twice, also on this disc
EVAL93 = ("13-33.1", "13-32.1")  # where the files are, and where the indices say that they are


class Tree:
    """Numbered discs `root/11-1.1/wsj0/...`, or a merged tree `root/wsj0/...`."""

    def __init__(self, root: Path, merged: bool) -> None:
        self.root = root
        self.merged = merged

    def file(self, disc: str, path: str) -> Path:
        """The place of a file on its disc; its folder is made."""
        if self.merged:
            full = self.root / path
        else:
            full = self.root / disc / (path.upper() if disc == UPPER else path)
        full.parent.mkdir(parents=True, exist_ok=True)
        return full

    def write(self, disc: str, path: str, lines: Sequence[str], end: str = "\n", mark: bytes = b"") -> None:
        self.file(disc, path).write_bytes(mark + "".join(line + end for line in lines).encode())


def write_indices(tree: Tree, plan: Sequence[Planned]) -> dict[str, int]:
    """Write every index; returns the number of utterances of each set."""
    groups: dict[str, list[Planned]] = {}
    for one in plan:
        groups.setdefault(one.group.name, []).append(one)
    si84 = _lines(groups["si84"])
    twice = [line for line in _lines(groups["si84"], DUPLICATES) if f"/{DUPLICATED}/" in line]
    head = [";; File: {}, of a made-up corpus", ";;"]

    def index(disc: str, path: str, lines: list[str], end: str = "\n") -> None:
        tree.write(disc, path, [line.format(path.rpartition("/")[2]) for line in head] + lines, end)

    nov92, nov93 = "wsj0/doc/indices/test/nvp", "wsj1/doc/indices/wsj1/eval"
    h2 = groups["dt_05"][: max(1, len(groups["dt_05"]) * 513 // 913)]
    index("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx", twice + si84)
    index("13-34.1", "wsj1/doc/indices/si_tr_s.ndx", _lines(groups["si200"]), end="\r\n")
    index("13-34.1", "wsj1/doc/indices/h1_p0.ndx", _lines(groups["dt_20"], blank=" "))
    index("13-34.1", "wsj1/doc/indices/h2_p0.ndx", _lines(h2, blank=" "))
    index("11-13.1", f"{nov92}/si_et_20.ndx", _lines(groups["et_20"], suffix=""))
    index("11-13.1", f"{nov92}/si_et_05.ndx", _lines(groups["et_05"], suffix=""))
    index(EVAL93[1], f"{nov93}/h1_p0.ndx", _lines(groups["et_h1"], EVAL93[1], blank=" "))
    index(EVAL93[1], f"{nov93}/h2_p0.ndx", _lines(groups["et_h2"], EVAL93[1], blank=" "))
    return {
        "train_si84": len(si84),
        "train_si284": len(si84) + len(groups["si200"]),
        "test_dev93": len(groups["dt_20"]),
        "test_dev93_5k": len(h2),
        "test_eval92": len(groups["et_20"]),
        "test_eval92_5k": len(groups["et_05"]),
        "test_eval93": len(groups["et_h1"]),
        "test_eval93_5k": len(groups["et_h2"]),
        "dev_dt_20": len(groups["dt_20"]),
        "dev_dt_05": len(groups["dt_05"]),
    }


def _lines(plan: Iterable[Planned], disc: str = "", blank: str = "", suffix: str = ".wv1") -> list[str]:
    return [f"{(disc or one.disc).replace('-', '_').replace('.', '_')}:{blank}{one.path}{suffix}" for one in plan]


def write_transcripts(tree: Tree, plan: Iterable[Planned], raw: Mapping[str, str]) -> None:
    """Write a .dot file for each session: one with CRLF and a byte order mark, and one session as prompts only."""
    sessions: dict[str, list[Planned]] = {}
    for one in plan:
        sessions.setdefault(one.id[:6], []).append(one)
    prompts = next(name for name, ones in sessions.items() if ones[0].group.name == "dt_05")
    odd = next(name for name, ones in sessions.items() if ones[0].group.name == "si200")
    for name, ones in sessions.items():
        group = ones[0].group
        disc, folder = group.transcripts
        path = f"{folder}/{group.folder.split('/')[1]}/{ones[0].speaker}/{name}00"
        if name == prompts:
            lines = [f"{raw[one.id]} ({one.id.upper()}.1234.{number})" for number, one in enumerate(ones)]
            tree.write(disc, f"{path}.ptx", lines)
        elif name == odd:
            tree.write(disc, f"{path}.dot", [f"{raw[one.id]} ({one.id})" for one in ones], "\r\n", b"\xef\xbb\xbf")
        else:
            tree.write(disc, f"{path}.dot", [f"{raw[one.id]} ({one.id})" for one in ones])
