"""`asr compare`: models side by side in one table."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from asr.report.experiments import Experiment


class Batches(str, Enum):
    common = "common"
    own = "own"


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="(EXP|RECIPE)... [KEY=VALUE]...",
            help="Experiment folders and recipes; overrides apply to all recipes.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of tables and plots. Default: `results` beside the first target."),
    ] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train recipes anew that are already trained.")] = False,
    batches: Annotated[
        Batches,
        typer.Option(
            help="For recipes with training.batch_frames=auto: one size that fits all (common), or for each the "
            "largest that fits it (own)."
        ),
    ] = Batches.common,
    device: Annotated[str, typer.Option(help="Where to decode: auto, cpu, cuda, …")] = "auto",
) -> None:
    """Train what is not trained yet, one model after the other, evaluate all, and print the table.

    Each model is scored on the test sets of its recipe, or on dev where there are none. Writes comparison.md,
    comparison.csv, compare.json and three plots.
    Exit code: 0 all rows complete, 1 a training or evaluation failed (the others are in the table), 130 interrupted.
    """
    from asr.cli.console import table_console
    from asr.errors import UsageError
    from asr.report.compare import compare, write
    from asr.report.evaluate import evaluate
    from asr.report.experiments import resolve
    from asr.report.table import notes, rich_table

    # A file whose name holds `=` is still a file.
    paths = [Path(t) for t in targets if "=" not in t or Path(t).exists()]
    overrides = [t for t in targets if "=" in t and not Path(t).exists()]
    if not paths:
        raise UsageError("give at least one recipe or experiment folder")
    experiments = resolve(paths, overrides)
    first = experiments[0]
    folder = out or (first.recipe_file or first.exp).resolve().parent / "results"

    def scored(one: Experiment) -> dict[str, dict[str, Any]]:
        # A recipe may have got other test sets and scoring rules since it was trained; a folder is as it was.
        return evaluate(one.exp, device=device, reporting=one.recipe if one.recipe_file else None)

    comparison = compare(experiments, evaluate=scored, retrain=retrain, own_batches=batches is Batches.own)
    written = write(comparison, folder)
    console = table_console()
    console.print(rich_table(comparison.rows))
    for note in [*notes(comparison.rows), *comparison.warnings]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    typer.echo("wrote " + ", ".join(str(path) for path in written), err=True)
    if comparison.failed:
        raise typer.Exit(1)
