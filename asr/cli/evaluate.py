"""`asr evaluate`: error rates of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def evaluate(
    exp: Annotated[Path, typer.Argument(help="Experiment folder, or a checkpoint in it.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Run the trained weights otherwise: attention.rounds=1,2,4,8 or attention=lsh; a row for each.",
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="dev, a test set of the recipe, or all; may be repeated. Default: the test sets."),
    ] = None,
    manifest: Annotated[
        list[Path] | None, typer.Option("--manifest", help="Another manifest to score; may be repeated.")
    ] = None,
    pronunciations: Annotated[
        Literal["first", "best"] | None,
        typer.Option(help="Phone references: first (a word's first pronunciation) or best (the one that fits best)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
) -> None:
    """Score a model on sets of utterances; writes results/SET.json and results/SET.txt into the experiment folder.

    SET.txt holds alignments, confusions and the worst utterances. Unusable audio counts as all deletions. With options
    the files are results/SET@OPTIONS.*, and the model as it was trained is the table's first row.
    """
    from json import dumps

    from asr.cli.console import table_console
    from asr.report.evaluate import evaluate, evaluate_options
    from asr.report.results_table import options_table, results_table

    how: dict[str, Any] = {
        "sets": set,
        "manifests": manifest or (),
        "device": device,
        "pronunciations": pronunciations,
    }
    results = evaluate_options(exp, options, **how) if options else evaluate(exp, **how)
    if json:
        print(dumps(results, indent=1, ensure_ascii=False))
        return
    console = table_console()
    console.print(options_table(results) if options else results_table(results))
    folder = exp.parent if exp.is_file() else exp
    typer.echo(f"details in {folder / 'results'}", err=True)
