"""Transcripts by utterance id, from the session's .dot file, else from its prompts (.ptx).

A line is `text (utterance-id)`. The session of utterance 011c0201 is 011c02, its file 011c0200.dot.
"""

from __future__ import annotations

import re
from pathlib import Path

from asr.data.text import read_lines
from asr.errors import DataError
from wsj.discs import Corpus

# Prompts may have the number of the newspaper article after the id, within the brackets.
_LINE = re.compile(r"(.*?)\s*\((\w{8})(?:\W[^()]*)?\)\s*")


class Transcripts:
    """Reads each file once, when it is asked for. `faults`: what is wrong in them, one line each."""

    def __init__(self, corpus: Corpus) -> None:
        self.files = corpus.transcripts
        self.faults: list[str] = []
        self.from_prompts: list[str] = []  # ids without a line in a .dot file
        self.conflicts: list[str] = []  # ids with other words in another copy of their file
        self._read: dict[Path, dict[str, str]] = {}

    def find(self, id: str) -> str:
        """The text of an utterance, as it stands in the file. Raises DataError saying what is missing."""
        session = f"{id[:6]}00"
        for suffix in (".dot", ".ptx"):
            copies = [self._lines(path) for path in self.files.get(session + suffix, [])]
            texts = [lines[id] for lines in copies if id in lines]
            if texts:
                if suffix == ".ptx":
                    self.from_prompts.append(id)
                if len(set(texts)) > 1:
                    self.conflicts.append(id)
                return texts[0]
        known = self.files.get(f"{session}.dot", []) + self.files.get(f"{session}.ptx", [])
        if known:
            raise DataError(f"no line ({id}) in {', '.join(map(str, known))}")
        raise DataError(f"neither {session}.dot nor {session}.ptx is there")

    def _lines(self, path: Path) -> dict[str, str]:
        if path not in self._read:
            self._read[path] = self._parse(path)
        return self._read[path]

    def _parse(self, path: Path) -> dict[str, str]:
        texts: dict[str, str] = {}
        try:
            for number, line in read_lines(path):
                match = _LINE.fullmatch(line)
                if not match:
                    self.faults.append(f"{path}:{number}: 'text (utterance-id)' is expected, got {line[:60]!r}")
                elif texts.setdefault(match[2].lower(), match[1]) != match[1]:
                    self.faults.append(f"{path}:{number}: id {match[2]} stands twice, with other words")
        except DataError as error:
            self.faults.append(str(error))
        return texts
