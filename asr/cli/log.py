"""`asr log`: one training, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def log(
    exp: Annotated[Path, typer.Argument(help="Experiment folder, also of a training that is running.")],
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Only the newest so many epochs; 0: all.")] = 0,
) -> None:
    """Print the epochs of a training: losses, error rates, learning rate, times, memory, and where its time went.

    docs/experiments.md says what each number is; `asr runs EXP` lists the folder's runs.
    """
    from asr.cli.console import table_console
    from asr.report.history import history, table

    head, found, foot = history(exp)
    console = table_console()
    console.print(head, markup=False, highlight=False, soft_wrap=True)
    if found.epochs:
        console.print(table(found.epochs[-last:]))
    console.print(foot, markup=False, highlight=False, soft_wrap=True)
