"""`asr runs`: what has been trained, when, where, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def runs(
    place: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[PLACE] [KEY=PATTERN]...",
            help="A ledger, or a folder at or above one; only runs whose values fit: name='lsh*', state=killed.",
        ),
    ] = None,
    last: Annotated[Optional[int], typer.Option("--last", "-n", min=1, help="Only the newest so many.")] = None,  # noqa: UP045
    json: Annotated[bool, typer.Option("--json", help="One JSON object a run, with everything known of it.")] = False,
) -> None:
    """List the runs of all trainings from their ledgers, the newest last: also those that failed or were killed.

    Without PLACE: the ledger that $ASR_LEDGER names, else those at and below the current folder.
    `running` holds the lock of its folder, `killed` ended without a word.
    """
    from json import dumps

    from asr.cli.console import table_console
    from asr.report.runs import chosen, find_ledgers, read_runs, remarks, table

    given = list(place or [])
    where = Path(given.pop(0)) if given and ("=" not in given[0] or Path(given[0]).exists()) else None
    found, notes = read_runs(find_ledgers(where))
    kept = chosen(found, given)
    kept = kept[-last:] if last else kept
    if json:
        for run in kept:
            print(dumps(run, ensure_ascii=False))
    else:
        console = table_console()
        console.print(table(kept))
        for remark in remarks(kept):
            console.print(remark, markup=False, highlight=False, soft_wrap=True)
    for note in notes:
        typer.echo(note, err=True)
