"""Runs the programs in tools/ without the cost of a new process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run_tool(monkeypatch, capsys) -> Callable[..., Done]:
    """`run_tool("prepare_an4", *arguments)` does what `python tools/prepare_an4.py ARGUMENTS` would."""
    monkeypatch.syspath_prepend(str(TOOLS))

    def run(program: str, *arguments: object) -> Done:
        path = str(TOOLS / f"{program}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(path, run_name="__main__")
        return Done(end.value.code, *capsys.readouterr())

    return run
