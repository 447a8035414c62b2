"""Where tables are printed: standard output."""

from __future__ import annotations

from rich.console import Console

WIDTH = 240  # columns of a file, which has no width to keep to


def table_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)
