"""Where results go: one stream, or one file per input in a folder. Each result is out before the next is begun."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TextIO

from asr.decode.formats import Format, Result
from asr.decode.inputs import Input, printable
from asr.errors import UsageError


class Sink(Protocol):
    def write(self, result: Result) -> None: ...


class Stream:
    """All results in one stream, flushed one by one."""

    def __init__(self, stream: TextIO, format: Format):
        self.stream, self.format = stream, format
        stream.write(format.header)

    def write(self, result: Result) -> None:
        self.stream.write(self.format.render(result))
        self.stream.flush()


class Folder:
    """`folder/ID.suffix` per input. A file appears whole or not at all.

    Raises:
        UsageError: before anything is written, when an output exists and `overwrite` is off, or would replace an input.
    """

    def __init__(self, folder: Path, format: Format, inputs: Sequence[Input], overwrite: bool = False):
        self.folder, self.format = folder, format
        outputs = [self.path(item.id) for item in inputs if item.problem is None]
        sources = {item.path.resolve() for item in inputs if item.path is not None and item.problem is None}
        for output in outputs:
            if output.resolve() in sources:
                raise UsageError(f"{printable(output)} is an input and would be overwritten; choose another -o")
        existing = [output for output in outputs if output.exists()]
        if existing and not overwrite:
            more = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
            raise UsageError(f"{printable(existing[0])} exists{more}; give --overwrite, or choose another -o")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"-o {printable(folder)}: {error.strerror}") from None

    def path(self, id: str) -> Path:
        return self.folder / f"{id}{self.format.suffix}"

    def write(self, result: Result) -> None:
        path = self.path(result.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{os.getpid()}.partial")
        try:
            partial.write_text(self.format.header + self.format.render(result), encoding="utf-8", newline="\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
