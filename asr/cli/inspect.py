"""`asr inspect`: what goes on inside a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    exp: Annotated[Path, typer.Argument(help="Experiment folder, or a checkpoint in it.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Run the trained weights otherwise: attention.rounds=8."),
    ] = None,
    utterance: Annotated[
        list[str] | None,
        typer.Option("--utterance", help="Id of an utterance; may be repeated. Default: the first four of the set."),
    ] = None,
    set: Annotated[str, typer.Option("--set", help="dev or a test set of the recipe.")] = "dev",
    layer: Annotated[
        list[int] | None, typer.Option("--layer", help="Draw this layer, from 1; may be repeated. Default: all.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option("--head", help="Draw this head, from 1; may be repeated. Default: all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of numbers and pictures. Default: EXP/inspect.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
) -> None:
    """Look into a trained model: attention maps, buckets, normalisers, memory, CTC spikes.

    Prints tables and writes inspect.json with every number, and attention maps and the CTC output of the first
    utterance, or of those named, as PNG. docs/inspect.md says what each number means.
    """
    from asr.cli.console import table_console
    from asr.report.inspect.inspection import inspect
    from asr.report.inspect.tables import inspect_tables

    result = inspect(
        exp, set_name=set, utterances=utterance or (), layers=layer or (), heads=head or (), out=out, device=device,
        options=options or (),
    )  # fmt: skip
    console = table_console()
    heard = ", ".join(f"{one['id']} ({one['seconds']:.1f} s)" for one in result["utterances"])
    console.print(f"{result['model']} hears {heard} of {result['set']}; a frame is {result['frame_ms']:g} ms.",
                  markup=False, highlight=False, soft_wrap=True)  # fmt: skip
    for table in inspect_tables(result):
        console.print(table)
    folder = out or (exp.parent if exp.is_file() else exp) / "inspect"
    typer.echo(f"numbers and pictures in {folder}", err=True)
